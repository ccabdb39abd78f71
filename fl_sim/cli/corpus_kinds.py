"""Parse ``fl-sim prepare KIND``: one subcommand per built-in reader, and one per plug-in when it is named.

>>> parser = argparse.ArgumentParser()
>>> kinds = parser.add_subparsers(dest="kind", action=KindParsers)
>>> args = parser.parse_args(["conll2003", "--source", "conll", "--out", "corpora/conll"])
>>> args.kind, args.out.name
('conll2003', 'conll')
"""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fl_sim.cli.identity_flags import add_identity
from fl_sim.cli.tagger_flags import add_tagger
from fl_sim.cli.text_flags import add_cleaning, add_preprocessing, cleaning_of, preprocessing_of
from fl_sim.data_prep.readers.reader_registry import READERS, Reader, load_reader, read_raw_corpus
from fl_sim.plugins import PluginError

if TYPE_CHECKING:
    from fl_sim.data_prep.canaries import CanarySettings
    from fl_sim.data_prep.readers.raw_corpora import RawCorpus


class KindParsers(argparse._SubParsersAction):
    """Parse ``KIND`` and its flags; pass the class to ``add_subparsers(action=…)``.

    A plug-in is imported when it is named, so a broken plug-in does not affect other kinds.
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
        if not getattr(reader, "generated", False):
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
    group = parser.add_argument_group("if the folder holds a corpus already (docs/corpora-scale.md)")
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
    group = parser.add_argument_group(
        "canaries: made-up secrets that measure what a model memorises (docs/canaries.md)"
    )
    group.add_argument(
        "--canaries", type=int, metavar="N", help="plant N, each in the training split with probability ½"
    )
    group.add_argument(
        "--canary-seed", type=int, metavar="SEED", help="of secrets, names and which are included (default 0)"
    )
