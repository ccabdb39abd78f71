"""Read English prose and dialogue out of Debian's packages, one sentence at a time, for ``tools.public_text``.

    apt-get -o Acquire::Languages=en update
    /usr/lib/apt/apt-helper cat-file /var/lib/apt/lists/*Translation-en* > debian/Translation-en
    apt-get download $(cat tools/debian_packages.txt)       # then dpkg -x FILE debian for each

Three kinds of text: the descriptions of all packages; manuals and dictionaries (HTML, the Mallard and DocBook pages of
help browsers, dict files); the lines of characters in games (Wesnoth's campaigns, Endless Sky), which are the dialogue.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_BLOCKS = {"p", "para", "simpara", "li", "dd", "td", "title", "desc", "h1", "h2", "h3", "h4", "h5", "h6"}
_HIDDEN = {"script", "style", "head", "pre", "screen", "info", "programlisting", "credit", "table", "nav"}
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”)]?\s+(?=[\"“(A-Z])")
_SPEECH = re.compile(r'message *= *_ *"((?:[^"]|"")*)"')
_ENGLISH = re.compile(
    r"/(en|en-US|en_US|C|html|FAQ)/|\.en\.html|policy|installation-guide-amd64/en|guide\.html|offline\.html"
)
_TRANSLATED = re.compile(r"/(?!en|C/)[a-z]{2}([-_@][A-Za-z]+)?/|\.(?!en\.)[a-z]{2}(-[a-z]{2})?\.html")


class _Paragraphs(HTMLParser):
    """Collect the text of block elements; code, tables and heads are left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._text: list[str] = []
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag in _BLOCKS:
            self._end()

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and tag == self._hidden[-1]:
            self._hidden.pop()
        elif tag in _BLOCKS:
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._text.append(data)

    def _end(self) -> None:
        self.found.append("".join(self._text))
        self._text = []


def sentences(folder: Path) -> Iterator[str]:
    """Yield the sentences of the unpacked packages under ``folder`` and of its file Translation-en, each once."""
    seen: set[str] = set()
    for paragraph in _paragraphs(folder):
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            if _is_prose(sentence) and sentence not in seen:
                seen.add(sentence)
                yield sentence


def _paragraphs(folder: Path) -> Iterator[str]:
    yield from _descriptions(folder / "Translation-en")
    for path in sorted(folder.rglob("*")):
        name = f"/{path.relative_to(folder).as_posix()}"  # a folder above may be called like a language
        if not path.is_file() or path.is_symlink():
            continue
        if path.suffix in {".html", ".page", ".docbook"} and _ENGLISH.search(name) and not _TRANSLATED.search(name):
            reader = _Paragraphs()
            reader.feed(path.read_text("utf-8", errors="ignore"))
            yield from reader.found
        elif name.endswith(".dict.dz"):
            yield from re.split(r"\n\s*\n", gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore"))
        elif path.suffix == ".cfg":
            yield from (line.split("^")[-1] for line in _SPEECH.findall(path.read_text("utf-8", errors="ignore")))
        elif "endless-sky/data" in name and path.suffix == ".txt":
            yield from re.findall(r"`([^`]*)`", path.read_text("utf-8", errors="ignore"))


def _descriptions(path: Path) -> Iterator[str]:
    """Yield the title and the paragraphs of every description in apt's file of English descriptions."""
    for entry in path.read_text("utf-8").split("\n\n"):
        lines = entry.partition("Description-en: ")[2].splitlines()
        if lines:
            yield lines[0]
            yield from "\n".join(line[1:] for line in lines[1:]).split("\n.\n")


def _is_prose(sentence: str) -> bool:
    """Return whether a sentence is English text rather than markup, code, another script, or a list of signs."""
    letters = sum(c.isalpha() and c.isascii() for c in sentence)
    return letters > 0 and letters >= 0.7 * len(sentence) and not re.search(r"[{}<>|$@]|::|\(\)", sentence)
