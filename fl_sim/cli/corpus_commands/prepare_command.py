"""Turn raw text into a prepared corpus: a folder of Parquet files with a manifest."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fl_sim.cli.corpus_kinds import KindParsers, canaries_of, raw_corpus
from fl_sim.cli.identity_flags import identity_of
from fl_sim.cli.tagger_flags import marking_of

if TYPE_CHECKING:
    from fl_sim.data_prep.prepare import PreparedCorpus
    from fl_sim.data_prep.readers.raw_corpora import RawCorpus
    from fl_sim.data_prep.records import Sentence

_SECONDS_PER_TICK = 0.2
_TICKS_OF_RATE = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim prepare``."""
    parser.add_subparsers(dest="kind", metavar="KIND", required=True, action=KindParsers)


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus and print its counts; return the exit code 0."""
    from fl_sim.data_prep.prepare import append, prepare
    from fl_sim.data_prep.records import CorpusError

    if args.joined_at is not None and not args.append:
        raise CorpusError(f"--joined-at is {args.joined_at} without --append; allowed: with it")
    if args.append and args.canaries is not None:
        raise CorpusError("--canaries is given with --append; allowed: when the corpus is made, which fixes N")
    canaries = canaries_of(args)
    raw = raw_corpus(args)
    marking = marking_of(args, raw.has_gold) if "tagger" in args else None
    with _progress(raw, args.quiet) as watch:
        how: dict[str, Any] = {"marking": marking, "identity": identity_of(args), "watch": watch}
        if args.append:
            prepared = append(raw, args.out, joined_at=args.joined_at, **how)
            _say_when_it_joins(args, prepared)
        else:
            prepared = prepare(raw, args.out, canaries=canaries, overwrite=args.overwrite, **how)
    _report(prepared, as_json=args.json)
    return 0


@contextmanager
def _progress(raw: RawCorpus, quiet: bool) -> Iterator[Callable[[Iterable[Sentence]], Iterator[Sentence]]]:
    """Yield a function that passes sentences on and shows count, rate and time left.

    The time left is estimated from the share of the sources that has been read.
    """
    from fl_sim.cli.counting import counting
    from fl_sim.data_prep.store.textfiles import bytes_read

    sources = list(raw.sources.values())
    total = sum(path.stat().st_size for path in sources) or None
    with counting("reading and tagging", quiet) as show:

        def watch(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            lately = deque([(time.monotonic(), 0)], maxlen=_TICKS_OF_RATE)
            count = 0
            for count, sentence in enumerate(sentences, start=1):
                now = time.monotonic()
                if now - lately[-1][0] > _SECONDS_PER_TICK:
                    rate = (count - lately[0][1]) / (now - lately[0][0])
                    lately.append((now, count))
                    show(sum(map(bytes_read, sources)), total, f"{count:,} sentences, {rate:,.0f} a second")
                yield sentence
            show(total or count, total, f"{count:,} sentences are read, writing them and the index of their entities")

        yield watch


def _say_when_it_joins(args: argparse.Namespace, prepared: PreparedCorpus) -> None:
    if args.joined_at is None:
        joins = prepared.corpus.parts[-1].manifest.joined_at
        print(
            f"note: the new part takes part from round {joins}, so ε counts every round from there on; "
            "--joined-at states a later one",
            file=sys.stderr,
        )


def _report(prepared: PreparedCorpus, as_json: bool) -> None:
    from fl_sim.data_prep.readers.cleaning import MEANING, Note
    from fl_sim.data_prep.taggers.unsought_kinds import unsought_kinds

    corpus, notes = prepared.corpus, prepared.corpus.parts[-1].manifest.notes
    counts = {split: record.model_dump() for split, record in corpus.manifest.splits.items()}
    missing = unsought_kinds(corpus)
    if as_json:
        report = {"corpus": str(corpus.path), "fingerprint": corpus.fingerprint, "splits": counts, "notes": notes}
        report |= {"not_looked_for": missing, "warnings": [*corpus.warnings, *prepared.warnings]}
        print(json.dumps(report | {"parts": len(corpus.parts), "cached": prepared.cached, "reused": prepared.reused}))
        return
    for split, count in counts.items():
        figures = ", ".join(f"{number:,} {what}" for what, number in count.items())
        print(f"{split}: {figures}")
    for name, times in notes.items():
        print(f"survived: {times:,} {MEANING[Note(name)]}")
    if missing:
        print(f"nobody looked for: {', '.join(missing)}")
    for warning in (*corpus.warnings, *prepared.warnings):
        print(f"warning: {warning}")
    if prepared.reused:
        print(f"continued after {prepared.reused:,} sentences that were tagged before")
    done = "nothing to do: the same corpus is there already," if prepared.cached else "prepared"
    print(f"{done} {corpus.path}; next: fl-sim stats {corpus.path}")
