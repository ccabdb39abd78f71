"""Test every path of a client on a device that refuses to be mixed with the CPU; the results are the CPU's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.clients.paths_on_a_device import PATHS, ROUNDED

ROOT = Path(__file__).resolve().parents[2]
BITS = 1e-6  # of the result's norm: the two devices have different kernels for attention

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="torch has no devices in Python",
)


@pytest.fixture(scope="module")
def distances() -> dict[str, float | str]:
    """Return the relative distance between the devices' results of each path, or the error."""
    command = [sys.executable, "-m", "tests.clients.paths_on_a_device"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize("path", PATHS | ROUNDED)
def test_a_path_gives_what_it_gives_on_the_cpu(path: str, distances: dict[str, float | str]) -> None:
    distance = distances[path]
    assert isinstance(distance, float), distance
    assert distance <= (BITS if path in PATHS else 1e-2)  # the others enlarge a rounding error


@pytest.mark.nightly
def test_a_tensor_on_the_wrong_device_is_noticed(distances: dict[str, float | str]) -> None:
    assert "tensors on pretended:0 and cpu; allowed: one device" in str(distances["planted fault"])


@pytest.mark.nightly
def test_norms_are_full_where_passes_are_in_tf32(distances: dict[str, float | str]) -> None:
    """A norm in TF32 errs by a thousandth. Both passes are rounded, which changes what is clipped and no bound."""
    assert isinstance(distances["clip in tf32"], float), distances["clip in tf32"]
    assert distances["clip in tf32"] <= 1e-5
    assert 1e-5 < float(distances["tf32"]) < 1e-2


@pytest.mark.nightly
def test_an_accelerator_adds_in_a_fixed_order(distances: dict[str, float | str]) -> None:
    assert distances["repeatable"] is True
    assert distances["in a fixed order"] is True
