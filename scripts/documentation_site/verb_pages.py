"""Write a page per verb of ``fl-sim`` from its argparse parser.

>>> "| `--json` |" in verb_pages()["stats"]
True
>>> escaped("a < b | c")
'a &lt; b \\\\| c'
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from functools import cache

from fl_sim.cli.main import VERBS, build_parser

_WIDTH = 100
_TOP = 2  # the level of the headings of a verb without subcommands
_CODE = re.compile(r"(`+[^`]+`+)")
_PAGE_NAME = re.compile(r"(?<![\w/])docs/([\w/-]+\.md)")
_COUNTS = {"?": " (optional)", "*": " (any number)", "+": " (one or more)"}
_NOT_SHOWN = (argparse._SubParsersAction, argparse._HelpAction)
_GROUPS = {"corpora": "Corpora", "runs": "Runs", "privacy": "Privacy", "research": "Research"}


@cache
def verb_pages() -> dict[str, str]:
    """Return the Markdown of every verb's page by the verb's name, in the order of the help screen."""
    verbs = _verbs_of(build_parser())
    return {
        name: "\n".join(_page(name, words, verbs[name]))
        for group in VERBS.values()
        for name, (_, words) in group.items()
    }


def verb_index() -> str:
    """Return the page that lists all verbs by group."""
    lines = ["# Commands", "", "`fl-sim VERB …`; made from the parser that the command uses.", ""]
    for group, verbs in VERBS.items():
        lines += [f"## {_GROUPS.get(group, group.capitalize())}", "", "| verb | what it does |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {escaped(words)} |" for name, (_, words) in verbs.items()]
        lines.append("")
    return "\n".join(lines)


def _verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the subparsers of a parser by name; none if it has no subcommands."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: below for action in actions for name, below in action._name_parser_map.items()}


def _load(parser: argparse.ArgumentParser) -> None:
    """Make a parser add its flags, which it does when it first parses."""
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        parser.parse_known_args(["--help"])


def _page(name: str, words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"# fl-sim {name}"
    yield ""
    yield from _body(parser, words, level=_TOP)


def _body(parser: argparse.ArgumentParser, words: str, level: int) -> Iterator[str]:
    _load(parser)
    yield escaped(_paragraphs(parser.description or f"{words[0].upper()}{words[1:]}."))
    yield from ("", "```text", _usage(parser), "```", "")
    below = _verbs_of(parser)
    for group in parser._action_groups:
        yield from _table(parser, group, level)
    if parser.epilog:
        yield from (escaped(_paragraphs(parser.epilog)), "")
    helps = {
        choice.dest: choice.help for action in parser._actions for choice in getattr(action, "_choices_actions", [])
    }
    for name, under in below.items():
        yield from (f"{'#' * level} {parser.prog.removeprefix('fl-sim ')} {name}", "")
        yield from _body(under, helps.get(name) or name, level + 1)


def _paragraphs(text: str) -> str:
    """Return a docstring as Markdown: literals in single backticks, its doctests as a block of Python."""
    text = inspect.cleandoc(text).replace("``", "`")
    return re.sub(r"(?ms)^(>>> .*?)(?=\n\n|\Z)", r"```pycon\n\1\n```", text)


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=_WIDTH)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    return formatter.format_help().strip()


def _table(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup, level: int) -> Iterator[str]:
    """Yield the table of a group's arguments; nothing for a group of subcommands or without arguments."""
    shown = [
        action
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS
        and not isinstance(action, (argparse._SubParsersAction, argparse._HelpAction))
    ]
    if not shown:
        return
    yield from (_heading(group.title or "options", level), "")
    if group.description:
        yield from (escaped(group.description), "")
    defaults = any(map(_default, shown))  # most help texts name theirs, so that the column is often empty
    yield from ("| flag | meaning | default |", "|---|---|---|") if defaults else ("| flag | meaning |", "|---|---|")
    for action in shown:
        last = f" {_default(action)} |" if defaults else ""
        yield f"| {_flag(action)} | {_meaning(parser, action)} |{last}"
    yield ""


def _heading(title: str, level: int) -> str:
    """Return the heading of a group; in bold below a subcommand, so that the table of contents stays short."""
    words = {"positional arguments": "Arguments"}.get(title, f"{title[0].upper()}{title[1:]}")
    return f"## {words}" if level == _TOP else f"**{escaped(words)}**"


def _flag(action: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    metavar = action.metavar or choices or action.dest.upper()
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    if not action.option_strings:
        return f"`{value}`" + {"?": " (optional)", "*": " (any number)", "+": " (one or more)"}.get(
            str(action.nargs), ""
        )
    more = " …" if action.nargs in ("*", "+") else ""
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings[:-1])
    last = f"`{action.option_strings[-1]}{f' {value}{more}' if action.nargs != 0 else ''}`".replace("|", "\\|")
    return f"{flags}, {last}" if flags else last


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of an argument, and what is allowed where the help does not say it."""
    words = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.choices and action.metavar and not all(str(choice) in words for choice in action.choices):
        words += f" (allowed: {', '.join(map(str, action.choices))})"
    if getattr(action, "required", False) and action.option_strings:
        words += " **Required.**"
    return escaped(" ".join(words.split()))


def _default(action: argparse.Action) -> str:
    value = action.default
    if value is None or value is argparse.SUPPRESS or isinstance(value, bool) or value == []:
        return ""  # a switch is off, or its help says what holds without it
    return f"`{value}`"


def escaped(text: str) -> str:
    """Return text for a cell or paragraph of Markdown; names of pages become links, code is left as it is."""
    parts = _CODE.split(text)
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = part.replace("|", "\\|") if "\n" not in part else part
        else:
            plain = part.replace("<", "&lt;").replace("|", "\\|").replace(r"\*", "*")
            plain = re.sub(r"(?<!\*)\*(?!\*)", r"\\*", plain)
            parts[number] = _PAGE_NAME.sub(r"[docs/\1](../\1)", plain)
    return "".join(parts)
