"""A run on Ray by its command: the model of the inline engine, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.processes import needs_proc, wait_until_none_in
from tests.e2e.small_runs import PLAIN, UEDP, configuration, model_of, settings
from tests.tiny import command_line


@pytest.mark.system
@needs_proc
def test_ray_gives_the_inline_model_quietly_and_leaves_nothing_behind(
    corpus: Path, tmp_path: Path, place: Path, no_plots: None
) -> None:
    """Run the real command: with plots, in the folder that it chooses, and on an ASCII terminal.

    Two workers share a core, and one file of the states of frozen layers: the model has adapters in its upper layer
    alone. There is a node per worker; another number would add the gradients in another order.
    """
    load_model(ModelSpec(hidden=16, heads=2, max_tokens=32), seed=0).save(tmp_path / "model")
    changes = PLAIN | UEDP | {
        "model__name": str(tmp_path / "model"), "model__lora_rank": 2, "model__lora_layers": 1,
        "privacy__initial_model": "disjoint", "corpus__feature_cache": str(tmp_path / "on ray"),
    }  # fmt: skip
    values = settings(corpus, Path(), **changes, engine__name="ray", engine__num_cpus=1, engine__cpus_per_node=0.5)
    del values["out"]
    command = [sys.executable, "-m", "fl_sim.cli.main", "run", "--json", *command_line(values)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # exactly one object
    assert result["stopped"] == "rounds"
    errors = done.stderr.decode("ascii")
    assert "note: N is" in errors
    assert _unexpected(errors) == []
    assert wait_until_none_in(place) == {}
    on_ray = RunFolder.open(result["folder"])
    assert on_ray.path.parent == place / "runs"
    assert not (on_ray.path / "encoded").exists()
    assert list((on_ray.path / "plots").glob("*.png"))
    changes |= {"corpus__feature_cache": str(tmp_path / "inline states"), "engine__nodes": 2}
    inline = simulation.run(configuration(corpus, tmp_path / "inline", **changes))
    assert np.array_equal(model_of(inline), model_of(on_ray))
    states = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("inline states", "on ray")]
    assert states[0]
    assert states[0] == states[1]
    assert (on_ray.metrics()["failed_nodes"].dropna() == 0).all()


def _unexpected(errors: str) -> list[str]:
    """Return the lines of stderr that are no note, cost of a round, progress (with ε or inside a round) or reading."""
    lines = [line for line in errors.splitlines() if line.strip()]
    expected = re.compile(r"note: |reading, |\d+ sentences and about .* a round|round \d+: \d+ of about|.*\\u03b5 any")
    return [line for line in lines if not expected.match(line)]
