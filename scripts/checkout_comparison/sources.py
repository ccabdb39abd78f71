"""The small texts, tables and configurations that the compared commands read; the same for both checkouts."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

USERS, LONGEST = 6, 8
SEED = 7
"""The seed of runs that do not use seed 0."""

_NAMES = ("Ada", "Blaise", "Carl", "Emmy")
_MODEL = {"name": "small-gpt2", "hidden": 16, "layers": 1, "heads": 2, "max_tokens": 32}
_LSTM = {"name": "awd-lstm", "hidden": 24, "embedding": 16, "max_tokens": 32, "dropout": 1.0}
_USERS = {"strategy": "user_level", "q_u": 0.7}
_PUBLISHED = {"strategy": "published", "q_u": 0.7, "q_s": 0.8, "settings_from_corpus": True}
_ADAPTIVE = {"clip_quantile": 0.5, "clip_norm": 5.0}

Settings = dict[str, Any]

RUNS: dict[str, Settings] = {
    "uedp": {"checkpoint_every": 2},
    "uedp-2-nodes": {"engine": {"nodes": 2}},
    "uedp-seed": {"seed": SEED, "privacy": {"clipping": "user", "user_sentences": "unbounded", "population": 50}},
    "uedp-adaptive": {"privacy": _ADAPTIVE},
    "uedp-target": {
        "privacy": {"target_epsilon": 2.0, "target_unit": "user"},
        "server": {"optimizer": "sgd", "momentum": 0.9, "schedule": "cosine", "warmup": 1, "learning_rate": 0.01},
        "averaging": {"kind": "tail", "tail": 0.5},
        "evaluation": {"every": 2},
    },
    "uedp-budget": {
        "privacy": {"epsilon_budget": 0.6}, "averaging": {"kind": "exponential"}, "server": {"schedule": "linear"},
    },
    "user-level-1-step": {"privacy": _USERS, "local": {"epochs": 1, "batch_size": LONGEST}},
    "user-level-steps": {"privacy": _USERS, "local": {"epochs": 2, "batch_size": 2}, "seed": SEED},
    "user-level-adam-2-nodes": {
        "privacy": _USERS, "local": {"epochs": 2, "batch_size": 2, "optimizer": "adam", "learning_rate": 0.01},
        "engine": {"nodes": 2},
    },
    "user-level-gradients": {"privacy": _USERS | _ADAPTIVE, "local": {"update": "gradients"}},
    "published": {"privacy": _PUBLISHED | {"user_weight_cap": 6.0, "entity_weight_cap": 4.0}},
    "published-2-nodes": {
        "privacy": _PUBLISHED | {"estimator": "f_e", "noise": "as-coded"}, "engine": {"nodes": 2}, "seed": SEED,
    },
    "noiseless": {"privacy": {"strategy": "noiseless", "q_s": 0.8}},
    "noiseless-steps-2-nodes": {
        "privacy": {"strategy": "noiseless", "q_s": 0.8}, "local": {"update": "steps"}, "engine": {"nodes": 2},
    },
    "awd-lstm": {"model": _LSTM},
    "classification": {"model": _LSTM, "task": "classification"},
    "classification-head": {"model": {**_MODEL, "tune": "head"}, "task": "classification", "engine": {"nodes": 2}},
    "lora": {"model": _MODEL | {"lora_rank": 2}},
    "shipped-model": {"model": {"name": "small-gpt2-public", "tune": "bias"}, "rounds": 1},
    "uedp-ray": {"engine": {"name": "ray", "nodes": 1, "num_cpus": 1}},
    "user-level-ray-2-nodes": {
        "privacy": _USERS, "model": _LSTM, "engine": {"name": "ray", "nodes": 2, "num_cpus": 1},
    },
}  # fmt: skip
"""The settings of each compared run, in addition to the common ones."""

INTERRUPTED: Settings = {"rounds": 60, "evaluation": {"max_sentences": 4}}

_REPRESENT = {
    "method": "federate",
    "data": {"source": "sources/adult"},
    "encoder": {"width": 8},
    "server": {"adversary": [6]},
    "training": {"epochs": 2, "batch_size": 64},
    "optimizer": {"learning_rate": 0.01},
    "privacy": {"epsilon": 20.0},
}

_SWEEP = {
    "seeds": [0], "set": {"rounds": 1}, "grid": {"privacy.user_cap": [1, 2]}, "base": "uedp.toml",
}  # fmt: skip

_CONLL = """-DOCSTART- -X- O O

