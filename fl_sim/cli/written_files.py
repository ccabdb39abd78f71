"""Check the path of a file that a command writes, before it works for it.

>>> check_writable("html", None)
>>> check_writable("html", Path("no/such/folder/page.html"))
Traceback (most recent call last):
fl_sim.config.ConfigError: html is no/such/folder/page.html; allowed: a file in a folder that exists and can be written
"""

from __future__ import annotations

import os
from pathlib import Path

from fl_sim.config import ConfigError


def check_writable(flag: str, path: Path | None) -> None:
    """Raise ConfigError if no file can be written at ``path``, which the flag of that name gave; None is nothing."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag} is {path}; allowed: a file in a folder that exists and can be written")
