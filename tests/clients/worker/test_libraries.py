"""Importing at once what takes longest."""

from __future__ import annotations

import gc

import pytest

from fl_sim.clients.worker import libraries


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_goes_on_as_before(collecting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    during = []
    monkeypatch.setattr(libraries.importlib, "import_module", lambda name: during.append(gc.isenabled()))
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        libraries.load_libraries()
        assert gc.isenabled() == collecting
    finally:
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
    assert during
    assert not any(during)
