"""The record of text that nodes hold, for a server that never sees it: counts by pseudonym, and no mention graph.

It is a prepared folder like any other. In its training split every user is a pseudonym with as many sentences as the
user has, all of them empty; beside it :data:`~fl_sim.data_prep.store.layout.COUNTS_FILE` says how many sentences of
each node mention each name, by the keyed digest of the name. A sum over nodes is the declared count of a name.

>>> alike = {"identity": "", "model": "", "tokenizer": "", "release": 1, "users": 1, "sentences": 3}
>>> told = [CountsOfNode(partition=place, names=names, **alike) for place, names in enumerate(({5: 1, 9: 3}, {5: 2}))]
>>> record = CountsOfNodes(content="", nodes=told)
>>> record.totals
{5: 3, 9: 3}
>>> record.declared(np.array([3, 3])).entities
array([3, 3])
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts, IntArray
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import COUNTS_FILE
from fl_sim.files import read_bytes


class CountsOfNode(BaseModel):
    """What the record remembers of a node.

    Attributes:
        partition: its place among the nodes, which orders their users.
        identity: a keyed digest of its folder, of all that is computed from it, and of the model.
        model: SHA-256 of the weights that a public seed gives.
        tokenizer: SHA-256 of the tokens of a public text.
        release: the version of samples and sums.
        users: their number.
        sentences: their number.
        names: for each of its names, by digest in ascending order, the number of its sentences that mention it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: int
    identity: str
    model: str
    tokenizer: str
    release: int
    users: int
    sentences: int
    names: dict[int, int]


class CountsOfNodes(BaseModel):
    """The content of the file.

    Attributes:
        content: a digest of what all users train on.
        nodes: in the order of their places.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    content: str
    nodes: tuple[CountsOfNode, ...]

    @classmethod
    def read(cls, record: Corpus) -> CountsOfNodes:
        """Return what nodes told; raise CorpusError if the file is damaged."""
        path = record.path / COUNTS_FILE
        try:
            return cls.model_validate_json(read_bytes(path))
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
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
