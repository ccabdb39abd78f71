"""The verbs and flags of a checkout's command line, from its own ``--help``."""

from __future__ import annotations

import json

from checkout_comparison.checkouts import CommandError, Side
from checkout_comparison.differences import Items

# Asks every verb for its help, and has argparse say what it is about to print: flags, choices and defaults as data.
# A verb's parser may be made only when the verb is called, so each is called.
_PROGRAM = """
import argparse, contextlib, importlib, io, json, sys

module, _, function = sys.argv.pop(1).partition(":")
main = getattr(importlib.import_module(module), function)
asked = []

def note(parser, file=None):
    asked.append(parser)

argparse.ArgumentParser.print_help = note

def shown(value):
    return value if value is None or isinstance(value, (bool, int, float, str, list, tuple)) else str(value)

def described(action):
    return {
        "metavar": action.metavar if action.option_strings or action.metavar else action.dest,
        "nargs": action.nargs, "required": action.required, "const": shown(action.const),
        "choices": None if action.choices is None else sorted(map(str, action.choices)),
        "default": None if action.default is argparse.SUPPRESS else shown(action.default),
        "number": action.type.__name__ if action.type in (int, float) else None,
        "does": type(action).__name__.strip("_"),
    }

def walk(path):
    sys.argv = ["fl-sim", *path, "--help"]
    asked.clear()
    with contextlib.suppress(SystemExit):
        main()
    parser = asked[0]
    found[" ".join(path)] = flags = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name in sorted(action.choices):
                walk([*path, name])
        else:
            for name in action.option_strings or [action.metavar or action.dest]:
                flags[name] = described(action)
    for number, group in enumerate(parser._mutually_exclusive_groups):
        names = sorted(action.option_strings[0] for action in group._group_actions if action.option_strings)
        flags["one of " + " ".join(names)] = {"required": group.required}

found = {}
walk([])
json.dump(found, sys.stdout)
"""


def read_flags(side: Side) -> dict[str, Items]:
    """Per verb ("" for the command itself, "represent run" for one of a verb): every flag, and what it takes."""
    done = side.run_python(_PROGRAM, "", side.target)
    if done.code != 0:
        raise CommandError(f"{side.label}: --help: {done.last_line}")
    return {
        verb: {name: json.dumps(facts, ensure_ascii=False, sort_keys=True) for name, facts in flags.items()}
        for verb, flags in json.loads(done.out).items()
    }
