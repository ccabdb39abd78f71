"""Turn the signature and the docstring of a function into the options of a command.

A command offers what a function of the API takes: names, types, choices, defaults and help come from the function.

>>> def shorten(corpus: str | Path, *, words: int = 5, mode: typing.Literal["cut", "drop"] = "cut", dry: bool = False):
...     '''Shorten the sentences of a corpus.
...
...     Args:
...         corpus: The corpus to read.
...         words: The longest sentence that stays.
...         mode: What happens to a longer one.
...         dry: Change nothing.
...     '''
>>> for parameter in parameters_of(shorten):
...     print(parameter.opts, parameter.type.name, getattr(parameter, "help", None))
['corpus'] corpus None
['--words'] integer The longest sentence that stays.
['--mode'] choice What happens to a longer one.
['--dry'] boolean Change nothing.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import itertools
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fl_sim.data_prep import SHIPPED_CORPORA

Function = TypeVar("Function", bound=Callable[..., Any])

_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ")
_ROLE = re.compile(r":\w+:`~?!?([^`]*)`")


class CorpusType(click.ParamType):
    """The name of a corpus that ships, or the folder of one that ``fl-sim prepare`` made; stays a text."""

    name = "corpus"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the corpora that ship, and leave folders to the shell."""
        shipped = [CompletionItem(name) for name in SHIPPED_CORPORA if name.startswith(incomplete)]
        return [*shipped, CompletionItem(incomplete, type="dir")]


class Words(click.Choice[str]):
    """A choice of words; any other is refused in the grammar of all mistakes."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message for a word that is not among them."""
        return f"is {value!r}; allowed: {', '.join(self.choices)}"


FILE: click.Path = click.Path(readable=False, path_type=Path)
FOLDER: click.Path = click.Path(file_okay=False, readable=False, path_type=Path)
CORPUS = CorpusType()


@dataclasses.dataclass(frozen=True)
class Look:
    """What an argument of that name looks like in every command.

    Attributes:
        flag: The flag; None for the name with dashes.
        metavar: The placeholder of the value.
        kind: The type; None for that of the annotation.
        positional: Whether the command takes it as an argument and not as an option.
    """

    flag: str | None = None
    metavar: str | None = None
    kind: click.ParamType | None = None
    positional: bool = False


LOOKS: Mapping[str, Look] = {
    "run": Look(metavar="RUN", kind=FOLDER, positional=True),
    "runs": Look(metavar="RUN", kind=FOLDER, positional=True),
    "folders": Look(metavar="[FOLDER]...", kind=FOLDER, positional=True),
    "corpus": Look(metavar="CORPUS", kind=CORPUS, positional=True),
    "config": Look(metavar="CONFIG", kind=FILE, positional=True),
    "text": Look(metavar="FILE", kind=FILE, positional=True),
    "noise_multiplier": Look(flag="--z", metavar="Z"),
    "rounds": Look(metavar="T"),
    "target_epsilon": Look(metavar="E"),
    "delta": Look(metavar="D"),
    "seed": Look(metavar="S"),
    "public": Look(metavar="CORPUS", kind=CORPUS),
    "raw": Look(metavar="CORPUS", kind=CORPUS),
    "gold": Look(metavar="CORPUS", kind=CORPUS),
    "attach": Look(metavar="CORPUS", kind=FOLDER),
}
"""The one look of what several commands take, by the name in the API (docs/configuration.md)."""


def options_of(source: Callable[..., Any], but: Sequence[str] = (), **flags: str) -> Callable[[Function], Function]:
    """Return a decorator that gives a command the arguments and options of a function or dataclass.

    Args:
        but: Names of parameters that the command leaves out.
        flags: Flags by the name of the parameter, where the look of the name is not meant.
    """
    parameters = parameters_of(source, but, **flags)

    def decorate(function: Function) -> Function:
        # where click keeps what its own decorators add, the last first
        function.__dict__.setdefault("__click_params__", []).extend(reversed(parameters))
        return function

    return decorate


def parameters_of(source: Callable[..., Any], but: Sequence[str] = (), **flags: str) -> list[click.Parameter]:
    """Return the arguments and options for the parameters of a function or dataclass, in their order."""
    described = meanings(source)
    return [
        _parameter(source, parameter, described.get(parameter.name, ""), flags.get(parameter.name))
        for parameter in inspect.signature(source).parameters.values()
        if parameter.name not in but and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]


