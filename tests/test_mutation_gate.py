"""The mutation gate: its list fits the code, a sample is chosen as it should be, and it judges right."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("mutation_gate", *(f"mutation_testing.{name}" for name in ("catalogue", "copies", "summaries", "trials")))


@pytest.fixture(scope="module")
def gate() -> Iterator[SimpleNamespace]:
    """The modules of the script, as ``python scripts/mutation_gate.py`` imports them."""
    sys.path.insert(0, str(ROOT / "scripts"))
    modules: list[ModuleType] = [importlib.import_module(name) for name in MODULES]
    yield SimpleNamespace(**{name.rpartition(".")[2]: module for name, module in zip(MODULES, modules, strict=True)})
    sys.path.remove(str(ROOT / "scripts"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mutation_gate", "mutation_testing")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def mutations(gate: SimpleNamespace) -> list[Any]:
    return gate.catalogue.read_catalogue(ROOT)


# --- the list --------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_every_entry_fits_the_code(gate: SimpleNamespace, mutations: list[Any]) -> None:
    """Its text occurs once, the changed module compiles, and its tests exist."""
    assert [line for mutation in mutations for line in gate.catalogue.problems(ROOT, mutation)] == []
    assert len(mutations) >= 100


def test_every_subject_is_covered(mutations: list[Any]) -> None:
    files = {mutation.file for mutation in mutations}
    assert "clients/ghost_norms.py" in files
    folders = {file.rpartition("/")[0] for file in files}
    assert {"strategies", "strategies/primitives", "strategies/accounting", "clients", "clients/gradients"} <= folders
    assert {"data_prep/store", "fl_sim/experiments", "fl_sim/storage", "fl_sim"} <= folders
    assert all(mutation.fault == mutation.fault.strip() and "|" not in mutation.fault for mutation in mutations)


def test_a_sample_begins_with_the_modules_that_changed(
    gate: SimpleNamespace, fault: Callable[..., Any], tree: Path
) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)

    (tree / "real" / "other.py").write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    mutations = [
        replace(fault("x", "t"), id=f"{n}", file=f"real/{name}.py") for n, name in enumerate(["other", "small"] * 4)
    ]
    (tree / "real" / "small.py").write_text(f"{SOURCE}# changed\n")
    sample = gate.catalogue.changed_first(tree, mutations, "HEAD", 6)
    assert [one.file for one in sample] == ["real/small.py"] * 4 + ["real/other.py"] * 2
    assert len(gate.catalogue.changed_first(tree, mutations, "no-such-commit", 3)) == 3


# --- the runner, on a tree of two files ------------------------------------------------------------------------------

SOURCE = "def clipped(x: float, clip: float) -> float:\n    return min(x, clip)\n"
TESTS = """
import time
from lib.small import clipped

