"""Keep some of the sentences of a corpus's training split, as other methods do before they train.

``linear_program``: as many sentences as limits on users and names allow, the weights of "Hush! Protecting Secrets
During Model Training: An Indistinguishability Approach" (Ganesh, McMahan, Nasr, Steinke and Thakurta 2025, arXiv
2506.00201), whose program is max Σ w(s) with Σ_{s∋j} w(s) ≤ η_j for every secret j. Secrets are names here, and users
if they have a limit. A sentence is kept if its weight is 1, so that the limits hold whatever the solver returns. Which
are kept depends on the mention graph, so any ε of a run on them takes that graph as known.

``with_entity``, ``without_entity``: the private and the public part of "Provably Confidential Language Modelling"
(Zhao, Li and Wang, NAACL 2022), by the tagger as its policy. ``unrepeated`` keeps the first of equal texts, as its
Dedup does: the mask that takes the place of the others says nothing to a model.

>>> ownership = Ownership(  # user 0 has sentences 0 and 1, user 1 has sentence 2; entity 0 is in sentences 1 and 2
...     user_offsets=np.array([0, 2, 3]), entity_offsets=np.array([0, 0, 1, 2]),
...     entity_ids=np.array([0, 0], dtype=np.int32), num_entities=1)
>>> most_sentences(ownership, entity_bound=1, user_sentences=1)
array([ True, False,  True])
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import optimize, sparse

from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.prepared_corpus import is_preprocessed, sentences_of
from fl_sim.data_prep.records import CorpusError, Sentence, Settings
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.research.study_files import StrictModel

BoolArray = NDArray[np.bool_]

_WHOLE = 1 - 1e-6  # from this weight on a sentence is kept: a solver's 1


class Kept(StrictModel):
    """Which sentences of the training split are kept.

    Attributes:
        rule: of the module's docstring.
        entity_bound: k, the most sentences of a name under ``linear_program``.
        user_sentences: m, the most sentences of a user under ``linear_program``; None for no limit.
        unrepeated: whether a text that an earlier sentence has is left out.
    """

    rule: Literal["linear_program", "with_entity", "without_entity"]
    entity_bound: int = Field(default=1, ge=1)
    user_sentences: int | None = Field(default=None, ge=1)
    unrepeated: bool = False


def write_kept(corpus: Corpus, out: Path, kept: Kept, train: str) -> Corpus:
    """Write a corpus with the kept sentences of the split ``train`` and all of the others, and open it.

    Raises:
        CorpusError: no sentence is kept, or the program has no solution.
    """
    ownership = corpus.ownership(train)
    if kept.rule == "linear_program":
        chosen = most_sentences(ownership, kept.entity_bound, kept.user_sentences)
    else:
        chosen = (ownership.entities_per_sentence > 0) == (kept.rule == "with_entity")
    if kept.unrepeated:
        _, first = np.unique(corpus.texts(train).to_numpy(), return_index=True)
        chosen &= np.isin(np.arange(len(chosen)), first)
    if not chosen.any():
        raise CorpusError(f"{kept.rule} keeps no sentence of {train}")
    beside = {CANARIES_FILE: read_canaries(corpus).to_json()} if corpus.has_canaries else None
    of_split = (sentence for sentence in sentences_of(corpus) if sentence.split == train)
    others = (sentence for sentence in sentences_of(corpus) if sentence.split != train)
    sentences = itertools.chain(itertools.compress(of_split, chosen.tolist()), others)
    settings = {"kept": kept.model_dump(), "parent": corpus.fingerprint}
    needs_entities = kept.rule != "without_entity"
    return write_changed(corpus, out, sentences, settings, needs_entities=needs_entities, beside=beside)


def write_changed(corpus: Corpus, out: Path, sentences: Iterable[Sentence], settings: Settings, **more: Any) -> Corpus:
    """Write sentences that were made of a corpus's, with ``settings`` added to its own, and open the new corpus.

    ``more`` are further arguments of :func:`fl_sim.data_prep.corpus_writer.write_corpus`.

    Raises:
        CorpusError: the corpus is preprocessed: its names would get other keys, and ε would cover a part of an entity.
    """
    manifest = corpus.manifest
    if is_preprocessed(corpus):
        raise CorpusError(f"{corpus.path}: its text is preprocessed; allowed with a draw, kept or missed: other text")
    return write_corpus(
        sentences,
        out,
        name=manifest.name,
        sources=manifest.sources,
        settings={**manifest.settings, **settings},
        tagger=manifest.tagger,
        sought_labels=corpus.parts[0].manifest.sought_labels,
        identity=Identity.of_corpus(manifest.settings),
        **more,
    )


def most_sentences(ownership: Ownership, entity_bound: int, user_sentences: int | None) -> BoolArray:
    """Return as many sentences as the limits allow, a mask, bool (S,), by linear programming.

    Raises:
        CorpusError: the solver finds no solution.
    """
    sentences = np.arange(ownership.num_sentences)
    owners, of = ownership.entity_ids.astype(np.int64), np.repeat(sentences, ownership.entities_per_sentence)
    limits = np.full(ownership.num_entities, float(entity_bound))
    if user_sentences is not None:
        owners = np.concatenate([owners, ownership.num_entities + ownership.user_of_sentence])
        of = np.concatenate([of, sentences])
        limits = np.concatenate([limits, np.full(ownership.num_users, float(user_sentences))])
    shape = (len(limits), len(sentences))
    holds = sparse.csr_matrix((np.ones(len(owners)), (owners, of)), shape=shape)
    solved = optimize.linprog(-np.ones(len(sentences)), A_ub=holds, b_ub=limits, bounds=(0, 1), method="highs")
    if not solved.success:
        raise CorpusError(f"linear_program: {solved.message}")
    chosen: BoolArray = solved.x >= _WHOLE
    return chosen
