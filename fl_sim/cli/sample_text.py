"""The text of a new project: messages and letters by people who do not exist, out of the corpus that ships.

A grammar wrote them (data_prep/bundled/README.md), so they may be shared, and making them needs no further package.

>>> said = list(messages(range(2)))
>>> len(said), said[0][0], said[-1][0]
(20, 'author-001', 'author-002')
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from fl_sim.data_prep.store.corpus import BUNDLED, Corpus

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


def messages(authors: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield the author and the text of the first messages of every author, authors as they come."""
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
