"""Where the corpus that ships with the project lies."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from fl_sim.data_prep.records import CorpusError

_DISTRIBUTION = "fl-sim"
_FOLDER = Path("fl_sim") / "data_prep" / "bundled"


def bundled_path() -> Path:
    """The folder of the bundled corpus.

    Normally it lies beside this file. Flower runs apps from a copy that leaves Parquet files out and hides
    the installed package, so there the installed distribution is asked (for an editable install, its
    checkout). Raises :class:`CorpusError` where no place has the data.
    """
    places = [Path(__file__).parent / "bundled", *_installed_places()]
    for folder in places:
        if any(folder.glob("*.parquet")):
            return folder
    looked = ", ".join(str(folder) for folder in places)
    raise CorpusError(f"the bundled corpus is not installed (looked in {looked}); install {_DISTRIBUTION} again")


def _installed_places() -> list[Path]:
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return []
    places = [Path(str(distribution.locate_file(_FOLDER)))]
    origin = distribution.read_text("direct_url.json")
    if origin is not None:
        url = urlparse(json.loads(origin)["url"])
        if url.scheme == "file":
            places.append(Path(unquote(url.path)) / _FOLDER)
    return places
