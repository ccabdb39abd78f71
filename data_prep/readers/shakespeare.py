"""Read Shakespeare by speaker: a speaker is a user, and users have very different amounts of text.

The files are JSON lines with ``user`` and ``text``, one speech each, and ``play`` if the edition has it.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "plays.jsonl"
...     _ = path.write_text('{"play": "Hamlet", "user": "BERNARDO", "text": "Who is there?"}')
...     [(s.user, s.text) for s in read_shakespeare(path)]
[('Hamlet: BERNARDO', 'Who is there?')]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.tables import check_fraction, split_by_hash, table_rows
from fl_sim.data_prep.records import CorpusError, Sentence

HELD_OUT_UNITS = ("speeches", "speakers")

_SUFFIXES = (".jsonl", ".jsonl.xz", ".jsonl.gz")


@dataclass(frozen=True)
class ShakespeareOptions:
    """How to divide the speeches.

    Attributes:
        held_out: single ``speeches`` (of speakers that also train, as in LEAF), or whole ``speakers``.
        test_fraction: the probability of being held out.
        seed: of the hash that decides.
        split_sentences: whether to split speeches into sentences.
    """

    held_out: str = HELD_OUT_UNITS[0]
    test_fraction: float = 0.1
    seed: int = 0
    split_sentences: bool = True

    def __post_init__(self) -> None:
        if self.held_out not in HELD_OUT_UNITS:
            raise CorpusError(f"--held-out {self.held_out!r} must be one of {', '.join(HELD_OUT_UNITS)}")
        check_fraction(self.test_fraction)

    def manifest_settings(self) -> dict[str, Any]:
        """The settings that shape the corpus, for its manifest."""
        return asdict(self)


def shakespeare_file(source: Path) -> Path:
    """Return ``source``, or the one edition in that folder.

    Editions share plays, so with two of them a speech would be read twice.

    Raises:
        CorpusError: the folder has no edition, or several.
    """
    if not source.is_dir():
        return source
    editions = sorted(path for path in source.iterdir() if path.name.endswith(_SUFFIXES))
    if len(editions) != 1:
        names = ", ".join(path.name for path in editions) or "none"
        raise CorpusError(f"{source}: one edition must be named as --source, a .jsonl file; found {names}")
    return editions[0]


def read_shakespeare(
    source: Path, options: ShakespeareOptions | None = None, reading: Reading | None = None
) -> Iterator[Sentence]:
    """Yield all sentences of one edition.

    A user is ``PLAY: SPEAKER``, or ``SPEAKER`` if the edition has no plays (all First Citizens are then one user). A
    document is a speech.

    Args:
        source: a file, or a folder with one edition.
        options: how to divide the speeches.
        reading: how to treat bad text.

    Raises:
        CorpusError: a row does not fit; the message names file and line.
    """
    reading, options = reading or Reading(), options or ShakespeareOptions()
    return reading.clean(_speeches(shakespeare_file(source), options, reading), options.split_sentences)


def _speeches(path: Path, options: ShakespeareOptions, reading: Reading) -> Iterator[Sentence]:
    for number, (where, values) in enumerate(table_rows("jsonl", path, ["user", "text"], reading), start=1):
        speaker, text, play = (values.get(name) or "" for name in ("user", "text", "play"))
        if not (isinstance(speaker, str) and isinstance(text, str) and isinstance(play, str)):
            raise CorpusError(f"{where}: user, text and play must be text")
        if not speaker.strip():
            reading.note(Note.ROWS_WITHOUT_USER)
            continue
        user = reading.key(f"{play.strip()}: {speaker.strip()}" if play.strip() else speaker.strip())
        unit = user if options.held_out == "speakers" else f"{number} {user}"
        yield Sentence(
            split_by_hash(unit, options.test_fraction, options.seed), user, text, (), None, f"speech {number}"
        )
