"""The flags that several commands share: the contribution bound of an entity, keys of a configuration, files to write.

>>> @entity_bound()
... def show(entity):
...     print(entity)
>>> click.command(show).main(["--entity-users", "15"], standalone_mode=False)
(15, 1, None)
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fl_sim.cli.from_signature import CORPUS, FILE, FOLDER, LOOKS, Function, Look, options_of
from fl_sim.config_keys import SHORT_NAMES
from fl_sim.files import check_replaceable, open_regular, remove_temporaries
from fl_sim.formats import csv_cell, format_delta

if TYPE_CHECKING:
    import pandas as pd

_LISTED = re.compile(r"([\w-]+(?:, [\w-]+)+)(?:, or an import path.*)?")
_PATHS = {"corpus.path": CORPUS, "out": FOLDER, "anchor": FILE}


def entity_bound(users: int | None = 1) -> Callable[[Function], Any]:
    """Return a decorator that adds the flags of an entity's contribution bound, given together as ``entity``.

    Args:
        users: The default number of users that mention it; None for all.
    """
    flags = (
        click.option(
            "--entity-users", type=int, default=users, show_default=users is not None, metavar="F",
            help=f"The most users that mention the protected entity{'' if users else ' (all by default)'}.",
        ),
        click.option(
            "--entity-sentences", type=int, default=1, show_default=True, metavar="N",
            help="The most sentences of one user that mention it.",
        ),
        click.option(
            "--entity-total", type=int, metavar="N",
            help="The most sentences of all users together that mention it.",
        ),
    )  # fmt: skip

    def decorate(function: Function) -> Any:
        @functools.wraps(function)
        def folded(
            *args: Any, entity_users: int | None, entity_sentences: int, entity_total: int | None, **settings: Any
        ) -> Any:
            return function(*args, entity=(entity_users, entity_sentences, entity_total), **settings)

        for flag in reversed(flags):
            folded = flag(folded)
        return folded

    return decorate


def mechanism(function: Function) -> Function:
    """Add the flags of the settings of a round: strategy, noise, rates, clips."""
    from fl_sim.api import accounts

    others = ("rounds", "delta", "known", "entity_bound", "user_sentences", "entity", "epoch_rounds", "users")
    return options_of(accounts.account, but=others)(function)


def print_json(value: Any) -> None:
    """Print a value as one JSON object; inf and nan are texts, which JSON does not have."""
    from fl_sim.storage.run_folder import encode

    print(json.dumps(encode(value), ensure_ascii=False, allow_nan=False))


def note_on_delta(delta: float, source: str) -> None:
    """Say on standard error which δ was taken, because none was given."""
    print(f"note: δ is {format_delta(delta)}, {source}; --delta states ε at another", file=sys.stderr)


def is_default(name: str) -> bool:
    """Return whether an option of the command at work was left out."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (None, click.core.ParameterSource.DEFAULT)


