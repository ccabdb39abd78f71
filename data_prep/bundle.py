"""The folder of the corpus that ships with the project.

>>> bundled_path().name
'bundled'
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from fl_sim.data_prep.records import CorpusError

_DISTRIBUTION = "fl-sim"
_FOLDER = Path("fl_sim") / "data_prep" / "bundled"


def bundled_path() -> Path:
    """Return the folder of the bundled corpus.

    Normally it lies beside this file. Flower runs apps from a copy that has no Parquet files and hides the installed
    package; there the folder is looked up in the installed distribution, or in the checkout of an editable install.

    Raises:
        CorpusError: none of these folders has the data.
    """
    folders = [Path(__file__).parent / "bundled", *_installed_folders()]
    for folder in folders:
        if any(folder.glob("*.parquet")):
            return folder
    looked = ", ".join(str(folder) for folder in folders)
    raise CorpusError(f"the bundled corpus is not installed (looked in {looked}); install {_DISTRIBUTION} again")


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
