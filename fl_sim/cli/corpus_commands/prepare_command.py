"""Turn raw text into a prepared corpus: a folder of Parquet files with a manifest.

``fl-sim prepare KIND`` has one subcommand per built-in reader, and one per plug-in when it is named.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fl_sim.cli.corpus_flags import (
    add_cleaning,
    add_identity,
    add_preprocessing,
    add_tagger,
    cleaning_of,
    identity_of,
    marking_of,
    preprocessing_of,
)
from fl_sim.data_prep.readers.reader_registry import READERS, Reader, load_reader, read_raw_corpus
from fl_sim.plugins import PluginError

if TYPE_CHECKING:
    from fl_sim.data_prep.canaries import CanarySettings
    from fl_sim.data_prep.prepare import PreparedCorpus
    from fl_sim.data_prep.readers.raw_corpora import RawCorpus
    from fl_sim.data_prep.records import Sentence


class KindParsers(argparse._SubParsersAction):
    """Parse ``KIND`` and its flags; pass the class to ``add_subparsers(action=…)``.

    A plug-in is imported when it is named, so a broken plug-in does not affect other kinds.

    >>> parser = argparse.ArgumentParser()
    >>> kinds = parser.add_subparsers(dest="kind", action=KindParsers)
    >>> args = parser.parse_args(["conll2003", "--source", "conll", "--out", "corpora/conll"])
    >>> args.kind, args.out.name
    ('conll2003', 'conll')
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.choices = cast(dict[str, Any], _Choices(self._name_parser_map))
        for name, path in READERS.built_in.items():
            self._add_kind(name, pkgutil.resolve_name(path)())

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Parse the flags of the kind ``values[0]``."""
        name = values[0] if values else ""
        if name not in self._name_parser_map:
            try:
                self._add_kind(name, load_reader(name))
            except PluginError as error:
                raise argparse.ArgumentError(None, str(error)) from error
        super().__call__(parser, namespace, values, option_string)

    def _add_kind(self, name: str, reader: Reader) -> None:
        parser = self.add_parser(name, help=reader.help, description=reader.help)
        reader.add_arguments(parser)
        parser.add_argument("--out", type=Path, required=True, help="the corpus's folder")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--quiet", action="store_true", help="show no progress")
        _add_place(parser)
        _add_canaries(parser)
        add_identity(parser)
        add_preprocessing(parser)
        add_cleaning(parser)
        add_tagger(parser)

    def _get_subactions(self) -> list[argparse.Action]:
        """Return the entries of ``--help``: the built-in readers, then the installed plug-ins."""
        plugins = [name for name in READERS.names() if name not in READERS.built_in]
        return [*super()._get_subactions(), *(self._ChoicesPseudoAction(name, (), "a plug-in") for name in plugins)]


class _Choices:
    """The allowed kinds: built-in readers and plug-ins."""

    def __init__(self, parsers: dict[str, argparse.ArgumentParser]) -> None:
        self._parsers = parsers

    def __contains__(self, name: str) -> bool:
        return name in self._parsers or READERS.knows(name)

    def __iter__(self) -> Iterator[str]:
        return iter(READERS.names())


def raw_corpus(args: argparse.Namespace) -> RawCorpus:
    """Return the corpus that ``args.kind`` and its flags describe.

    Raises:
        CorpusError: flags or sources are bad.
        PluginError: the reader cannot be imported, has the wrong interface, or a name that is taken twice.
    """
    return read_raw_corpus(args.kind, args, cleaning_of(args)).with_preprocessing(preprocessing_of(args))


def canaries_of(args: argparse.Namespace) -> CanarySettings | None:
    """Return which canaries to plant; None for none.

    Raises:
        CorpusError: a seed is given without a number, or a number is out of range.
    """
    from fl_sim.data_prep.canaries import CanarySettings
    from fl_sim.data_prep.records import CorpusError

    if args.canaries is None:
        if args.canary_seed is not None:
            raise CorpusError("--canary-seed is given without --canaries; allowed: with --canaries")
        return None
    return CanarySettings(args.canaries, args.canary_seed or 0)


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("if the folder holds a corpus already (docs/corpora.md)")
    either = group.add_mutually_exclusive_group()
    either.add_argument(
        "--overwrite", action="store_true", help="replace the corpus there when the new one is finished"
    )
    either.add_argument("--append", action="store_true", help="add to the corpus there; its ids and files stay")
    group.add_argument(
        "--joined-at",
        type=int,
        metavar="ROUND",
        help="with --append: the first round that may sample the new part (default: that of the part before, 1 for the "
        "first); an entity joins then only if no earlier part mentions it, detected or not",
    )


def _add_canaries(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("canaries: made-up secrets that measure what a model memorises (docs/audit.md)")
    group.add_argument(
        "--canaries", type=int, metavar="N", help="plant N, each in the training split with probability ½"
    )
    group.add_argument(
        "--canary-seed", type=int, metavar="SEED", help="of secrets, names and which are included (default 0)"
    )


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
    from fl_sim.cli.progress_bar import counting
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
