"""Read the verbs and flags of a checkout's command line from its own ``--help``."""

from __future__ import annotations

import json

from checkout_comparison.checkouts import CommandError, Side
from checkout_comparison.differences import Items

# Requests the help of every verb and records flags, choices and defaults as data, instead of printing the help. Every
# verb is called, because its parser may be built only then.
_PROGRAM = """
import argparse, contextlib, importlib, io, json, sys

module, _, function = sys.argv.pop(1).partition(":")
main = getattr(importlib.import_module(module), function)
parsers = []

def record(parser, file=None):
    parsers.append(parser)

argparse.ArgumentParser.print_help = record

def plain(value):
    return value if value is None or isinstance(value, (bool, int, float, str, list, tuple)) else str(value)

def facts(action):
    return {
        "metavar": action.metavar if action.option_strings or action.metavar else action.dest,
        "nargs": action.nargs, "required": action.required, "const": plain(action.const),
        "choices": None if action.choices is None else sorted(map(str, action.choices)),
        "default": None if action.default is argparse.SUPPRESS else plain(action.default),
        "number": action.type.__name__ if action.type in (int, float) else None,
        "does": type(action).__name__.strip("_"),
    }

def walk(path):
    sys.argv = ["fl-sim", *path, "--help"]
    parsers.clear()
    with contextlib.suppress(SystemExit):
        main()
    parser = parsers[0]
    verbs[" ".join(path)] = flags = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name in sorted(action.choices):
                walk([*path, name])
        else:
            for name in action.option_strings or [action.metavar or action.dest]:
                flags[name] = facts(action)
    for number, group in enumerate(parser._mutually_exclusive_groups):
        names = sorted(action.option_strings[0] for action in group._group_actions if action.option_strings)
        flags["one of " + " ".join(names)] = {"required": group.required}

verbs = {}
walk([])
json.dump(verbs, sys.stdout)
"""


def read_flags(side: Side) -> dict[str, Items]:
    """Return, per verb ("" for the command itself, "represent run" for a verb of a verb), every flag and its facts."""
    result = side.run_python(_PROGRAM, "", side.target)
    if result.code != 0:
        raise CommandError(f"{side.label}: --help: {result.last_line}")
    return {
        verb: {name: json.dumps(facts, ensure_ascii=False, sort_keys=True) for name, facts in flags.items()}
        for verb, flags in json.loads(result.out).items()
    }
