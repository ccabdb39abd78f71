"""Text to a prepared corpus: read, tag, identify entities, write users, sentences and entities to a folder.

>>> shipped_path("bundled").name, shipped_path("irc").name
('bundled', 'irc')
"""

from __future__ import annotations

from pathlib import Path

from fl_sim.data_prep.records import CorpusError

__all__ = ["SHIPPED_CORPORA", "shipped_path"]

SHIPPED_CORPORA = ("bundled", "irc")
"""The names that open them: made-up users (data_prep/bundled), and users of the Ubuntu channel (data_prep/irc)."""


def shipped_path(name: str) -> Path:
    """Return the folder of a corpus that ships, one of :data:`SHIPPED_CORPORA`; CorpusError if it is not there."""
    folder = Path(__file__).parent / name
    if not any(folder.glob("*.parquet")):
        raise CorpusError(f"the corpus {name} is not installed (looked in {folder}); install fl-sim again")
    return folder
