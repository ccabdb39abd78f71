"""A reader of your own: mails in an mbox file, the writer's address as the user.

A reader turns raw text into sentences with their users. It is a dataclass, found by its import path:

    fl-sim prepare mailbox_reader:MailboxReader --source letters.mbox --out corpora/letters

Its fields are its flags, its docstring explains them, and `read` returns a `RawCorpus`. Cleaning, tagging, identity of
entities and `--append` then work as for every kind that ships.
"""

import mailbox
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.utils import parseaddr
from pathlib import Path

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import split_by_hash
from fl_sim.data_prep.records import CorpusError, Sentence

SIGNATURE = "-- "
QUOTED = ">"
_ESCAPED = re.compile(r"^>(>*From )", re.MULTILINE)  # in an mbox, "From " at the start of a line starts a mail


@dataclass(frozen=True)
class MailboxReader:
    """An mbox of mails: the address in From is the user, quotations and signatures are left out.

    Attributes:
        source: The mbox file.
        test_fraction: The share of writers held out.
    """

    source: Path
    test_fraction: float = 0.1

    def read(self) -> RawCorpus:
        """Return the corpus of `--source`; no text is read yet.

        Raises:
            CorpusError: a flag or the source is bad; `fl-sim` prints it as one line.
        """
        if not self.source.is_file():
            raise CorpusError(f"--source is {self.source}; allowed: an mbox file")
        if not 0 <= self.test_fraction < 1:
            raise CorpusError(f"--test-fraction is {self.test_fraction:g}; allowed: at least 0 and below 1")

        def sentences(reading: Reading) -> Iterator[Sentence]:  # started anew for every reading
            yield from reading.clean(_paragraphs(self.source, self.test_fraction, reading), split_sentences=True)

        return RawCorpus.from_files(
            "mailbox",
            self.source.stem,
            sentences,
            [self.source],  # the manifest records their checksums
            settings={"test_fraction": self.test_fraction},  # all that shapes the corpus besides the files
            splits_sentences=True,
        )


def _paragraphs(path: Path, test_fraction: float, reading: Reading) -> Iterator[Sentence]:
    """Yield the paragraphs of every mail. What cannot be used is counted by `reading.note`, never dropped silently."""
    seen: set[tuple[str, str]] = set()  # by writer: nobody's mail may depend on whether another writer is there
    for number, mail in enumerate(mailbox.mbox(path, create=False), 1):
        writer = parseaddr(str(mail["From"] or ""))[1].lower()
        key = writer, str(mail["Message-ID"] or number)
        if not writer:
            reading.note(Note.ROWS_WITHOUT_USER)
        elif key in seen:
            reading.note(Note.REPEATED_IDS)
        else:
            user = reading.key(writer)
            split = split_by_hash(user, test_fraction, seed=0)  # all mails of a writer are in one split
            for paragraph in written_by_hand(_plain_text(mail, f"{path}, mail {number}")):
                yield Sentence(split, user, paragraph, mentions=())
        seen.add(key)


def _plain_text(mail: Message, where: str) -> str:
    """Return the mail's parts of plain text."""
    texts = []
    for part in mail.walk():
        if part.get_content_type() == "text/plain" and part.get_filename() is None:
            content = part.get_payload(decode=True)
            encoding = part.get_content_charset("utf-8")
            try:
                texts.append(content.decode(encoding) if isinstance(content, bytes) else "")
            except (UnicodeDecodeError, LookupError) as error:
                raise CorpusError(f"{where}: not {encoding}; leave the mail out, or correct it") from error
    return _ESCAPED.sub(r"\1", "\n\n".join(texts))


def written_by_hand(text: str) -> list[str]:
    """Return the paragraphs of a mail without quoted lines, the line that introduces them, and the signature.

    >>> written_by_hand("Yes, I will.\\n\\nOn Monday Ada wrote:\\n> Will you come?\\n\\nSee you\\nin York.\\n-- \\nBob")
    ['Yes, I will.', 'See you in York.']
    """
    lines = text.replace("\r\n", "\n").split("\n")
    lines = lines[: lines.index(SIGNATURE)] if SIGNATURE in lines else lines
    own = [
        line
        for line, next_line in zip(lines, [*lines[1:], ""], strict=True)
        if not line.startswith(QUOTED) and not (next_line.startswith(QUOTED) and line.rstrip().endswith(":"))
    ]
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", "\n".join(own)) if paragraph.strip()]