Nobody NN I-NP O
met VBD I-VP O
Ada NNP I-NP I-PER
Byron NNP I-NP I-PER
in IN I-PP O
Hull NNP I-NP I-LOC

-DOCSTART- -X- O O

Rain NN I-NP O
fell VBD I-VP O
on IN I-PP O
Leeds NNP I-NP I-LOC
. . O O
"""


def write_sources(work: Path) -> None:
    """Write the texts to ``work/sources`` and the configurations to ``work/configs``."""
    sources, configs = work / "sources", work / "configs"
    for folder in (sources / "conll", configs):
        folder.mkdir(parents=True, exist_ok=True)
    rows = list(_rows())
    (sources / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    _write_table(sources / "posts.csv", rows)
    _write_parquet(sources / "posts.parquet", rows)
    (sources / "public.txt").write_text("".join(f"{row['text']}\n" for row in rows), encoding="utf-8")
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (sources / "conll" / name).write_text(_CONLL, encoding="utf-8")
    (sources / "tagged.iob").write_text(_CONLL.replace(" -X- O", " O").replace("I-", "B-") * 4, encoding="utf-8")
    _write_adult(sources / "adult")
    for name, settings in (*RUNS.items(), ("interrupted", INTERRUPTED)):
        (configs / f"{name}.toml").write_text(_toml(run_settings(settings)), encoding="utf-8")
    (configs / "represent.toml").write_text(_toml(_REPRESENT), encoding="utf-8")
    (configs / "sweep.toml").write_text(_toml(_SWEEP), encoding="utf-8")


def run_settings(changes: Settings) -> Settings:
    """Return the settings of a compared run: the common ones, overridden by ``changes``."""
    base: Settings = {
        "rounds": 3, "corpus": {"path": "corpora/posts"}, "model": _MODEL, "privacy": {"delta": 0.01},
        "engine": {"name": "inline"},
    }  # fmt: skip
    for key, value in changes.items():
        merged = isinstance(value, dict) and key != "model"
        base[key] = base.get(key, {}) | value if merged else value
    return base


def _rows() -> Iterator[dict[str, Any]]:
    """Yield rows of users with many and few sentences, most with a name, in a train and a validation split."""
    for split in ("train", "validation"):
        for user in range(USERS):
            for number in range(LONGEST if user == 0 else user + 1):
                name = _NAMES[(user + number) % len(_NAMES)]
                named = number % 3 < 2
                yield {
                    "text": f"{name} saw {number} boats in street {user}." if named else f"Rain fell on day {number}.",
                    "user": f"user {user}",
                    "entities": [{"start": 0, "end": len(name), "label": "PER"}] if named else [],
                    "split": split,
                    "topic": ("money", "sport")[user * number % 2],
                }


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ("text", "user", "split", "topic"), extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _write_adult(folder: Path, rows: int = 600) -> None:
    """Write synthetic rows in the format of the Adult census; higher income goes with longer education."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = random.Random(SEED), []
    for _ in range(rows):
        male = rng.random() < 0.6
        rich = rng.random() < (0.5 if male else 0.3)
        home = "Husband" if male and rng.random() < 0.8 else "Own-child"
        years = rng.randrange(11, 17) if rich else rng.randrange(5, 13)
        lines.append(
            f"{rng.randrange(20, 60)}, Private, 100, Bachelors, {years}, Never-married, Sales, {home}, White, "
            f"{'Male' if male else 'Female'}, 0, 0, {rng.randrange(20, 60)}, United-States, "
            f"{'>50K' if rich else '<=50K'}"
        )
    (folder / "adult.data").write_text("".join(f"{line}\n" for line in lines[: rows // 2]), encoding="utf-8")
    (folder / "adult.test").write_text("".join(f"{line}.\n" for line in lines[rows // 2 :]), encoding="utf-8")


def _toml(settings: Mapping[str, Any], section: str = "") -> str:
    """Return ``settings`` as TOML; texts, numbers and lists are written as in JSON."""
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    lines = [f"[{section}]"] if section else []
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    inner = [
        _toml(value, f"{section}.{key}" if section else key) for key, value in settings.items() if key not in plain
    ]
    return "\n".join([*lines, "", *inner])
