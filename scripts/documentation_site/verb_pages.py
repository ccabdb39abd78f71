"""Write a page per verb of ``fl-sim`` from its command.

>>> "| `--json` |" in verb_pages()["corpus"]
True
>>> escaped("a < b | c")
'a &lt; b \\\\| c'
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache

import click

from fl_sim.cli.verbs import VERBS, fl_sim

_WIDTH = 100
_CODE = re.compile(r"(`+[^`]+`+)")
_PAGE_NAME = re.compile(r"(?<![\w/])docs/([\w/-]+\.md)")


@cache
def verb_pages() -> dict[str, str]:
    """Return the Markdown of every verb's page by the verb's name, in the order of the help screen."""
    root = click.Context(fl_sim, info_name="fl-sim")
    names = [name for group in VERBS.values() for name in group]
    return {name: "\n".join(_page(name, fl_sim.get_command(root, name), root)) for name in names}


def verb_index() -> str:
    """Return the page that lists all verbs by group."""
    lines = ["# Commands", "", "`fl-sim VERB …`; made from the commands themselves.", ""]
    for group, verbs in VERBS.items():
        lines += [f"## {group.capitalize()}", "", "| verb | what it does |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {escaped(words)} |" for name, (_, words) in verbs.items()]
        lines.append("")
    return "\n".join(lines)


def _page(name: str, command: click.Command | None, parent: click.Context, level: int = 1) -> Iterator[str]:
    """Yield the lines of a command, and below them those of its sub-verbs."""
    if command is None:
        return
    context = click.Context(command, info_name=name, parent=parent)
    yield from (f"{'#' * level} {context.command_path if level == 1 else name}", "")
    yield escaped(_paragraphs(command.help or ""))
    if not isinstance(command, click.Group):
        yield from ("", "```text", _usage(command, context), "```", "")
        yield from _table(command, context)
        return
    yield ""
    for below in command.list_commands(context):
        yield from _page(below, command.get_command(context, below), context, level + 1)


def _paragraphs(text: str) -> str:
    """Return a docstring as Markdown: literals in single backticks."""
    return inspect.cleandoc(text).replace("``", "`")


def _usage(command: click.Command, context: click.Context) -> str:
    formatter = click.HelpFormatter(width=_WIDTH)
    command.format_usage(context, formatter)
    return formatter.getvalue().strip()


def _table(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the table of a command's flags."""
    yield from ("| flag | meaning |", "|---|---|")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            flag, meaning = parameter.get_help_record(context) or ("", "")
            cell = flag.replace("|", "\\|")
            yield f"| `{cell}` | {escaped(' '.join(meaning.split()))} |"
    yield ""


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
