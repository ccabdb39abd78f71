"""A Ray cluster of several raylets on this machine, out of sight of every other Ray."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import end_all_in


@contextlib.contextmanager
def cluster_in(place: Path, **head: Any) -> Iterator[Any]:
    """Yield a cluster with its head; nothing of it is left afterwards.

    Ray's files are in a separate folder with a short name, because socket names must be short. The cluster's address is
    not written to the usual file, where every other Ray would find it.

    Args:
        place: the folder in which its processes run, by which they are found.
        head: arguments of the head.
    """
    from ray.cluster_utils import Cluster

    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ray") as files,
        contextlib.chdir(place),
    ):
        patch.setattr("ray._private.utils.write_ray_address", lambda address, folder=None: None)
        cluster = Cluster(initialize_head=True, head_node_args={**head, "temp_dir": files})
        try:
            yield cluster
        finally:
            cluster.shutdown()
            end_all_in(place)
