"""Evaluate a tagger against a gold corpus: a prepared one, or tagged files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.ner.coverage import Estimate, Evaluation, GoldRecord
from fl_sim.data_prep.ner.open_sets import TEST, VALIDATION, sentences_of_corpus
from fl_sim.data_prep.ner.scoring import HIDING, UNKNOWN_NAME, ScoredSentence, Tally, check_resamples, figures, kind_of
from fl_sim.data_prep.readers.iob import iob_files, read_iob, read_iob_file
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import MANIFEST_FILE, fingerprint_of, record_of
from fl_sim.data_prep.taggers.categories import Selection
from fl_sim.data_prep.taggers.tagger import EVERYTHING, GOLD, Tagger

_BATCH = 2_000


@dataclass(frozen=True)
class GoldCorpus:
    """A split whose mentions are gold.

    Attributes:
        name: of the corpus.
        split: its name.
        fingerprint: SHA-256 of the data.
        sentences: starts a new reading at each call.
    """

    name: str
    split: str
    fingerprint: str
    sentences: Callable[[], Iterator[Sentence]]


def gold_corpus(source: str | Path, split: str | None = None) -> GoldCorpus:
    """Return a gold corpus.

    >>> gold_corpus("bundled", "validation").name
    'synthetic'

    Args:
        source: a folder made by ``fl-sim prepare``, ``bundled``, ``irc``, or tagged (IOB) files.
        split: by default test, else validation; all sentences of tagged files whose names name no splits.

    Raises:
        CorpusError: there is no such corpus or split, its marks come from a tagger, or its text was preprocessed.
    """
    if str(source) in SHIPPED_CORPORA or (Path(source) / MANIFEST_FILE).is_file():
        return _prepared_gold(Corpus.open(source), split)
    path = Path(source)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; --gold must be a prepared corpus or tagged files")
    return _tagged_gold(path, split)


def evaluate(
    tagger: Tagger,
    gold: GoldCorpus,
    *,
    selection: Selection = EVERYTHING,
    resamples: int = 1000,
    seed: int = 0,
    watch: Callable[[Iterable[Sentence]], Iterable[Sentence]] = lambda sentences: sentences,
) -> Evaluation:
    """Tag every sentence of ``gold`` and score the mentions; memory grows with users and entities, not with text.

    Args:
        tagger: made with the same ``selection``.
        gold: the gold corpus.
        selection: which gold mentions count.
        resamples: of the bootstrap.
        seed: of the bootstrap.
        watch: sees the sentences as they pass, for progress.

    Raises:
        CorpusError: the corpus has no mention that counts, or ``resamples`` is less than 1.
    """
    check_resamples(resamples)
    labels = {mention.label for sentence in gold.sentences() for mention in sentence.mentions}
    counted = {label for label in labels if selection.keeps(label, labels)}
    tally = Tally(frozenset(kind_of(label) for label in counted) - {UNKNOWN_NAME})
    sensitive = mentions = flagged = 0
    for scored in _scored_sentences(tagger, watch(gold.sentences()), counted):
        tally.add(scored)
        sensitive += bool(scored.gold)
        mentions += len(set(scored.gold))
        flagged += bool(scored.tagged)
    if not mentions:
        raise CorpusError(f"{gold.name}: split {gold.split} marks no entity, so there is nothing to measure on")
    estimates = {
        name: Estimate(**figure.record()) for name, figure in figures(tally, resamples=resamples, seed=seed).items()
    }
    return Evaluation(
        tagger=tagger.describe(),
        gold=GoldRecord(
            name=gold.name,
            split=gold.split,
            fingerprint=gold.fingerprint,
            clusters=len(tally.clusters),
            sentences=tally.sentences,
            sensitive_sentences=sensitive,
            mentions=mentions,
            entities=tally.num_entities,
        ),
        hiding={name: estimates[(name,)] for name in HIDING},
        flagged=flagged / tally.sentences,
        flag_precision=estimates[("flag_precision",)],
        matching=_matching(estimates),
        outside_scheme=tally.outside_scheme,
        resamples=resamples,
        seed=seed,
    )


def _scored_sentences(
    tagger: Tagger, sentences: Iterable[Sentence], labels: Collection[str]
) -> Iterator[ScoredSentence]:
    """Yield each sentence with its gold mentions of ``labels`` and the tagger's mentions."""
    remaining = iter(sentences)
    while batch := list(islice(remaining, _BATCH)):
        for sentence, tagged in zip(batch, tagger.tag(sentence.text for sentence in batch), strict=True):
            gold = tuple(mention for mention in sentence.mentions if mention.label in labels)
            yield ScoredSentence(sentence.user, sentence.text, gold, tagged)


def _matching(estimates: Mapping[tuple[str, ...], Estimate]) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Return the estimates with names of three parts: match → kind → metric."""
    nested: dict[str, dict[str, dict[str, Estimate]]] = {}
    for name, estimate in estimates.items():
        if len(name) == 3:
            match, kind, metric = name
            nested.setdefault(match, {}).setdefault(kind, {})[metric] = estimate
    return nested


def _prepared_gold(corpus: Corpus, split: str | None) -> GoldCorpus:
    made_by = corpus.manifest.tagger.get("tagger", "unknown")
    if made_by != GOLD:
        raise CorpusError(f"{corpus.path}: its entities were found by tagger {made_by!r}; --gold needs gold marks")
    if any(corpus.manifest.settings.get(name) for name in ("lower_case", "strip_punctuation")):
        raise CorpusError(
            f"{corpus.path}: its text was preprocessed; a tagger sees text as it was written, so prepare the --gold "
            "corpus without --preprocess, --lower-case and --strip-punctuation"
        )
    chosen = _choose_split(split, corpus.splits, corpus.path)
    return GoldCorpus(corpus.manifest.name, chosen, corpus.fingerprint, lambda: sentences_of_corpus(corpus, chosen))


def _tagged_gold(path: Path, split: str | None) -> GoldCorpus:
    files = iob_files(path)
    fingerprint = fingerprint_of({file.name: record_of(file) for file in files})
    name = path.name.removesuffix(".xz").removesuffix(".gz")
    if split is None and not any(files.values()):
        return GoldCorpus(name, "all", fingerprint, lambda: (s for f in files for s in read_iob_file(f, "all")))
    present = tuple(dict.fromkeys(sentence.split for sentence in read_iob(path)))
    chosen = _choose_split(split, present, path)
    return GoldCorpus(name, chosen, fingerprint, lambda: (s for s in read_iob(path) if s.split == chosen))


def _choose_split(split: str | None, present: tuple[str, ...], where: Path) -> str:
    wanted = [split] if split is not None else [TEST, VALIDATION]
    for candidate in wanted:
        if candidate in present:
            return candidate
    raise CorpusError(f"{where}: no split {' or '.join(wanted)}, only {', '.join(present)}; choose one with --split")