def _completed_value(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the words that the key of a flag allows, none of many; leave files and folders to the shell."""
    from fl_sim.clients.models.architectures.model_source import MODELS
    from fl_sim.config import run_keys

    key = str(parameter.name).replace("__", ".")
    if key in _PATHS:
        return _PATHS[key].shell_complete(ctx, parameter, incomplete)
    words = list(MODELS.built_in)
    if key != "model.name":
        listed = _LISTED.fullmatch(run_keys()[key].allowed)
        words = listed[1].split(", ") if listed else []
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _completed_key(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of a configuration that begin so, as the beginning of ``KEY=VALUE``."""
    from fl_sim.config import run_keys

    return [f"{key}=" for key in run_keys() if key.startswith(incomplete)]


assignments: Callable[[Any], Any] = click.option(
    "--set", "assignments", multiple=True, shell_complete=_completed_key, metavar="KEY=VALUE",
    help="Any other key of the configuration, such as model.hidden=256. May be repeated.",
)  # fmt: skip

_PLACEHOLDERS = {
    "corpus": "CORPUS", "strategy": "NAME", "rounds": "T", "q_u": "RATE", "q_e": "RATE", "q_s": "RATE",
    "noise_multiplier": "Z", "clip_norm": "C", "user_cap": "W", "clipping": "WHAT", "estimator": "NAME",
    "noise": "SCALE", "delta": "D", "target_epsilon": "E", "target_unit": "UNIT",
    "epsilon_budget": "E", "known": "WHAT", "entity_bound": "K", "user_sentences": "M", "secure_noise": "",
    "model": "NAME",    "engine": "NAME", "nodes": "K", "seed": "S", "out": "DIR", "anchor": "FILE",
}  # fmt: skip

KEYS: Mapping[str, tuple[str, str]] = {
    key: (LOOKS.get(name, Look()).flag or f"--{name.replace('_', '-')}", _PLACEHOLDERS[name])
    for name, key in SHORT_NAMES.items()
}
"""The flags of configuration keys, with the placeholders of their values; one without a placeholder is a switch."""


def configuration_flags(but: Sequence[str] = ()) -> Callable[[Function], Any]:
    """Return a decorator that adds the flags of configuration keys and ``--set``, given together as ``overrides``.

    A flag has the help of its key.

    Args:
        but: Keys without a flag.
    """
    keys = {key: look for key, look in KEYS.items() if key not in but}

    def decorate(function: Function) -> Any:
        @functools.wraps(function)
        def collected(*args: Any, assignments: Sequence[str], **values: Any) -> Any:
            from fl_sim.config import add_setting, parse_assignments

            overrides = parse_assignments(assignments)
            for key in keys:
                text = values.pop(key.replace(".", "__"))
                if text is not None:
                    add_setting(overrides, key, text)
            return function(*args, overrides=overrides, **values)

        collected = assignments(collected)
        for key in reversed(keys):
            collected = _key_flag(key)(collected)
        return collected

    return decorate


def _key_flag(key: str) -> Callable[[Any], Any]:
    from fl_sim.config import run_keys

    flag, metavar = KEYS[key]
    about = run_keys()[key]
    default = f", default {about.default}" if about.default else ""
    words = f"{about.meaning} ({about.allowed}{default})"
    name = key.replace(".", "__")
    if not metavar:
        return click.option(flag, name, flag_value="true", default=None, help=words)
    return click.option(flag, name, shell_complete=_completed_value, metavar=metavar, help=words)


PAGE, TABLE = "<!doctype html>", "run,"
"""How a page of HTML begins, and a table of runs."""


def check_writable(
    flag: str, path: Path | None, *, new_folder: bool = False, new: bool = False, begins: str = ""
) -> None:
    """Raise ConfigError if no file can be written at ``path``, which the flag of that name gave; None is nothing.

    A link or a device is refused, too, and a file of a run or a corpus that is no picture and no page. What killed
    commands left of the same file beside it is removed.

    Args:
        new_folder: whether the folder may be missing, because it is made.
        new: whether nothing may be there, because what is there may be the user's.
        begins: how a file begins that the same command wrote before; one that begins otherwise is the user's.

    >>> check_writable("html", None)
    >>> check_writable("html", Path("no/such/folder/page.html"))
    Traceback (most recent call last):
    fl_sim.config.ConfigError: html is no/such/folder/page.html; allowed: a file in a folder that exists and can be
    written
    >>> check_writable("out", Path("/dev/null"))
    Traceback (most recent call last):
    fl_sim.config.ConfigError: out is /dev/null, a device; allowed: a regular file, or a new one
    """
    from fl_sim.config import ConfigError

    if path is None:
        return
    if not new_folder and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
        raise ConfigError(f"{flag} is {path}; allowed: a file in a folder that exists and can be written")
    try:
        check_replaceable(path)
    except OSError as error:
        words = (error.strerror or str(error)).partition(";")[0]
        raise ConfigError(f"{flag} is {path}, {words}; allowed: a regular file, or a new one") from error
    if path.exists():
        if new:
            raise ConfigError(f"{flag} is {path}, which exists; allowed: a new file")
        if _is_of_run_or_corpus(path):
            raise ConfigError(f"{flag} is {path}, a file of a run or a corpus; allowed: another file")
        with open_regular(path) as file:
            head = file.read(len(begins.encode()))
        if head and head != begins.encode():
            raise ConfigError(f"{flag} is {path}, which holds something else; allowed: a new file")
    remove_temporaries(path.parent, path.name)


def _is_of_run_or_corpus(path: Path) -> bool:
    """Return whether a file lies in the folder of a run or a prepared corpus, or below, and is no picture or page."""
    from fl_sim.api.runs import PICTURES
    from fl_sim.data_prep.store.manifest import MANIFEST_FILE
    from fl_sim.strategies.ledger import LEDGER_FILE

    marks = ("environment.json", "metrics.jsonl", LEDGER_FILE, MANIFEST_FILE)
    folders = list(path.absolute().parents)[:2]
    return path.suffix not in (".html", *PICTURES) and any((each / mark).exists() for each in folders for mark in marks)


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV in which no spreadsheet takes a text for a formula (:func:`~fl_sim.formats.csv_cell`)."""
    return table.map(csv_cell).rename(columns=csv_cell).to_csv(index=False)
