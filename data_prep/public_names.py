"""Names that the owner declares from public text: names that are not sensitive, and public weights of names.

Neither file may come from the private corpus (docs/privacy-proofs.md, section 15): :func:`counted_on` tells whether
weights do that :func:`write_public_weights` wrote.

>>> from fl_sim.data_prep.store.corpus import Corpus
>>> corpus = Corpus.open("bundled")
>>> public = PublicNames.read(corpus, "train", SHIPPED)
>>> mention_share(corpus.ownership("train"), public.entities) < 0.5
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.atomic import require_new_file
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.files import read_bytes, replace_file
from fl_sim.settings_origin import MOST_SHARED, found_in, sentence_sample

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus

SHIPPED = "shipped"
"""The name of the list that ships: places and software (data_prep/names/README.md)."""

_SHIPPED_FILE = Path(__file__).parent / "names" / "public_names.txt"


def public_names_file(source: str | Path) -> Path:
    """Return the file that ``source`` means: a path, or :data:`SHIPPED`."""
    return _SHIPPED_FILE if str(source) == SHIPPED else Path(source)


@dataclass(frozen=True)
class PublicNames:
    """Hold what a list of names declares not sensitive: the ids of entities, ascending, and a digest of the names."""

    entities: tuple[int, ...] = ()
    digest: str = ""

    @classmethod
    def read(cls, corpus: Corpus, split: str, source: str | Path) -> PublicNames:
        """Read a list; a name means the entity that the corpus's identity makes of it.

        Args:
            source: UTF-8 text with a name on each line (lines that begin with # are comments), or :data:`SHIPPED`.

        Raises:
            CorpusError: the file is empty or not UTF-8.
            OSError: it cannot be read.
        """
        path = public_names_file(source)
        identity = Identity.of_corpus(corpus.manifest.settings)
        keys = {identity.key(line) for _, line in _lines(path)}
        if not keys:
            raise CorpusError(f"{path}: lists no name; allowed: UTF-8 text with a name on each line")
        entities = corpus.entities(split)["entity"]
        ids = np.sort(entities.index[entities.isin(keys)].to_numpy().astype(np.int64))
        return cls(tuple(ids.tolist()), hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest())


def mention_share(ownership: Ownership, entities: Sequence[int]) -> float:
    """Return the share of all pairs of a sentence and an entity in it that are of ``entities``; 0 without any pair."""
    mentions = ownership.entity_ids
    return float(np.isin(mentions, np.array(entities, dtype=np.int64)).mean()) if len(mentions) else 0.0


def entity_weights(corpus: Corpus, split: str, source: str | Path) -> NDArray[np.float64]:
    """Return the public weight of every entity, float64 (num_entities,), 1 for an entity that is not in the file.

    A name means the entity that the corpus's identity makes of it. The file is UTF-8 text with ``name<TAB>weight`` on
    each line; other lines that begin with # are comments.

    Raises:
        CorpusError: the file is empty or not UTF-8, a line has no weight in (0, 1], or two lines give one entity
            different weights.
        OSError: it cannot be read.
    """
    by_key = _weights_by_key(Path(source), Identity.of_corpus(corpus.manifest.settings))
    if not by_key:
        raise CorpusError(f"{source}: has no weight; allowed: UTF-8 text with name, tab and weight on each line")
    weights = np.ones(corpus.ownership(split).num_entities)
    entities = corpus.entities(split)["entity"]
    weights[entities.index] = entities.map(by_key).fillna(1.0)
    return weights


def write_public_weights(corpus: Corpus, *, split: str = "train", entity_bound: int, sentences: int, out: Path) -> int:
    """Write the weights min(1, k·S_public / (S·n_e)) of a public corpus's entities to a file; return how many.

    Of S_public sentences of the split n_e mention entity e. A corpus of S sentences that mentions names as often as the
    public one then has about k sentences of each, counted by weight. Weights of 1 are left out.

    Args:
        corpus: The public corpus, with no sentence of a private user.
        split: The split to count.
        entity_bound: The weight that a name is to have in all.
        sentences: The expected number of sentences of the private corpus.
        out: The file to make; it must not exist.

    Raises:
        CorpusError: k or S is less than 1, or ``out`` exists.
    """
    for name, value in {"`entity_bound`": entity_bound, "`sentences`": sentences}.items():
        if value < 1:
            raise CorpusError(f"{name} is {value}; allowed: an integer of at least 1")
    require_new_file(out)
    entities = corpus.entities(split)
    expected = entities["sentences"].to_numpy() * (sentences / corpus.ownership(split).num_sentences)
    weights = np.minimum(1.0, entity_bound / expected)
    rows = [
        f"{key}\t{weight!r}"
        for key, weight in zip(entities["entity"], weights.tolist(), strict=True)
        if weight < 1 and "\n" not in key
    ]
    made_of, sample = " ".join(sorted(corpus.fingerprints)), " ".join(sentence_sample(map(str, corpus.texts(split))))
    head = [
        f"# weights of names, from the public text of corpus {corpus.manifest.name}, split {split}",
        f"# fingerprints {made_of}, entity bound {entity_bound}, expected sentences {sentences}, sample {sample}",
    ]
    replace_file(out, "\n".join([*head, *rows, ""]).encode())
    return len(rows)


def counted_on(source: str | Path, corpus: Corpus, split: str) -> bool:
    """Return whether a file has weights that :func:`write_public_weights` counted on a split of ``corpus``.

    A corpus that it is made of, or that is made of the same or has several of its sentences, is no other one.
    """
    lines = read_bytes(Path(source)).decode(errors="replace").split("\n", 2)
    head, _, sample = "\n".join(lines[:2]).partition(", sample ")
    if f", split {split}\n" in head and any(name in head for name in corpus.fingerprints):
        return True
    return bool(sample) and found_in(sample.split(), map(str, corpus.texts(split))) > MOST_SHARED


def _weights_by_key(path: Path, identity: Identity) -> dict[str, float]:
    weights: dict[str, float] = {}
    for number, line in _lines(path):
        name, _, text = line.rpartition("\t")
        try:
            weight = float(text)
        except ValueError:
            weight = np.nan
        if not name.strip() or not 0 < weight <= 1:
            raise CorpusError(
                f"{path}, line {number}: weight is {text.strip()!r:.40}; allowed: name, tab and a number in (0, 1]"
            )
        key = identity.key(name)
        if weights.setdefault(key, weight) != weight:
            raise CorpusError(
                f"{path}, line {number}: {key!r:.60} has weight {weight:g} and {weights[key]:g}; allowed: one weight"
            )
    return weights


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line but blank ones and comments, which begin with # and have no tab."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not UTF-8 (byte {error.start}); allowed: UTF-8 text") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not (line.startswith("#") and "\t" not in line):
            yield number, line.rstrip("\r")
