"""Check the path of a file that a command writes, before it works for it.

>>> check_writable("html", None)
>>> check_writable("html", Path("no/such/folder/page.html"))
Traceback (most recent call last):
fl_sim.config.ConfigError: html is no/such/folder/page.html; allowed: a file in a folder that exists and can be written
>>> check_writable("out", Path("/dev/null"))
Traceback (most recent call last):
fl_sim.config.ConfigError: out is /dev/null, a device; allowed: a regular file, or a new one
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.config import ConfigError
from fl_sim.files import check_replaceable, remove_temporaries
from fl_sim.formats import csv_cell

if TYPE_CHECKING:
    import pandas as pd


def check_writable(flag: str, path: Path | None, *, new_folder: bool = False) -> None:
    """Raise ConfigError if no file can be written at ``path``, which the flag of that name gave; None is nothing.

    A ``new_folder`` may be missing, because it is made.

    A link or a device is refused, too. What killed commands left of the same file beside it is removed.
    """
    if path is None:
        return
    if not new_folder and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
        raise ConfigError(f"{flag} is {path}; allowed: a file in a folder that exists and can be written")
    try:
        check_replaceable(path)
    except OSError as error:
        words = (error.strerror or str(error)).partition(";")[0]
        raise ConfigError(f"{flag} is {path}, {words}; allowed: a regular file, or a new one") from error
    remove_temporaries(path.parent, path.name)


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV in which no spreadsheet takes a text for a formula (:func:`~fl_sim.formats.csv_cell`)."""
    return table.map(csv_cell).rename(columns=csv_cell).to_csv(index=False)
