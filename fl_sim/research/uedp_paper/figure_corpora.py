"""The corpora of figures: prepared once, in a folder that all figures share, or left out with the reason.

A difference between two methods on one set of held-out users has those users' sampling error. Draws of other users show
how far it holds for users at large. Users are drawn as a whole, by name, so that no user is on both sides.

>>> with TemporaryDirectory() as folder:
...     store = CorpusStore(data=Path(folder), folder=Path(folder, "corpora"))
...     path = store.prepared("demo", CorpusSource(kind="bundled"))
>>> path
'bundled'
>>> draw_users(["ann", "bob", "cy", "dan"], 2, seed=1) == draw_users(["dan", "cy", "bob", "ann"], 2, seed=1)
True
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fl_sim.api.corpora import prepare
from fl_sim.config import ConfigError
from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.deidentify import Mode, deidentify
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.cleaning import Preprocessing
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.readers.reader import make_reader
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import SHIPPED_CORPORA, Corpus
from fl_sim.formats import one_line
from fl_sim.research.rivals.kept_sentences import Kept, write_changed, write_kept
from fl_sim.research.study_files import StrictModel
from fl_sim.research.uedp_paper.figures import CorpusSource, Missed
from fl_sim.strategies.primitives import streams

TRAIN, HELD_OUT = "train", "validation"
MISSED = 0.06
"""The share of mentions, or of names, that a tagger misses in training text: recall 94 %."""


class MissingCorpusError(ValueError):
    """A corpus that cannot be prepared on this machine; the message is one line with the reason."""


@dataclass(frozen=True)
class CorpusStore:
    """Prepared corpora in ``folder``, by source and settings; ``data`` has the raw ones."""

    data: Path
    folder: Path
    say: Callable[[str], None] = lambda _: None
    _opened: dict[str, str] = field(default_factory=dict)

    def prepared(
        self,
        name: str,
        source: CorpusSource,
        entities: str | None = None,
        deidentified: Mode | None = None,
        seed: int | None = None,
        kept: Kept | None = None,
        missed: Missed | None = None,
    ) -> str:
        """Return the path of a corpus for a run's ``corpus.path``; prepare the corpus if it is missing.

        Args:
            name: of the corpus in the figure.
            source: raw corpus and flags.
            entities: the sensitive kinds, instead of those of the source's flags.
            deidentified: the mode in which entities are removed from the training split; None keeps them.
            seed: of the run; the source says whether it draws other held-out users. None for the corpus's own split.
            kept: which sentences of the training split are kept; None for all.
            missed: which marks of the training split are taken out, before anything is kept or removed by them; None
                for none.

        Raises:
            MissingCorpusError: the corpus cannot be prepared on this machine.
            ConfigError: the source has flags that ``fl-sim prepare`` lacks.
        """
        if entities is not None:
            source = source.model_copy(update={"flags": {**source.flags, "entities": entities}})
        key = f"{name}-{_digest(source, exclude={'held_out'})}"
        draw = None if source.held_out is None or seed not in source.held_out.seeds else source.held_out
        changes: list[tuple[str, str, Callable[[Corpus, Path], object]]] = []
        if draw is not None and seed is not None:
            write: Callable[..., object] = partial(redraw, splits=draw.splits, held_out=draw.users, seed=seed)
            changes.append((f"draw{seed}-{_digest(draw)}", f"drawing held-out users of {{}}, seed {seed}", write))
        if missed is not None:
            write = partial(write_missed, missed=missed)
            changes.append((f"misses-{missed}-each", f"taking marks out of {{}}: {missed}", write))
        if kept is not None:
            write = partial(write_kept, kept=kept, train=TRAIN)
            changes.append((f"{kept.rule}-{_digest(kept)}", f"keeping sentences of {{}}: {kept.rule}", write))
        if deidentified is not None:
            changes.append(
                (f"trains-{deidentified}", "de-identifying {}", partial(_write_deidentified, mode=deidentified))
            )
        full_key = "-".join([key, *(suffix for suffix, _, _ in changes)])
        if full_key not in self._opened:
            try:
                path = source.kind if source.ships else str(self._prepare(key, source))
                for suffix, words, write in changes:
                    key = f"{key}-{suffix}"
                    path = self._derived(path, key, words.format(Path(path).name), write)
                self._opened[full_key] = path
            except (CorpusError, FileNotFoundError) as error:
                raise MissingCorpusError(f"{name}: {one_line(error)}") from error
        return self._opened[full_key]

    def _prepare(self, key: str, source: CorpusSource) -> Path:
        """Return the folder of the prepared corpus; prepare it if it is missing."""
        raw_folder: Path | str = self.data / str(source.source)
        if source.kind == "prepared" and source.source in SHIPPED_CORPORA:
            raw_folder = source.source
        elif not Path(raw_folder).exists():
            raise FileNotFoundError(f"{raw_folder} is not there (--data names the folder with the raw corpora)")
        out = self.folder / key
        settings, preprocessing = settings_of(source)
        if not out.exists():
            self.say(f"preparing {out.name}")
            out.parent.mkdir(parents=True, exist_ok=True)
        structured = False  # as the paper marked them
        prepare(source.kind, raw_folder, out, structured=structured, preprocessing=preprocessing, **settings)
        return out

    def _derived(self, path: str, key: str, words: str, write: Callable[[Corpus, Path], object]) -> str:
        """Return the folder of what ``write`` makes of a corpus; make it if it is missing."""
        corpus = Corpus.open(path)
        out = self.folder / f"{key}-{corpus.fingerprint[:8]}"
        if not out.exists():
            self.say(words)
            out.parent.mkdir(parents=True, exist_ok=True)
            write(corpus, out)
        return str(Corpus.open(out).path)


def _write_deidentified(corpus: Corpus, out: Path, mode: Mode) -> None:
    """Write the corpus with a de-identified training split.

    The held-out splits stay unchanged, because all curves measure utility on the same text.
    """
    with TemporaryDirectory(dir=out.parent) as scratch:
        training, _ = deidentify(corpus, Path(scratch) / "corpus", mode)
        manifest = training.manifest
        write_corpus(
            itertools.chain(
                (sentence for sentence in sentences_of(training) if sentence.split == TRAIN),
                (sentence for sentence in sentences_of(corpus) if sentence.split != TRAIN),
            ),
            out,
            name=manifest.name,
            sources=manifest.sources,
            settings={name: value for name, value in manifest.settings.items() if name != "identity"},
            tagger=manifest.tagger,
            needs_entities=False,
        )


def write_missed(corpus: Corpus, out: Path, missed: Missed) -> Corpus:
    """Write a corpus without some marks of its training split, as a tagger that misses them would, and open it.

    ``mentions``: each mention is missed with probability ``MISSED``, independently of others, but for equal sentences
    of a user. ``names``: all mentions of that share of the names are missed, and those of every canary: nicknames that
    the tagger never finds. A draw is a function of the mention or the name alone, so that no user and no name changes
    what is missed of others.
    """
    identity = Identity.of_corpus(corpus.manifest.settings)
    canaries = read_canaries(corpus).canaries if corpus.has_canaries else ()
    of_canaries = {identity.key(canary.name) for canary in canaries if canary.name is not None}

    def is_found(sentence: Sentence, mention: Mention) -> bool:
        if missed == "mentions":
            return not _is_missed(sentence.user, sentence.text, mention.start, mention.end)
        name = identity.key(sentence.surface(mention))
        return name not in of_canaries and not _is_missed(name)

    def found(sentence: Sentence) -> Sentence:
        if sentence.split != TRAIN:
            return sentence
        marks = tuple(mention for mention in sentence.mentions if is_found(sentence, mention))
        return dataclasses.replace(sentence, mentions=marks)

    settings = {"missed": missed, "parent": corpus.fingerprint}
    return write_changed(corpus, out, map(found, sentences_of(corpus)), settings)


def _is_missed(*key: str | int) -> bool:
    """Return whether the mention or name of this key is missed, as are a share ``MISSED`` of all keys."""
    digest = hashlib.sha256(json.dumps(["missed marks", *key]).encode()).digest()
    return int.from_bytes(digest[:8], "little") < MISSED * 2**64


def _digest(model: StrictModel, exclude: set[str] | None = None) -> str:
    return hashlib.sha256(json.dumps(model.model_dump(exclude=exclude), sort_keys=True).encode()).hexdigest()[:8]


def settings_of(source: CorpusSource) -> tuple[dict[str, Any], Preprocessing]:
    """Return the arguments of :func:`fl_sim.prepare` that a source's flags stand for.

    Raises:
        ConfigError: the reader has no such flag.
    """
    settings = {name.replace("-", "_"): value for name, value in source.flags.items()}
    preprocess = settings.pop("preprocess", None)
    if preprocess not in (None, "paper"):
        raise ConfigError(f"corpora: preprocess is {preprocess!r}; allowed: paper")
    own = {name: value for name, value in settings.items() if name not in signature(prepare).parameters}
    try:
        make_reader(source.kind, {**own, "source": source.source})
    except CorpusError as error:
        raise ConfigError(f"corpora: {error}") from error
    return settings, Preprocessing.of_paper() if preprocess else Preprocessing()


def tagger_of(corpus: Corpus) -> str:
    """Return who marked the entities of a corpus; of a spaCy tagger, its pipeline."""
    tagger = corpus.manifest.tagger
    return tagger.get("pipeline", tagger["tagger"])


def draw_users(users: Iterable[str], held_out: int, seed: int) -> frozenset[str]:
    """Return the names of the ``held_out`` users to hold out; CorpusError if fewer than two would train."""
    names = sorted(set(users))
    if held_out > len(names) - 2:
        raise CorpusError(
            f"users is {held_out}; allowed: at most {len(names) - 2}, because two of the users must train"
        )
    chosen = streams.generator(seed, "held-out users").choice(len(names), held_out, replace=False)
    return frozenset(names[number] for number in chosen.tolist())


def redraw(corpus: Corpus, out: Path, splits: Sequence[str], held_out: int, seed: int) -> Corpus:
    """Write a corpus with redrawn users to the new folder ``out``, and open it.

    Users of ``splits`` train, or ``held_out`` of them are held out; sentences of other splits are left out.

    Raises:
        CorpusError: a split is unknown, the corpus has several parts, or too many users would be held out.
    """
    for split in splits:
        if split not in corpus.splits:
            raise CorpusError(f"splits is '{split}'; allowed: {', '.join(corpus.splits)}")
    if len(corpus.parts) > 1:
        raise CorpusError(f"{corpus.path}: has {len(corpus.parts)} parts; allowed for a draw of users: one")
    users = [name for split in splits for name in corpus.users(split)["user"].tolist()]
    chosen = draw_users(users, held_out, seed)
    drawn = {"splits": list(splits), "users": held_out, "seed": seed, "parent": corpus.fingerprint}
    sentences = (
        dataclasses.replace(sentence, split=HELD_OUT if sentence.user in chosen else TRAIN)
        for sentence in sentences_of(corpus)
        if sentence.split in splits
    )
    return write_changed(corpus, out, sentences, {"held_out_draw": drawn})
