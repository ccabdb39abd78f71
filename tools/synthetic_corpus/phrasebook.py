"""Read the phrases of the synthetic corpus from ``phrases/``: one file per topic, and a common one.

To add a topic, add a ``topic_NAME.toml``: under ``[templates]`` one production a line (``sentence`` is the start rule),
under ``[words]`` plain words, separated by commas.

>>> len(phrasebook().topics) > 10
True
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.synthetic_corpus.grammar import Grammar

_FOLDER = Path(__file__).parent / "phrases"
_TOPIC_PREFIX = "topic_"


@dataclass(frozen=True)
class Phrasebook:
    """All phrases: the rules of all topics, openings such as "honestly", subjects with pronouns, unnamed firms."""

    grammar: Grammar
    topics: tuple[str, ...]
    hedges: tuple[str, ...]
    subjects: tuple[tuple[str, str], ...]
    nameless_firms: tuple[str, ...]

    @property
    def relatives(self) -> tuple[str, ...]:
        """The subjects that are a single person."""
        return tuple(phrase for phrase, pronoun in self.subjects if pronoun != "they")


@cache
def phrasebook() -> Phrasebook:
    """Return all phrases; the rules of a topic are prefixed by its name, to keep topics apart."""
    common = _load(_FOLDER / "common.toml")
    rules = _productions(common)
    topics = []
    for path in sorted(_FOLDER.glob(f"{_TOPIC_PREFIX}*.toml")):
        topic = path.stem.removeprefix(_TOPIC_PREFIX)
        topics.append(topic)
        own = _productions(_load(path))
        rules |= {f"{topic}_{name}": [_qualified(text, topic, own) for text in texts] for name, texts in own.items()}
    return Phrasebook(
        grammar=Grammar(rules),
        topics=tuple(topics),
        hedges=tuple(rules["hedge"]),
        subjects=tuple((phrase, pronoun) for pronoun, phrases in common["subjects"].items() for phrase in phrases),
        nameless_firms=tuple(common["nameless"]["firms"]),
    )


def _load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _productions(book: dict[str, Any]) -> dict[str, list[str]]:
    templates = {name: text.strip().splitlines() for name, text in book["templates"].items()}
    words = {name: [word.strip() for word in " ".join(text.split()).split(",")] for name, text in book["words"].items()}
    return {**templates, **words}


def _qualified(template: str, topic: str, own: dict[str, list[str]]) -> str:
    """Return ``template`` with the topic's name before each of the topic's own rules."""
    return re.sub(r"<([a-z_]+)>", lambda m: f"<{topic}_{m[1]}>" if m[1] in own else m[0], template)
