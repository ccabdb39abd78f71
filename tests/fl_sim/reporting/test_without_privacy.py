"""A private run is measured against the noiseless run beside it that did the same work."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from fl_sim.reporting.run_facts import read_facts
from fl_sim.reporting.without_privacy import find_without_privacy
from fl_sim.storage.run_folder import RunFolder
from tests.fl_sim.conftest import MakeRun, finished, metrics_row, rewritten


def twin_beside(
    run: RunFolder,
    name: str,
    *,
    final: float = 318.0,
    sentences: float = 100.0,
    expected: float | None = None,
    config: Mapping[str, Any] | None = None,
) -> RunFolder:
    """A finished noiseless run in the folder of ``run``, which reads ``sentences`` a round as ``run`` reads 100.

    Its settings say so, too, unless ``expected`` has what they say.
    """
    rewritten(run, lambda row: row | {"cohort_sentences": 100.0 if row["round"] else None})
    rounds, noiseless = run.last_round, {"run": {"privacy": {"strategy": "noiseless"}}}
    other = RunFolder.create(run.path.parent / name, config=noiseless | (config or {}), environment={})
    for number in range(rounds + 1):
        own = {"perplexity": 4000.0 - (4000.0 - final) * number / rounds}
        other.append_metrics(
            metrics_row("noiseless", number, rounds) | own | {"cohort_sentences": sentences if number else None}
        )
    rates = {"q_u": 1.0, "q_e": 1.0, "q_s": (expected or sentences) / finished({}, rounds)["corpus"]["sentences"]}
    settings = {"strategy": "noiseless", "population": 946, **rates}
    (other.path / "result.json").write_text(json.dumps(finished(settings, rounds) | {"bits_per_byte": 2.1}))
    return other


def test_the_share_of_the_way_is_one_of_log_perplexity(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=2)
    assert read_facts(run).without_privacy is None
    twin_beside(run, "twin", final=1000.0)
    found = read_facts(run).without_privacy
    assert found is not None
    assert (found.run, found.final, found.bits_per_byte) == ("twin", 1000.0, 2.1)
    assert (found.rounds, found.sentences, found.as_long) == (2, 100.0, True)
    assert found.share == pytest.approx(math.log(4000 / 655) / math.log(4))


def test_a_longer_run_is_named_without_a_share_and_gives_way_to_an_equal_one(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=2)
    twin_beside(run, "longer", sentences=130.0)
    found = find_without_privacy(run)
    assert found is not None
    assert (found.run, found.as_long, found.share) == ("longer", False, None)
    twin_beside(run, "equal", sentences=104.0)
    found = find_without_privacy(run)
    assert found is not None
    assert (found.run, found.as_long) == ("equal", True)


def test_a_twin_that_read_fewer_sentences_by_chance_is_as_long(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=2)
    twin_beside(run, "twin", sentences=85.0, expected=100.0)
    found = find_without_privacy(run)
    assert found is not None
    assert (found.sentences, found.as_long, found.share is None) == (85.0, True, False)


@pytest.mark.parametrize(
    "fault", ["another corpus", "another model", "another start", "a private run", "not finished", "diverged", "no run"]
)
def test_a_run_that_did_other_work_is_no_twin(make_run: MakeRun, fault: str) -> None:
    run = make_run("uedp", rounds=2)
    config = {
        "another corpus": {"corpus": {"fingerprint": "0a1b"}},
        "another model": {"run": {"privacy": {"strategy": "noiseless"}, "model": {"hidden": 7}}},
        "a private run": {"run": {"privacy": {"strategy": "uedp", "note": "noiseless"}}},
    }
    twin = twin_beside(run, "twin", config=config.get(fault))
    result = json.loads((twin.path / "result.json").read_text())
    if fault == "another start":
        rewritten(twin, lambda row: row | {"perplexity": 2 * row["perplexity"]})
    elif fault == "a private run":
        (twin.path / "result.json").write_text(json.dumps(result | {"plan": {"strategy": "uedp"}}))
    elif fault == "not finished":
        (twin.path / "result.json").unlink()
    elif fault == "diverged":
        (twin.path / "result.json").write_text(json.dumps(result | {"stopped": "diverged"}))
    elif fault == "no run":
        (twin.path / "metrics.jsonl").write_text("nothing\n")
    assert find_without_privacy(run) is None
