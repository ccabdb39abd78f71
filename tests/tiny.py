"""A corpus and a model small enough to train in an instant."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from tests.made_once import copy_of, made_once

MODEL: dict[str, int] = {"model.hidden": 16, "model.layers": 1, "model.heads": 2, "model.max_tokens": 32}
USERS, SENTENCES_EACH = 6, 4
NAMES = ("Ada", "Blaise", "Carl", "Emmy")


def tiny_corpus(folder: Path, users: int = USERS, each: int = SENTENCES_EACH) -> Path:
    """Copy a prepared corpus with four splits: train, validation, one with a single user, one without entities."""
    return copy_of(f"tiny-{users}-{each}", functools.partial(_write, users, each), folder)


def shared_corpus() -> Path:
    """Return the tiny corpus that all tests share, which are only to read it."""
    return made_once(f"tiny-{USERS}-{SENTENCES_EACH}", functools.partial(_write, USERS, SENTENCES_EACH))


def _write(users: int, each: int, folder: Path) -> None:
    write_corpus(_sentences(users, each), folder, name="tiny")


def _sentences(users: int, each: int) -> Iterator[Sentence]:
    for split in ("train", "validation"):
        for user in range(users):
            for number in range(each):
                name = NAMES[(user + number) % len(NAMES)]
                mentions = (Mention(0, len(name), "PER"),) if number % 2 == 0 else ()
                text = f"{name} saw {user} boats and {number} birds." if mentions else f"It rained on day {number}."
                yield Sentence(split, f"user {user}", text, mentions)
    yield Sentence("lonely", "hermit", "Ada comes here.", (Mention(0, 3, "PER"),))
    for user in range(2):
        yield Sentence("plain", f"user {user}", "Nobody comes here.", ())


def configured(corpus: Path | str, out: Path | str, **settings: Any) -> RunConfig:
    """Return a run of two rounds on the tiny model, with nodes in this process."""
    base: dict[str, Any] = {"engine.name": "inline", "corpus.path": str(corpus), "rounds": 2, "out": str(out)}
    return RunConfig.from_mapping(base | MODEL | settings)


def command_line(settings: Mapping[str, object]) -> list[str]:
    """Return ``settings`` as the flags of ``fl-sim run``."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
