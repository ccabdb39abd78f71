"""Join the mention graphs of nodes into one, as the server's record of a corpus whose text it never sees.

The record is a prepared folder like any other, so that bounds, noise and ε are planned, and later reported, by the same
code as for a corpus with text. A sentence of the training split has the pseudonyms of its entities in place of its
text, users are pseudonyms, too, and the held-out split is the server's own.

>>> own = Ownership(np.array([0, 1, 2]), np.array([0, 1, 2]), np.array([0, 0], dtype=np.int32), 1,
...                 entity_draws=np.array([255]))
>>> [sentence.text for sentence in graph_sentences("train", own, (b"a" * 16, b"b" * 16))]
['00000000000000ff', '00000000000000ff']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.digests import digest_of_all
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import HELD_BY_NODES, Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.flower.text.enrolment import Enrolment, NodesError

IntArray = NDArray[np.int64]

CONTENT = "content"
"""The setting in the manifest of such a record with a digest of what all users train on."""

_WARNING = (
    "nodes hold the text, and each knows which entities and sentences a round samples: ε is against others than the "
    "nodes of the run; against them it is that of q_e = q_s = 1."
)
_LABEL = "PSEUDONYM"
_NOTHING = "-"  # a sentence without entities
_ALIKE = {
    "entity_key": "another entity key",
    "model": "another model",
    "tokenizer": "another tokenizer",
    "release": "another version of fl_sim",
    "preparation": "names that were marked or normalised in another way",
}


def write_graph(
    enrolments: Sequence[Enrolment], split: str, held_out: Corpus, held_out_split: str, out: Path
) -> Corpus:
    """Write the joint mention graph of nodes as a prepared folder.

    Args:
        enrolments: of all nodes, with their graphs; their places order the users.
        split: the name of the split that trains.
        held_out: the corpus with the held-out text.
        held_out_split: the split of it.
        out: the folder to make.

    Raises:
        NodesError: the nodes do not fit together.
        CorpusError: the folder is taken, or no private training could use the graph.
    """
    nodes = sorted(enrolments, key=lambda node: node.facts.partition)
    _check_places(nodes)
    _check_alike(nodes)
    _check_users(nodes)
    evaluated = (replace(s, split=held_out_split) for s in sentences_of(held_out) if s.split == held_out_split)
    trained = chain.from_iterable(graph_sentences(split, *_graph_of(node)) for node in nodes)
    corpus = write_corpus(
        chain(trained, evaluated),
        out,
        name=f"text of {len(nodes)} nodes",
        settings={
            HELD_BY_NODES: [_holder(node) for node in nodes],
            CONTENT: digest_of_all(chain.from_iterable(node.content for node in nodes)),
            "warnings": [*sorted({warning for node in nodes for warning in node.facts.warnings}), _WARNING],
        },
        sought_labels=sorted(set.intersection(*(set(node.facts.sought_labels) for node in nodes))),
        identity=_identity_of(held_out),
    )
    _check_written(corpus, split, nodes)
    return corpus


def classes_of(held_out: Corpus, split: str) -> tuple[str, ...]:
    """Return the names of the classes of held-out sentences, sorted: those of the joint graph."""
    return tuple(sorted({held_out.classes[number] for number in held_out.targets(split).tolist() if number >= 0}))


def graph_sentences(split: str, own: Ownership, users: Sequence[bytes]) -> Iterator[Sentence]:
    """Yield the sentences of a node: pseudonyms in place of users and names, and nothing else.

    Args:
        split: the split that trains.
        own: the node's mention graph.
        users: the pseudonyms of its users.
    """
    names = [f"{draw:016x}" for draw in np.asarray(own.entity_draws).tolist()]
    offsets, ids = own.entity_offsets.tolist(), own.entity_ids.tolist()
    for user, first, stop in zip(users, own.user_offsets[:-1].tolist(), own.user_offsets[1:].tolist(), strict=True):
        for sentence in range(first, stop):
            said = [names[entity] for entity in ids[offsets[sentence] : offsets[sentence + 1]]]
            mentions = tuple(Mention(17 * place, 17 * place + 16, _LABEL) for place in range(len(said)))
            yield Sentence(split, user.hex(), " ".join(said) or _NOTHING, mentions)


def _graph_of(node: Enrolment) -> tuple[Ownership, Sequence[bytes]]:
    if node.ownership is None:
        raise NodesError(f"node {node.facts.partition} sent no mention graph")
    return node.ownership, node.users


def _holder(node: Enrolment) -> dict[str, str | int]:
    """Return what a run remembers of a node."""
    own, _ = _graph_of(node)
    facts = node.facts
    return {
        "partition": facts.partition,
        "identity": facts.identity,
        "users": own.num_users,
        "sentences": own.num_sentences,
        "model": facts.model,
        "tokenizer": facts.tokenizer,
        "release": facts.release,
    }


def _check_places(nodes: Sequence[Enrolment]) -> None:
    places = [node.facts.partition for node in nodes]
    twice = [place for place, count in Counter(places).items() if count > 1]
    if twice:
        raise NodesError(f"partition-id is {twice[0]} on two nodes; allowed: another place for each node")


def _check_alike(nodes: Sequence[Enrolment]) -> None:
    first = nodes[0].facts
    for node in nodes[1:]:
        for name, words in _ALIKE.items():
            if getattr(node.facts, name) != getattr(first, name):
                raise NodesError(
                    f"node {node.facts.partition} has {words} than node {first.partition}; allowed: the same on all "
                    "nodes"
                )


def _check_users(nodes: Sequence[Enrolment]) -> None:
    holder: dict[bytes, int] = {}
    for node in nodes:
        for user in node.users:
            other = holder.setdefault(user, node.facts.partition)
            if other != node.facts.partition:
                raise NodesError(
                    f"a user is in the folders of nodes {other} and {node.facts.partition}; allowed: all text of a "
                    "user on one node, because ε is of a user's whole text"
                )
        if len(set(node.users)) < len(node.users):
            raise NodesError(f"node {node.facts.partition} names a user twice; allowed: each user once")


def _identity_of(held_out: Corpus) -> Identity:
    """Return the identity by which names of the held-out text are told apart; links need its documents."""
    if "identity" not in held_out.manifest.settings:
        return DEFAULT_IDENTITY
    return replace(Identity.of_corpus(held_out.manifest.settings), link_within_document=False)


def _check_written(corpus: Corpus, split: str, nodes: Sequence[Enrolment]) -> None:
    """Check that the record has the incidence that the nodes sent, which ε rests on."""
    written, graphs = corpus.ownership(split), [_graph_of(node)[0] for node in nodes]
    draws = np.concatenate([graph.draws_of(graph.entity_ids) for graph in graphs])
    names = np.array([int(name, 16) for name in corpus.entities(split)["entity"]], dtype=np.int64)
    owners = np.repeat(np.arange(written.num_sentences), written.entities_per_sentence)
    per_sentence = np.concatenate([graph.entities_per_sentence for graph in graphs])
    same = (
        np.array_equal(written.sentences_per_user, np.concatenate([graph.sentences_per_user for graph in graphs]))
        and np.array_equal(written.entities_per_sentence, per_sentence)
        and np.array_equal(_sorted(owners, names[written.entity_ids]), _sorted(owners, draws))
    )
    if not same:
        raise CorpusError(f"{corpus.path}: the record of the mention graph is not what the nodes sent")


def _sorted(owners: IntArray, draws: IntArray) -> IntArray:
    """Return the draws of every sentence in ascending order."""
    return draws[np.lexsort((draws, owners))]
