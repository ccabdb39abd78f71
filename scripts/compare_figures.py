"""Compare two checkouts: does the same run still give the same model, bit for bit, and the same ε in all digits?

    python scripts/compare_figures.py OLD NEW

Both are folders of a checkout (``git worktree add OLD main``). Each prepares small corpora, trains every strategy and
kind of model for a few rounds and computes ε, in a process of its own and through ``fl_sim``'s public functions alone,
so that modules, commands and texts may change. It takes two minutes; the exit code is 1 if a figure differs or is
missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Items = dict[str, str]

_GPT2 = {"name": "small-gpt2", "hidden": 16, "layers": 1, "heads": 2, "max_tokens": 32}
_LSTM = {"name": "awd-lstm", "hidden": 24, "embedding": 16, "max_tokens": 32}
_USERS = {"strategy": "user_level", "q_u": 0.7}
_PUBLISHED = {"strategy": "published", "q_u": 0.7, "q_s": 0.8, "settings_from_corpus": True}
_STEPS = {"epochs": 2, "batch_size": 2, "optimizer": "adam", "learning_rate": 0.01}

RUNS: dict[str, dict[str, Any]] = {
    "uedp": {},
    "uedp, two nodes": {"engine": {"name": "inline", "nodes": 2}},
    "uedp, user clip": {"seed": 7, "privacy": {"clipping": "user", "user_sentences": "unbounded", "known": "graph"}},
    "uedp, adaptive clip": {"privacy": {"clip_quantile": 0.5, "clip_norm": 5.0}},
    "uedp, target": {"privacy": {"target_epsilon": 4.0}, "averaging": {"kind": "tail", "tail": 0.5}},
    "uedp, budget": {"privacy": {"epsilon_budget": 4.0}, "server": {"optimizer": "sgd", "schedule": "cosine"}},
    "user level, steps": {"privacy": _USERS, "local": _STEPS},
    "user level, gradients": {"privacy": _USERS, "local": {"update": "gradients"}},
    "published": {"privacy": _PUBLISHED},
    "published, as coded": {"privacy": {**_PUBLISHED, "estimator": "f_e", "noise": "as-coded"}},
    "noiseless": {"privacy": {"strategy": "noiseless", "q_s": 0.8}},
    "AWD-LSTM": {"model": _LSTM},
    "LoRA": {"model": {**_GPT2, "lora_rank": 2}},
    "shipped model, biases": {"model": {"name": "small-gpt2-public", "tune": "bias"}, "rounds": 1},
}
"""The runs by name: what differs from three rounds of a small GPT-2 under ``uedp``."""

MECHANISMS: dict[str, dict[str, Any]] = {
    "uedp": {"q_u": 0.5, "q_e": 0.5, "q_s": 0.5, "user_cap": 2.0, "user_sentences": 40, "entity": (3, 2)},
    "user_level": {"q_u": 0.1},
    "user_level, allocated": {"epoch_rounds": 10},
}


def figures(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the value, in all digits, of every figure of the checkout that this process imports."""
    import fl_sim

    bundled = fl_sim.open_corpus("bundled").path
    fl_sim.prepare("prepared", bundled, folder / "corpus", max_users=40)
    fl_sim.prepare("prepared", bundled, folder / "tagged", max_users=40, tagger="rules")
    for path in sorted(folder.glob("*/*.parquet")):
        yield f"corpus {path.relative_to(folder)}", _digest(path.read_bytes())
    for name, changes in RUNS.items():
        settings: dict[str, Any] = {"rounds": 3, "corpus": {"path": str(folder / "corpus")}, "model": _GPT2}
        settings |= {"engine": {"name": "inline"}, "evaluation": {"max_sentences": 40}} | changes
        run = folder / name.replace(" ", "-").replace(",", "")
        fl_sim.run(settings, out=run)
        for path in sorted((run / "model").glob("*.safetensors")):
            yield f"{name}: {path.name}", _digest(path.read_bytes())
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield from ((f"{name}: round {row['round']} {key}", repr(row[key])) for key in row if "seconds" not in key)
    for name, mechanism in MECHANISMS.items():
        for z in (0.7, 3.0):
            account = fl_sim.account(name.partition(",")[0], noise_multiplier=z, rounds=50, **mechanism)
            yield from ((f"account {name} {z}: {key}", repr(account[key])) for key in account if "epsilon" in key)


def of_checkout(checkout: Path) -> Items:
    """Return the figures of a checkout.

    Raises:
        subprocess.CalledProcessError: one of them cannot be computed.
    """
    with tempfile.TemporaryDirectory() as work:
        environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
        program = [sys.executable, str(Path(__file__).resolve()), "--write"]
        subprocess.run(program, cwd=work, env=environment, check=True)
        return dict(json.loads((Path(work) / "figures.json").read_bytes()))


def differences(old: Items, new: Items) -> list[str]:
    """Return a line per figure that differs or that only one side has.

    >>> differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"})
    ['b: 2 → 3', 'c: absent → 4']
    """
    names = sorted({*old, *new})
    sides = ((name, old.get(name, "absent"), new.get(name, "absent")) for name in names)
    return [f"{name}: {before} → {after}" for name, before, after in sides if before != after]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main(words: list[str]) -> int:
    if words == ["--write"]:
        folder = Path.cwd()
        (folder / "figures.json").write_text(json.dumps(dict(figures(folder))), encoding="utf-8")
        return 0
    if len(words) != 2 or not all((Path(word) / "pyproject.toml").is_file() for word in words):
        print("compare_figures.py: two folders of checkouts are needed, OLD and NEW", file=sys.stderr)
        return 2
    old, new = (of_checkout(Path(word)) for word in words)
    lines = differences(old, new)
    print("\n".join([*lines, f"{len(old)} figures of OLD, {len(new)} of NEW: {len(lines)} differ"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
