"""``fl-sim new``: make a small project that runs, with a strategy, a reader, a notebook and a test of its own."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click

from fl_sim.cli.from_signature import FOLDER
from fl_sim.cli.verbs import Verb

TEMPLATE = Path(__file__).parents[1] / "template"
"""The files of a project as they are written, but for its name."""

_NAME_IN_TEMPLATE = "new-project"
_RENAMED = {"gitignore": ".gitignore"}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST = 64

BUNDLED = "bundled"
"""The corpus whose text a project gets: a grammar wrote it (data_prep/bundled/README.md), so it may be shared."""
AUTHORS = range(200)
"""Who wrote ``messages.jsonl``: indices of users of the bundled corpus."""
WRITERS = range(200, 230)
"""Who wrote ``letters.mbox``."""
_MOST = 10  # messages of an author
_OF_A_LETTER = 4  # messages

_LETTER = """\
From {address} Mon Jan  1 00:00:00 2024
From: {name} <{address}>
Message-ID: <{number}@mail.example>
Subject: letter {number}
Content-Type: text/plain; charset=utf-8

{body}

Ada wrote:
> what do you make of it?
--\x20
{name}

"""


class ProjectError(ValueError):
    """The project cannot be made; the message says what to change."""


@click.command(cls=Verb)
@click.argument("folder", type=FOLDER, metavar="DIR")
def new(folder: Path) -> None:
    """Make a small project that runs: messages, a configuration, a strategy, a reader, a notebook and a test.

    DIR is absent or empty; its name, of letters, digits, '-', '_' and '.', names the project. DIR/README.md has the
    commands in their order. What is made is yours: nothing in fl_sim refers to it.
    """
    make_project(folder)
    print(f"made {folder}: messages by people who do not exist, and everything to train on them privately\n")
    print(f"    cd {shlex.quote(str(folder))}")
    print("    fl-sim prepare jsonl --source messages.jsonl --text-column text --user-column author \\")
    print("        --id-column id --out corpora/messages")
    print("    fl-sim run run.toml\n")
    print("README.md goes on from there.")


def make_project(folder: Path) -> None:
    """Write a project into ``folder``, which appears complete or not at all.

    Raises:
        ProjectError: the folder's name names no project, or the folder is the working directory.
        CorpusError: there is something in ``folder``.
        OSError: it cannot be written.
    """
    from fl_sim.data_prep.store.atomic import folder_appearing_at

    whole = folder.absolute()
    name = project_name(whole.name)
    if whole.exists() and whole.samefile(Path.cwd()):
        raise ProjectError(f"DIR is {folder}, the working directory; allowed: a folder in it or elsewhere")
    with folder_appearing_at(whole) as scratch:
        for source in sorted(TEMPLATE.iterdir()):
            if source.is_file():  # not the bytecode of whoever imported a template
                text = source.read_text(encoding="utf-8").replace(_NAME_IN_TEMPLATE, name)
                (scratch / _RENAMED.get(source.name, source.name)).write_text(text, encoding="utf-8")
        write_messages(scratch / "messages.jsonl")
        write_letters(scratch / "letters.mbox")


def project_name(folder_name: str) -> str:
    """Return the name of the project in a folder of that name: lower case, with dashes, as Python packages and Flower
    apps may be called.

    >>> project_name("My_First.project")
    'my-first-project'
    """
    if not _NAME.fullmatch(folder_name) or len(folder_name) > _LONGEST:
        raise ProjectError(
            f"the name of DIR is {folder_name!r}; allowed: at most {_LONGEST} letters of a to z, digits, '-', '_' and "
            "'.', with a letter or digit at both ends"
        )
    return re.sub(r"[-_.]+", "-", folder_name).lower()


def messages(authors: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield the author and the text of the first messages of every author, authors as they come.

    >>> said = list(messages(range(2)))
    >>> len(said), said[0][0], said[-1][0]
    (20, 'author-001', 'author-002')
    """
    from fl_sim.data_prep.store.corpus import Corpus

    corpus = Corpus.open(BUNDLED)
    offsets, texts = corpus.ownership("train").user_offsets, corpus.texts("train")
    for author in authors:
        first, end = int(offsets[author]), int(offsets[author + 1])
        for text in texts[first : min(end, first + _MOST)].to_pylist():
            yield f"author-{author + 1:03}", text


def write_messages(path: Path) -> None:
    """Write the messages as JSON lines with the columns ``id``, ``author`` and ``text``."""
    with path.open("w", encoding="utf-8") as file:
        for number, (author, text) in enumerate(messages(AUTHORS), 1):
            row = {"id": f"message-{number:04}", "author": author, "text": text}
            file.write(f"{json.dumps(row, ensure_ascii=False)}\n")


def write_letters(path: Path) -> None:
    """Write an mbox of letters, each of some messages of one writer, with a quotation and a signature."""
    number = 0
    with path.open("w", encoding="utf-8") as file:
        for author, said in groupby(messages(WRITERS), key=lambda row: row[0]):
            texts = [text for _, text in said]
            for start in range(0, len(texts), _OF_A_LETTER):
                number += 1
                body = "\n\n".join(texts[start : start + _OF_A_LETTER])
                body = re.sub(r"^(>*From )", r">\1", body, flags=re.MULTILINE)  # as mboxes have it
                file.write(_LETTER.format(address=f"{author}@mail.example", name=author, number=number, body=body))
