"""The patch puts our strategy and mod into the forms in which apps are written."""

from __future__ import annotations

import pytest

from fl_sim.checking.app_folder import CheckError
from fl_sim.checking.repair import _patched_project, patched_client, patched_server

SETTINGS = "population=10, sampling_rate=0.5, clip_norm=1.5, target_epsilon=4, delta=1e-05"


@pytest.mark.parametrize(
    ("made", "inner"),
    [
        ("FedAvg(fraction_train=0.5, min_train_nodes=5)", "FedAvg()"),
        ("FedAdam(eta=0.1, fraction_train=0.5)", "FedAdam(eta=0.1)"),
        ("Mine(FedAvgM(server_momentum=0.9), 1.0)", "FedAvgM(server_momentum=0.9)"),
        ("Mine()", "FedAvg()"),
    ],
)
def test_the_strategy_that_starts_is_ours_around_one_that_sees_sums(made: str, inner: str) -> None:
    imports = "from flwr.serverapp.strategy import FedAdam, FedAvgM"
    before = f"{imports}\n\ndef main(grid):\n    s = {made}\n    return s.start(grid)\n"
    text = patched_server(before, SETTINGS)
    compile(text, "server", "exec")
    assert (
        f"    s = UserLevelDifferentialPrivacy(\n        {inner}, {SETTINGS}\n    )\n    return s.start(grid)" in text
    )
    assert "from fl_sim.flower import UserLevelDifferentialPrivacy\n" in text
    assert ("import FedAvg\n" in text) == inner.startswith("FedAvg(")


def test_mods_that_do_not_clip_stay() -> None:
    text = patched_client("# ε\napp = ClientApp(mods=[size_mod, fixedclipping_mod, LocalDpMod(1, 1, 1, 1)])\n")
    assert "app = ClientApp(mods=[size_mod, userlevelclipping_mod])" in text


def test_fl_sim_becomes_a_dependency_once() -> None:
    text = '[project]\ndependencies = [\n    "flwr",\n]\n[tool.flwr.app]\npublisher = "fl-sim"\n'
    patched = _patched_project(text)
    assert 'dependencies = [\n    "fl-sim",\n    "flwr",\n]' in patched
    assert _patched_project(patched) == patched


def test_an_app_without_a_strategy_or_a_client_has_no_patch() -> None:
    with pytest.raises(CheckError, match="no strategy starts in the module of the ServerApp"):
        patched_server("def main(grid): pass\n", SETTINGS)
    with pytest.raises(CheckError, match="no ClientApp is made"):
        patched_client("app = make()\n")
