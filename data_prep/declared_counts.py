"""Files with the declared counts of a corpus: how often each user and each entity occurs at most.

Where counts are known (``privacy.known = "counts"``), ε holds for two corpora that are trained with the same declared
counts. A run declares those of its corpus, or those of a file (``privacy.counts``), which may be larger: a corpus from
which a user or a name is taken out is then trained on, and planned, as before.

>>> from tempfile import TemporaryDirectory
>>> from fl_sim.data_prep.store.corpus import Corpus
>>> corpus = Corpus.open("bundled")
>>> with TemporaryDirectory() as folder:
...     file = Path(folder, "counts.json")
...     write_counts(corpus, "train", file, rounded=True)
...     read_counts(corpus, "train", file).users[:3], corpus.ownership("train").sentences_per_user[:3]
(array([ 8, 32, 16]), array([ 8, 24, 16]))
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts, IntArray
from fl_sim.files import read_bytes

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus

_LARGEST = 1 << 40


class _CountsFile(BaseModel):
    """The content of a file: ``corpus`` and ``split`` by name, and a count for every user and every entity by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str
    split: str
    users: dict[str, StrictInt] = Field(min_length=1)
    entities: dict[str, StrictInt]


def write_counts(corpus: Corpus, split: str, out: Path, *, rounded: bool = False) -> None:
    """Write the counts of a split to a new file.

    Args:
        corpus: of the users and entities.
        split: of the corpus.
        out: the file to make; it names users and entities, so it is as private as these names.
        rounded: whether to round every count up to a power of two.

    Raises:
        CorpusError: ``out`` exists.
    """
    counts = DeclaredCounts.of(corpus.ownership(split))
    counts = counts.rounded_up() if rounded else counts
    users, entities = _names(corpus, split)
    content = _CountsFile(
        corpus=corpus.manifest.name,
        split=split,
        users=dict(zip(users, counts.users.tolist(), strict=True)),
        entities=dict(zip(entities, counts.entities.tolist(), strict=True)),
    )
    try:
        with out.open("x", encoding="utf-8", newline="\n") as file:
            file.write(content.model_dump_json() + "\n")
    except FileExistsError as error:
        raise CorpusError(f"{out}: exists already; choose another --out") from error


def read_counts(corpus: Corpus, split: str, source: str | Path) -> DeclaredCounts:
    """Return the declared counts of the users and entities of a split, by their ids.

    Args:
        corpus: whose users and entities are counted; the file may name more, who are absent.
        split: of the corpus.
        source: the file.

    Raises:
        CorpusError: the file is not of this format or of another corpus, a user or an entity has no count, or a count
            is not a whole number from 0 or is smaller than the corpus's.
        OSError: it cannot be read.
    """
    path = Path(source)
    try:
        content = _CountsFile.model_validate_json(read_bytes(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise CorpusError(f"{path}: {place}: {first['msg']}; allowed: counts of fl-sim corpus counts") from error
    for name, stated, own in (("corpus", content.corpus, corpus.manifest.name), ("split", content.split, split)):
        if stated != own:
            raise CorpusError(f"{path}: is of {name} {stated!r:.60}; allowed: counts of {own!r:.60}")
    users, entities = _names(corpus, split)
    counts = DeclaredCounts(
        users=_counts_of(path, "user", users, content.users),
        entities=_counts_of(path, "entity", entities, content.entities),
        population=len(content.users),
        digest=hashlib.sha256(content.model_dump_json().encode()).hexdigest(),
    )
    try:
        counts.check(corpus.ownership(split))
    except CorpusError as error:
        raise CorpusError(f"{path}: {error}") from error
    return counts


def _names(corpus: Corpus, split: str) -> tuple[list[str], list[str]]:
    """Return the names of users and entities in the order of their ids."""
    return corpus.users(split)["user"].tolist(), corpus.entities(split)["entity"].tolist()


def _counts_of(path: Path, kind: str, names: Sequence[str], counts: dict[str, int]) -> IntArray:
    for name, count in counts.items():
        if not 0 <= count <= _LARGEST:
            raise CorpusError(f"{path}: {kind} {name!r:.60} has count {count}; allowed: a whole number from 0")
    missing = next((name for name in names if name not in counts), None)
    if missing is not None:
        raise CorpusError(
            f"{path}: {kind} {missing!r:.60} has no count; allowed: a count for each {kind} of the corpus"
        )
    return np.array([counts[name] for name in names], dtype=np.int64)