def test_clip(): assert clipped(3, 2) == 2
def test_no_clip(): assert clipped(1, 2) == 1
def test_slow(): time.sleep(60 * (clipped(3, 2) != 2))
def test_wrong(): assert clipped(1, 2) == 5
class TestClass:
    def test_method(self): assert clipped(3, 2) == 2
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree whose package is a link, as fl_sim/strategies is."""
    root = tmp_path / "tree"
    for name, content in {"real/small.py": SOURCE, "tests/test_small.py": TESTS, "results/big.bin": "x"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (root / "lib").symlink_to("real")
    return root


@pytest.fixture
def fault(gate: SimpleNamespace) -> Callable[..., Any]:
    def make(replacement: str, *tests: str, **changes: Any) -> Any:
        names = tuple(f"tests/test_small.py::{name}" for name in tests)
        return gate.catalogue.Mutation(
            id="a", subject="s", file="real/small.py", find="min(x, clip)", replace=replacement, tests=names, fault="f",
            **changes,
        )  # fmt: skip

    return make


@pytest.mark.nightly
def test_verdicts(gate: SimpleNamespace, tree: Path, tmp_path: Path, fault: Callable[..., Any]) -> None:
    copy = tmp_path / "copy"
    gate.copies.copy_tree(tree, copy)
    assert not (copy / "results").exists()
    assert (copy / "lib").readlink() == Path("real")

    cases = [
        (fault("max(x, clip)", "test_no_clip", "test_clip"), "killed"),
        (fault("sorted([x, clip])[0]", "test_clip", "TestClass::test_method"), "survived"),
        (fault("x\nimport nothing_of_that_name", "test_clip"), "broken"),
    ]
    verdicts = []
    for mutation, outcome in cases:
        verdicts.append(gate.trials.judge(copy, mutation, 60))
        assert verdicts[-1].outcome == outcome
        assert (copy / "real" / "small.py").read_text() == SOURCE == (tree / "real" / "small.py").read_text()
    assert verdicts[0].by == "tests/test_small.py::test_no_clip"
    slow = gate.trials.judge(copy, fault("x", "test_slow"), 3)
    assert (slow.outcome, slow.reason) == ("killed", "the tests took too long")

    names = [f"tests/test_small.py::{name}" for name in ("test_wrong", "test_clip", "TestClass::test_method")]
    failing = gate.trials.failing_without_fault(copy, names, 60)
    assert list(failing) == names[:1]
    assert "assert 1 == 5" in failing[names[0]]


@pytest.mark.parametrize(
    ("code", "failure", "ran", "outcome"),
    [
        (1, ("tests/test_small.py::test_clip", "assert 3 == 2"), True, "killed"),
        (1, ("tests/test_small.py::test_clip", "NameError: name 'minimum' is not defined"), True, "broken"),
        (1, ("tests/test_small.py::test_clip", "ImportError: cannot import name 'clipped'"), True, "broken"),
        (2, ("tests/test_small.py", "SyntaxError: invalid syntax"), True, "broken"),
        (4, None, False, "broken"),  # no such test
        (0, None, False, "broken"),  # all of them skipped
        (0, None, True, "survived"),
        (None, None, False, "killed"),
    ],
)
def test_a_test_that_could_not_tell_is_no_verdict(
    gate: SimpleNamespace,
    fault: Callable[..., Any],
    code: int | None,
    failure: tuple[str, str] | None,
    ran: bool,
    outcome: str,
) -> None:
    run = gate.trials.TestRun(code, () if failure is None else (failure,), ran, "1 line", 1.0)
    verdict = gate.trials.verdict_of(fault("x", "test_clip"), run)
    assert (verdict.outcome, verdict.accepted) == (outcome, outcome == "killed")


def test_what_the_gate_accepts(gate: SimpleNamespace, fault: Callable[..., Any]) -> None:
    killed = gate.trials.Verdict(fault("x", "t"), "killed", "tests/test_small.py::t", "assert", 1.0)
    explained = replace(killed, mutation=fault("x", "t", equivalent="why"), outcome="survived", by=None, reason="")
    survived, broken = replace(explained, mutation=fault("x", "t")), replace(killed, outcome="broken", by=None)
    assert gate.summaries.passes([killed, explained])
    for unexplained in (survived, broken, replace(killed, mutation=explained.mutation)):  # noticed after all
        assert not gate.summaries.passes([killed] * 99 + [unexplained])
    assert gate.summaries.share_killed([killed] * 3 + [survived, explained]) == 3 / 4
    counts = gate.summaries.counts([killed, explained, survived])
    assert counts == {"killed": 1, "equivalent": 1, "survived": 1, "broken": 0}
    text = gate.summaries.as_markdown([killed, explained])
    assert "| all | 2 | 1 | 1 | 0 | 0 |" in text
    assert "| a | f | killed | `test_small::t` |" in text
    assert "| a | f | equivalent | why |" in text


def test_bad_lists_are_one_line(gate: SimpleNamespace, tmp_path: Path, fault: Callable[..., Any]) -> None:
    entry = 'id = "a"\nfile = "f"\nfind = "x"\nreplace = "y"\ntests = ["t"]\nfault = "f"\n'
    for content, message in (
        ("subject =", "Invalid value"),
        ('subject = "s"\n', "allowed: subject"),
        (f'subject = "s"\n[[mutation]]\n{entry}more = 1\n', "has unknown ['more']"),
        (f'subject = "s"\n[[mutation]]\n{entry.replace("fault", "reason")}', "lacks ['fault']"),
        (f'subject = "s"\n[[mutation]]\n{entry}[[mutation]]\n{entry}', "id is a twice"),
    ):
        (tmp_path / "tests" / "mutations").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / "mutations" / "one.toml").write_text(content)
        with pytest.raises(gate.catalogue.CatalogueError) as caught:
            gate.catalogue.read_catalogue(tmp_path)
        assert message in str(caught.value)
    number = (ROOT / "tests" / "test_suite.py").read_text(encoding="utf-8").count("def ")
    for mutation, message in (
        (replace(fault("y", "t"), file="nowhere.py"), "there is no nowhere.py"),
        (replace(fault("y", "t"), file="tests/test_suite.py"), "occurs 0 times"),
        (replace(fault("y", "t"), file="tests/test_suite.py", find="def ", replace=""), f"occurs {number} times"),
        (replace(fault("y", "t"), file="tests/test_suite.py", find="import tomllib", replace="import"), "invalid"),
        (replace(fault("y", "t"), file="tests/test_suite.py"), "there is no test tests/test_small.py::t"),
    ):
        assert any(message in line for line in gate.catalogue.problems(ROOT, mutation))


def test_without_git_the_tree_is_walked(gate: SimpleNamespace, tree: Path) -> None:
    (tree / "real" / "__pycache__").mkdir()
    (tree / "real" / "__pycache__" / "small.pyc").write_text("")
    names = sorted(map(str, gate.copies.files_of(tree)))
    assert names == ["lib", "pyproject.toml", "real/small.py", "tests/test_small.py"]
    (tree / "out").symlink_to(os.fspath(ROOT))
    with pytest.raises(ValueError, match="leads out of the tree"):
        gate.copies.copy_tree(tree, tree.parent / "copy")


def test_the_command(gate: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate.mutation_gate.main(["--only", "nothing-of-that-name"]) == 2
    assert gate.mutation_gate.main(["--sample", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
