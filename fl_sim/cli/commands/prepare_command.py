"""``fl-sim prepare KIND``: turn raw text into a prepared corpus, a folder of Parquet files with a manifest.

There is one verb per reader that ships, and one per plug-in when it is named: a broken plug-in does not affect others.

>>> flags = [flag for parameter in prepare.get_command(None, "csv").params for flag in parameter.opts]
>>> flags[:3]
['--source', '--text-column', '--user-column']
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from fl_sim.api import corpora
from fl_sim.cli.from_signature import FOLDER, LOOKS, parameters_of
from fl_sim.cli.progress_bar import counting
from fl_sim.cli.verbs import Verb, VerbGroup, as_json, quiet, with_flags
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.cleaning import Preprocessing
from fl_sim.data_prep.readers.reader import READERS, Reader, what_it_reads
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.manifest import how_to_prepare
from fl_sim.plugins import PluginError

if TYPE_CHECKING:
    from fl_sim.data_prep.prepare import PreparedCorpus
    from fl_sim.data_prep.readers.reader import RawCorpus
    from fl_sim.data_prep.records import Sentence

_OBJECTS = ("kind", "source", "out", "identity", "preprocessing", "progress", "observer")
_SECONDS_PER_TICK = 0.2


class _Kinds(VerbGroup):
    """The kinds of raw corpora."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the readers."""
        return READERS.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a reader; None if there is none of that name."""
        return _command(cmd_name, READERS.load(cmd_name)) if READERS.knows(cmd_name) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command of a reader; a file in its place gets the command that reads it."""
        if (path := Path(args[0])).is_file():
            raise CorpusError(f"{path} is a file, where a kind is meant; allowed: {how_to_prepare(path)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the readers; a plug-in is not imported for its help."""
        with formatter.section("Kinds"):
            formatter.write_dl(list(_helps().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the readers that begin so; a plug-in is not imported for it."""
        kinds = [CompletionItem(name, help=help) for name, help in _helps().items() if name.startswith(incomplete)]
        return [*kinds, *click.Command.shell_complete(self, ctx, incomplete)]


def _helps() -> dict[str, str]:
    """Return what every reader reads, by name."""
    return {
        name: what_it_reads(READERS.load(name)).rstrip(".") if name in READERS.built_in else "a plug-in"
        for name in READERS.names()
    }


@click.group(cls=_Kinds)
def prepare() -> None:
    """Turn raw text into a prepared corpus: a folder of Parquet files with a manifest (docs/corpora.md)."""


def _command(kind: str, reader: type[Reader]) -> click.Command:
    """Return the command of a reader: its own flags, and those of every corpus."""
    flags = {name: f"--{name}" for name, look in LOOKS.items() if look.positional}  # a reader has no arguments
    own = sorted(parameters_of(reader, **flags), key=lambda parameter: parameter.name != "source")
    names = [str(parameter.name) for parameter in own]

    def run(**values: Any) -> None:
        _prepare(kind, {name: values.pop(name) for name in names}, **values)

    command: click.Command = Verb(kind, params=[*_COMMON], callback=run, help=what_it_reads(reader))
    command = quiet(as_json(command))
    taken = {flag for parameter in command.params for flag in parameter.opts}
    for flag in (flag for parameter in own for flag in parameter.opts if flag in taken):
        raise PluginError(f"reader '{kind}' has the flag {flag}, as fl-sim prepare itself; allowed: another flag")
    for source in (parameter for parameter in own if parameter.name == "source"):
        source.multiple, source.callback = True, _only
    command.params[:0] = own
    return command


def _only(ctx: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Return the value of a flag; refuse a second one, which would silently take the place of the first."""
    if len(values) > 1:
        raise click.UsageError(f"--source is {values[0]} and {values[1]}; allowed: one of them, or a file with both")
    return values[0] if values else None


_COMMON: list[click.Parameter] = [
    click.Option(["--out"], type=FOLDER, required=True, metavar="DIR", help="The corpus's folder."),
    *parameters_of(corpora.prepare, but=_OBJECTS),
    *parameters_of(Identity, steps="--identity"),
    *parameters_of(Preprocessing),
]
"""The flags of every kind, besides those that the commands share."""


def _prepare(kind: str, own: dict[str, Any], as_json: bool, quiet: bool, **values: Any) -> None:
    """Prepare the corpus and print its counts."""
    done: list[PreparedCorpus] = []
    source = click.get_current_context().get_parameter_source
    as_always = all(source(name) is ParameterSource.DEFAULT for name in Identity.__dataclass_fields__)
    identity = Identity(*(values.pop(name) for name in Identity.__dataclass_fields__))
    corpora.prepare(
        kind,
        own.pop("source", None),
        progress=lambda raw: _progress(raw, quiet),
        observer=done.append,
        identity=None if as_always else identity,
        preprocessing=Preprocessing(*(values.pop(name) for name in Preprocessing.__dataclass_fields__)),
        **values,
        **own,
    )
    if values["append"] and values["joined_at"] is None and not done[0].cached:
        joins = done[0].corpus.parts[-1].manifest.joined_at
        print(
            f"note: the new part takes part from round {joins}, so ε counts every round from there on; "
            "--joined-at states a later one",
            file=sys.stderr,
        )
    _report(done[0], as_json=as_json)


@contextmanager
def _progress(raw: RawCorpus, quiet: bool) -> Iterator[Callable[[Iterable[Sentence]], Iterator[Sentence]]]:
    """Yield a function that passes sentences on and shows count and time left.

    The time left is estimated from the share of the sources that has been read.
    """
    from fl_sim.data_prep.store.textfiles import bytes_read

    sources = list(raw.sources.values())
    total = sum(path.stat().st_size for path in sources) or None
    with counting("reading and tagging", quiet) as show:

        def watch(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
            count, last = 0, time.monotonic()
            for count, sentence in enumerate(sentences, start=1):
                if (now := time.monotonic()) - last > _SECONDS_PER_TICK:
                    last = now
                    show(sum(map(bytes_read, sources)), total, f"{count:,} sentences")
                yield sentence
            show(total or count, total, f"{count:,} sentences are read, writing them and the index of their entities")

        yield watch


def _report(prepared: PreparedCorpus, as_json: bool) -> None:
    from fl_sim.data_prep.readers.cleaning import Note
    from fl_sim.data_prep.taggers.tagger_registry import unsought_kinds

    corpus, notes = prepared.corpus, prepared.corpus.parts[-1].manifest.notes
    counts = {split: record.model_dump() for split, record in corpus.manifest.splits.items()}
    missing = unsought_kinds(corpus)
    warnings = [*corpus.warnings, *(with_flags(text, click.get_current_context().obj) for text in prepared.warnings)]
    if as_json:
        report = {"corpus": str(corpus.path), "fingerprint": corpus.fingerprint, "splits": counts, "notes": notes}
        report |= {"not_looked_for": missing, "warnings": warnings}
        print(json.dumps(report | {"parts": len(corpus.parts), "cached": prepared.cached, "reused": prepared.reused}))
        return
    for split, count in counts.items():
        figures = ", ".join(f"{number:,} {what}" for what, number in count.items())
        print(f"{split}: {figures}")
    for name, times in notes.items():
        print(f"survived: {times:,} {Note(name).meaning}")
    if missing:
        print(f"nobody looked for: {', '.join(missing)}")
    for warning in warnings:
        print(f"warning: {warning}")
    if prepared.reused:
        print(f"continued after {prepared.reused:,} sentences that were tagged before")
    done = "nothing to do: the same corpus is there already," if prepared.cached else "prepared"
    print(f"{done} {corpus.path}; next: fl-sim corpus stats {corpus.path}")
