"""The comparison of checkouts notices what changed, what is missing and what is new; nothing is trained here."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("compare_checkouts", *(f"checkout_comparison.{name}" for name in ("checks", "differences", "readings")))

DIGESTS = {"model/model.safetensors": "c0ffee", "model/spec.json": "7ea"}
FLAGS = {"run: --seed": "takes S", "run: --out": "takes DIR"}


@pytest.fixture(scope="module")
def script() -> Iterator[SimpleNamespace]:
    """The modules of the script, as ``python scripts/compare_checkouts.py`` imports them."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        modules: list[ModuleType] = [importlib.import_module(name) for name in MODULES]
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    yield SimpleNamespace(**{name.rpartition(".")[2]: module for name, module in zip(MODULES, modules, strict=True)})
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("compare_checkouts", "checkout_comparison")
    ]:
        del sys.modules[name]


@pytest.fixture
def side(tmp_path: Path) -> SimpleNamespace:
    """The part of a side that the readers use."""
    return SimpleNamespace(
        label="new", work=tmp_path / "new", older_work=tmp_path / "old", checkout=tmp_path / "checkout", results={}
    )


def kinds(outcome: Any) -> list[tuple[str, str]]:
    return [(difference.kind, difference.item) for difference in outcome.differences]


def test_the_same_is_the_same(script: SimpleNamespace) -> None:
    outcome = script.differences.compare("run/uedp/model", DIGESTS, dict(DIGESTS))
    assert (outcome.verdict, outcome.passed, outcome.old) == ("same", True, outcome.new)


def test_a_changed_digest_is_noticed(script: SimpleNamespace) -> None:
    changed = DIGESTS | {"model/model.safetensors": "decaf"}
    outcome = script.differences.compare("run/uedp/model", DIGESTS, changed)
    assert kinds(outcome) == [("changed", "model/model.safetensors")]
    assert outcome.old != outcome.new
    assert not outcome.passed
    assert "c0ffee → decaf" in outcome.differences[0].line()


def test_a_missing_flag_is_noticed(script: SimpleNamespace) -> None:
    outcome = script.differences.compare("flags", FLAGS, {"run: --seed": "takes S"})
    assert kinds(outcome) == [("missing", "run: --out")]
    assert not outcome.passed


def test_an_addition_is_a_difference_unless_it_is_deliberate(script: SimpleNamespace) -> None:
    more = FLAGS | {"run: --fast": "takes nothing"}
    outcome = script.differences.compare("flags", FLAGS, more)
    assert kinds(outcome) == [("added", "run: --fast")]
    assert not outcome.passed
    deliberate = script.differences.Addition("flags", "run: --f*", "runs are to be fast")
    allowed = script.differences.compare("flags", FLAGS, more, [deliberate])
    assert kinds(allowed) == [("allowed", "run: --fast")]
    assert (allowed.verdict, allowed.passed) == ("same, with additions", True)
    assert not script.differences.compare("json/run", FLAGS, more, [deliberate]).passed
    assert not script.differences.compare("flags", more, FLAGS, [deliberate]).passed  # it does not allow removals


def test_the_additions_that_ship_can_be_read(script: SimpleNamespace) -> None:
    assert isinstance(script.differences.read_additions(script.compare_checkouts.ADDITIONS), list)


def test_an_addition_without_a_reason_is_refused(script: SimpleNamespace, tmp_path: Path) -> None:
    listed = tmp_path / "additions.toml"
    listed.write_text('[[addition]]\ncheck = "flags"\nitem = "*"\n')
    with pytest.raises(script.differences.InputError, match="a check, an item and a reason"):
        script.differences.read_additions(listed)


def test_a_renamed_key_is_missing_and_added(script: SimpleNamespace, side: SimpleNamespace) -> None:
    def read(**keys: object) -> dict[str, str]:
        return script.readings.keys_and_values("report", {"rows": [keys]}, side)

    outcome = script.differences.compare("json/report", read(epsilon=1.5), read(eps=1.5))
    assert kinds(outcome) == [("added", "rows.#.eps"), ("missing", "rows.#.epsilon")]
    assert kinds(script.differences.compare("json/report", read(epsilon=1.5), read(epsilon=1.5000000000000002)))
    assert kinds(script.differences.compare("json/report", read(rounds=1), read(rounds=1.0)))


def test_times_places_and_wording_do_not_count(script: SimpleNamespace, side: SimpleNamespace) -> None:
    def read(name: str, seconds: float, words: str) -> dict[str, str]:
        row = {"folder": f"{side.work.parent / name}/runs/a", "seconds": seconds, "warnings": [words]}
        return script.readings.keys_and_values("metrics.jsonl", [row], side)

    assert read("old", 0.1, "N is the corpus's.") == read("new", 0.2, "The corpus says N.")
    assert read("old", 0.1, "uedp") != read("old", 0.1, "user_level")


def test_a_changed_tensor_is_noticed_and_metadata_are_not_read(script: SimpleNamespace, tmp_path: Path) -> None:
    def written(run: str, content: bytes) -> Path:
        header = {"__metadata__": {"seal": run}, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
        head = json.dumps(header).encode()
        path = tmp_path / f"{run}.safetensors"
        path.write_bytes(len(head).to_bytes(8, "little") + head + content)
        return path

    read = script.readings.tensor_digests
    first = read(written("a", bytes(4)))
    assert first == read(written("b", bytes(4)))
    assert first != read(written("c", b"\x00\x00\x00\x01"))


@pytest.mark.parametrize(("code", "verdict", "passed"), [(2, "refused", True), (0, "different", False)])
def test_a_run_may_be_refused_by_another_version_but_not_end_otherwise(
    script: SimpleNamespace, code: int, verdict: str, passed: bool
) -> None:
    sides = [
        SimpleNamespace(label=label, results={"taken-over": SimpleNamespace(code=ended, last_line="another version")})
        for label, ended in (("old", 0), ("new", code))
    ]
    check = script.checks.Check("older/resume", lambda side: {"model": side.label}, (), may_refuse="taken-over")
    outcome = script.compare_checkouts._outcome(check, sides, [{}, {}], [])
    assert (outcome.verdict, outcome.passed) == (verdict, passed)


def test_a_command_that_fails_in_both_is_no_agreement(script: SimpleNamespace) -> None:
    check = script.checks.Check("json/stats", lambda side: {}, ("stats",))
    outcome = script.compare_checkouts._outcome(check, [], [{"stats": "old: broken"}, {"stats": "new: broken"}], [])
    assert (outcome.verdict, outcome.passed, outcome.note) == ("failed", False, "old: broken")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "unheard-of", ".", "."], "no check has such a name"),
        (["no/such/folder", "."], "neither a folder nor a git ref"),
        (["EMPTY", "."], "no checkout of fl_sim"),
        (["."], "OLD and NEW"),
    ],
)
def test_bad_input_is_one_line(
    script: SimpleNamespace, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = script.compare_checkouts.main([str(tmp_path) if word == "EMPTY" else word for word in words])
    output = capsys.readouterr()
    assert (code, output.err.count("\n"), output.out) == (2, 1, "")
    assert message in output.err


def test_the_checks_have_names_of_their_own_and_what_they_need(script: SimpleNamespace) -> None:
    checks, steps = script.checks.all_checks(), script.compare_checkouts.all_steps()
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert {need for check in checks for need in check.needs} <= set(steps)
    done: set[str] = set()
    for name, step in steps.items():
        assert set(step.needs) <= done, name
        done.add(name)