def meanings(source: Callable[..., Any]) -> dict[str, str]:
    """Return what the sections ``Args`` and ``Attributes`` of a docstring say of each name, as plain words.

    >>> meanings(Look)["metavar"]
    'The placeholder of the value.'
    """
    described: dict[str, str] = {}
    names: list[str] = []
    within = False
    bases = reversed(inspect.getmro(source)[:-1]) if isinstance(source, type) else [source]
    for line in itertools.chain.from_iterable((inspect.getdoc(base) or "").splitlines() for base in bases):
        if line and not line.startswith(" "):
            within = line in ("Args:", "Attributes:")
        elif within and (entry := _ENTRY.match(line)):
            names = entry[1].split(", ")
            described |= dict.fromkeys(names, line[entry.end() :])
        elif within and line.strip():
            described |= {name: f"{described[name]} {line.strip()}" for name in names}
    described = {name: plain(words) for name, words in described.items()}
    # a symbol at the beginning, such as z or ε, gets no capital
    return {name: words[:1].upper() + words[1:] if words[1:2].isalpha() else words for name, words in described.items()}


def plain(words: str) -> str:
    """Return the words of a docstring without its markup."""
    return _ROLE.sub(lambda role: role[1].rpartition(".")[2], words).replace("``", "")


def _parameter(
    source: Callable[..., Any], parameter: inspect.Parameter, words: str, flag: str | None
) -> click.Parameter:
    name, default = parameter.name, parameter.default
    if isinstance(default, types.MemberDescriptorType):  # a dataclass with slots shows these
        default = parameter.empty
    look = LOOKS.get(name, Look()) if flag is None else Look()
    kind, several = _kind(source, parameter.annotation, look.kind)
    required = default is parameter.empty
    # the function's own default stands for no value at all
    own = (lambda ctx, parameter, value: value or default) if several and not required else None
    if look.positional:
        nargs = -1 if several else 1
        return click.Argument([name], type=kind, metavar=look.metavar, nargs=nargs, required=required, callback=own)
    declared = flag or look.flag or f"--{(name[:-1] if several and name.endswith('s') else name).replace('_', '-')}"
    if kind is click.BOOL:
        off = f"--no-{declared.removeprefix('--')}"
        given = off if default else declared
        words = f"Do not {words[:1].lower()}{words[1:]}" if default else words
        return click.Option([given, name], is_flag=True, flag_value=not default, default=default, help=words)
    settings: dict[str, Any] = {} if required or several else {"default": default}
    return click.Option(
        [declared, name],
        type=kind,
        metavar=look.metavar or _METAVARS.get(kind),
        multiple=several,
        required=required,
        show_default=default not in (None, "", ()) and not several and not required,
        callback=own,
        help=f"{words} May be repeated." if several else words,
        **settings,
    )


def _kind(
    source: Callable[..., Any], annotation: Any, known: click.ParamType | None = None
) -> tuple[click.ParamType, bool]:
    """Return click's type for an annotation, and whether it is that of a sequence.

    Raises:
        TypeError: A command line cannot give such a value; leave the parameter out.
    """
    if known is not None:
        return known, str(annotation).startswith(("Sequence[", "tuple["))
    if isinstance(annotation, str):
        annotation = eval(annotation, vars(sys.modules[source.__module__]))
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        kinds = [_kind(source, part) for part in parts if part is not type(None)]
        return next((kind for kind in kinds if kind[1]), kinds[-1])
    if origin is typing.Literal:
        return Words(parts), False
    if origin in (collections.abc.Sequence, tuple):
        return _kind(source, parts[0])[0], True
    if annotation not in _KINDS:
        raise TypeError(f"{annotation} of {source.__name__} has no form on a command line")
    return _KINDS[annotation], False


_KINDS: dict[Any, click.ParamType] = {
    str: click.STRING, int: click.INT, float: click.FLOAT, bool: click.BOOL, Path: FILE,
}  # fmt: skip
_METAVARS: dict[click.ParamType, str] = {click.INT: "N", click.FLOAT: "X", click.STRING: "TEXT"}
