"""The folders of the corpora that ship with the project.

>>> shipped_path("bundled").name, shipped_path("irc").name
('bundled', 'irc')
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from fl_sim.data_prep.records import CorpusError

SHIPPED_CORPORA = ("bundled", "irc")
"""The names that open them: made-up users (data_prep/bundled), and users of the Ubuntu channel (data_prep/irc)."""

_DISTRIBUTION = "fl-sim"
_FOLDER = Path("fl_sim") / "data_prep"


def shipped_path(name: str) -> Path:
    """Return the folder of a corpus that ships.

    Normally it lies beside this file. Flower runs apps from a copy that has no Parquet files and hides the installed
    package; there the folder is looked up in the installed distribution, or in the checkout of an editable install.

    Args:
        name: one of :data:`SHIPPED_CORPORA`.

    Raises:
        CorpusError: none of these folders has the data.
    """
    folders = [parent / name for parent in (Path(__file__).parents[1], *_installed_folders())]
    for folder in folders:
        if any(folder.glob("*.parquet")):
            return folder
    looked = ", ".join(str(folder) for folder in folders)
    raise CorpusError(f"the corpus {name} is not installed (looked in {looked}); install {_DISTRIBUTION} again")


def _installed_folders() -> list[Path]:
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return []
    folders = [Path(str(distribution.locate_file(_FOLDER)))]
    origin = distribution.read_text("direct_url.json")
    if origin is not None:
        url = urlparse(json.loads(origin)["url"])
        if url.scheme == "file":
            folders.append(Path(unquote(url.path)) / _FOLDER)
    return folders
