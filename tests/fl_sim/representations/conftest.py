"""A small Adult of our own: rows whose income and sex can be told from their columns, but not surely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_adult(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adult")
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(600):
        male = rng.random() < 0.6
        rich = rng.random() < (0.5 if male else 0.3)
        home = "Husband" if male and rng.random() < 0.8 else "Own-child"
        years = int(rng.integers(11, 17) if rich else rng.integers(5, 13))
        cells = [
            int(rng.integers(20, 60)), "Private", 100, "Bachelors", years, "Never-married", "Sales", home, "White",
            "Male" if male else "Female", 0, 0, int(rng.integers(20, 60)), "United-States",
            ">50K" if rich else "<=50K",
        ]  # fmt: skip
        lines.append(", ".join(map(str, cells)))
    (folder / "adult.data").write_text("\n".join(lines[:300]) + "\n")
    (folder / "adult.test").write_text("\n".join(f"{line}." for line in lines[300:]) + "\n")
    return folder


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
