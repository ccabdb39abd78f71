"""The lineage kept beside a model: the ledgers of all runs that trained it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fl_sim.storage.model_files import Ancestor, Lineage, LineageError, read_model, write_model
from fl_sim.strategies.ledger import Ledger, ReleaseRecord
from tests.strategies.federation import plan

SECURE = ReleaseRecord.of(plan(strategy="user_level").mechanism, None)


def _released(folder: Path, *rounds: int) -> Ledger:
    ledger = Ledger.open(folder) if any(folder.iterdir()) else Ledger.create(folder)
    for number in rounds:
        ledger.record_release(SECURE, number)
    return ledger


def _model(folder: Path, ledger: Ledger, base: Path | None = None) -> Path:
    folder.mkdir()
    if base is not None:
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    write_model(folder, Lineage((Ancestor(ledger, "corpus", {}),)))
    return folder


@pytest.mark.parametrize(("more", "known"), [((), 3), ((4,), 4)])
def test_of_an_adapter_and_its_base_the_longer_ledger_counts_and_none_that_went_on_apart(
    tmp_path: Path, more: tuple[int, ...], known: int
) -> None:
    """An adapter on the model of one copy of a run, where that of another copy lies now: no ledger has both."""
    for name in ("run", "copy"):
        (tmp_path / name).mkdir()
    _released(tmp_path / "run", 1, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "copy", dirs_exist_ok=True)
    base = tmp_path / "base"
    adapter = _model(tmp_path / "adapter", _released(tmp_path / "run", 3), base)
    _model(base, _released(tmp_path / "run", *more))
    assert [len(ancestor.ledger.entries) for ancestor in read_model(adapter).ancestors] == [known]
    shutil.rmtree(base)
    _model(base, _released(tmp_path / "copy", 3))
    with pytest.raises(LineageError, match="another copy of its run"):
        read_model(adapter)


def test_a_run_below_two_adapters_counts_with_the_rounds_that_it_ran_since(tmp_path: Path) -> None:
    """The model is that of all three folders, and the lowest one's run was resumed."""
    for name in ("below", "middle", "top"):
        (tmp_path / name).mkdir()
    base, middle = tmp_path / "base", tmp_path / "of-middle"
    begun = _released(tmp_path / "below", 1, 2)
    adapter = _model(middle, _released(tmp_path / "middle", 1), base)
    top = _model(tmp_path / "of-top", _released(tmp_path / "top", 1), adapter)
    _model(base, begun)
    assert sorted(len(ancestor.ledger.entries) for ancestor in read_model(top).ancestors) == [1, 1, 2]
    shutil.rmtree(base)
    _model(base, _released(tmp_path / "below", 3))
    assert sorted(len(ancestor.ledger.entries) for ancestor in read_model(top).ancestors) == [1, 1, 3]
