"""Small corpora of our own in the formats of Adult and of DPNR's AG set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_sim.research.representations.corpora.labelled_tables import write_toy_adult


@pytest.fixture(scope="session")
def small_adult(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_adult(tmp_path_factory.mktemp("adult"))


@pytest.fixture(scope="session")
def small_persons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in the format of DPNR's AG set: a topic word, a person's name, and fillers."""
    folder = tmp_path_factory.mktemp("dpnr")
    rng = np.random.default_rng(1)
    persons, topics = ("Bush", "Kerry", "Arafat", "Blair", "Sharon"), ("war", "vote", "game", "bank")

    def rows(count: int) -> str:
        made = []
        for _ in range(count):
            topic, person = int(rng.integers(4)), int(rng.integers(5))
            filler = " ".join(f"word{i}" for i in rng.integers(0, 20, 4))
            made.append(f"{topic}\tThe {topics[topic]} {filler} {persons[person]} said\t{person}\n")
        return "".join(made)

    text = "====================\n".join([rows(240), rows(60), rows(60)]) + "====================\n"
    (folder / "ag_data.txt").write_text(text)
    return folder
