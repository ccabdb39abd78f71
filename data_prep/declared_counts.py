"""Files with the declared counts of a corpus: how often each user and each entity occurs at most.

A run declares the counts of its corpus, or those of a file (``privacy.counts``), which may be larger: a corpus from
which a user or a name is taken out is then trained on, and planned, as before.

Text that nodes hold has a record, for a server that never sees it: counts by pseudonym, and no mention graph. It is a
prepared folder like any other. In its training split every user is a pseudonym with as many sentences as the user has,
all of them empty; beside it :data:`~fl_sim.data_prep.store.layout.COUNTS_FILE` says how many sentences of each node
mention each name, by the keyed digest of the name. A sum over nodes is the declared count of a name.

>>> alike = {"identity": "", "model": "", "tokenizer": "", "release": 1, "users": 1, "sentences": 3}
>>> told = [CountsOfNode(partition=place, names=names, **alike) for place, names in enumerate(({5: 1, 9: 3}, {5: 2}))]
>>> record = CountsOfNodes(content="", nodes=told)
>>> record.totals
{5: 3, 9: 3}
>>> record.declared(np.array([3, 3])).entities
array([3, 3])
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, ValidationError

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.atomic import require_new_file
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts, IntArray
from fl_sim.data_prep.store.layout import COUNTS_FILE
from fl_sim.data_prep.store.manifest import Record
from fl_sim.files import read_bytes, replace_private_file
from fl_sim.formats import first_mistake

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus

_LARGEST = 1 << 40
_Counts = dict[str, Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]]


class _CountsFile(Record):
    """The content of a file: ``corpus`` and ``split`` by name, and a count for every user and every entity by name."""

    corpus: str
    split: str
    users: _Counts = Field(min_length=1)
    entities: _Counts


def write_counts(corpus: Corpus, out: Path, split: str = "train", *, rounded: bool = False) -> None:
    """Write the counts of a split to the new file ``out``, which is as private as the names that it holds.

    Args:
        corpus: The corpus whose users and entities are counted.
        out: The file to make.
        split: The training split.
        rounded: Round every count up to a power of two.

    Raises:
        CorpusError: ``out`` exists.
    """
    require_new_file(out)
    counts = DeclaredCounts.of(corpus.ownership(split))
    counts = counts.rounded_up() if rounded else counts
    users, entities = _names(corpus, split)
    content = _CountsFile(
        corpus=corpus.manifest.name,
        split=split,
        users=dict(zip(users, counts.users.tolist(), strict=True)),
        entities=dict(zip(entities, counts.entities.tolist(), strict=True)),
    )
    replace_private_file(out, f"{content.model_dump_json()}\n".encode())


def read_counts(corpus: Corpus, split: str, source: str | Path) -> DeclaredCounts:
    """Return the declared counts of the users and entities of a split, by their ids; the file may name absent ones.

    Raises:
        CorpusError: the file is not of this format or of another corpus, a user or an entity has no count, or a count
            is not a whole number from 0 or is smaller than the corpus's.
        OSError: it cannot be read.
    """
    path, true = Path(source), DeclaredCounts.of(corpus.ownership(split))
    try:
        content = _CountsFile.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise CorpusError(f"{path}: {_first_problem(error)}") from error
    for name, stated, own in (("corpus", content.corpus, corpus.manifest.name), ("split", content.split, split)):
        if stated != own:
            raise CorpusError(f"{path}: is of {name} {stated!r:.60}; allowed: counts of {own!r:.60}")
    users, entities = _names(corpus, split)
    return DeclaredCounts(
        users=_counts_of(path, "user", content.users, users, true.users),
        entities=_counts_of(path, "entity", content.entities, entities, true.entities),
        declared=(_by_name(content.users), _by_name(content.entities)),
        names=hashlib.sha256(json.dumps([sorted(content.users), sorted(content.entities)]).encode()).hexdigest(),
    )


def _names(corpus: Corpus, split: str) -> tuple[list[str], list[str]]:
    """Return the names of users and entities in the order of their ids."""
    return corpus.users(split)["user"].tolist(), corpus.entities(split)["entity"].tolist()


def _counts_of(path: Path, kind: str, counts: _Counts, names: Sequence[str], least: IntArray) -> IntArray:
    """Return the counts of the names, each at least that of the corpus, int64 (len(names),)."""
    for name, own in zip(names, least.tolist(), strict=True):
        if counts.get(name, -1) < own:
            has = f"count {counts[name]}" if name in counts else "no count"
            raise CorpusError(f"{path}: {kind} {name!r:.60} has {has}; allowed: at least {own}, that of the corpus")
    return np.array([counts[name] for name in names], dtype=np.int64)


def _by_name(counts: _Counts) -> IntArray:
    """Return all counts in the order of their names."""
    return np.array([counts[name] for name in sorted(counts)], dtype=np.int64)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if len(first["loc"]) > 1:
        place = ".".join(map(str, first["loc"]))
        return f"{place:.80} is {first['input']!r:.60}; allowed: a whole number from 0 to {_LARGEST}"
    return f"{first_mistake(error)}; allowed: what fl-sim corpus counts writes"


class CountsOfNode(Record):
    """What the record remembers of a node.

    Attributes:
        partition: its place among the nodes, which orders their users.
        identity: a keyed digest of its folder, of all that is computed from it, and of the model.
        model: SHA-256 of the weights that a public seed gives.
        tokenizer: SHA-256 of the tokens of a public text.
        release: the version of samples and sums.
        names: for each of its names, by digest in ascending order, the number of its sentences that mention it.
    """

    partition: int
    identity: str
    model: str
    tokenizer: str
    release: int
    users: int
    sentences: int
    names: dict[int, int]


class CountsOfNodes(Record):
    """The content of the file.

    Attributes:
        content: a digest of what all users train on.
        nodes: in the order of their places.
    """

    content: str
    nodes: tuple[CountsOfNode, ...]

    @classmethod
    def read(cls, record: Corpus) -> CountsOfNodes:
        """Return what nodes told; raise CorpusError if the file is damaged."""
        path = record.path / COUNTS_FILE
        try:
            return cls.model_validate_json(read_bytes(path))
        except ValidationError as error:
            reason = first_mistake(error)
            raise CorpusError(f"{path}: {reason}; allowed: the counts that nodes sent when the run began") from error

    @property
    def totals(self) -> dict[int, int]:
        """For each name, by digest in ascending order, the number of sentences of all nodes that mention it."""
        total = Counter[int]()
        for node in self.nodes:
            total.update(node.names)
        return dict(sorted(total.items()))

    def declared(self, sentences_per_user: IntArray) -> DeclaredCounts:
        """Return the counts of all users, given those of their sentences, int64 (N,), and of all names by digest."""
        names = np.array(list(self.totals.values()), dtype=np.int64)
        return DeclaredCounts.exactly(sentences_per_user, names)
