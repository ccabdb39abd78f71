"""Compare Flower's privacy wrapper with ours: stated and proven ε, an attack, accuracy, time of a round.

    python benchmarks/flower_privacy.py                       # all parts, half an hour on two cores
    python benchmarks/flower_privacy.py --parts times --turns 3
    python benchmarks/flower_privacy.py --parts               # write results/flower/README.md from the records again

Each part writes its record into ``--out``, ``results/flower`` by default, which takes those of a clean commit alone;
README.md there is made from them.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flwr import __version__ as flower_version

from benchmarks.flower_comparison.comparison_page import page
from fl_sim.research.study_files import check_commits
from fl_sim.storage.environment import SOURCES, commit_of, git_state
from fl_sim.storage.run_folder import ResultsError

PARTS = ("digits", "audit", "times")
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "flower"


def measure_digits(arguments: argparse.Namespace) -> dict[str, Any]:
    """Accuracy, ε and time of the digits app."""
    from benchmarks.flower_comparison import digits_contenders as digits

    settings = {"users": digits.USERS, "cohort": digits.COHORT, "rounds": digits.ROUNDS, "clip_norm": digits.CLIP}
    settings |= {"noise_multiplier": digits.NOISE, "delta": digits.DELTA, "seeds": len(digits.SEEDS)}
    return {"settings": settings, "rows": _quietly(digits.compared)}


def measure_audit(arguments: argparse.Namespace) -> dict[str, Any]:
    """Lower bounds on ε by an attack."""
    from benchmarks.flower_comparison import wrapper_audit as audit

    settings = {"nodes": audit.NODES, "cohort": audit.COHORT, "clip_norm": audit.CLIP, "noise_multiplier": audit.NOISE}
    settings |= {"delta": audit.DELTA, "confidence": audit.CONFIDENCE}
    settings |= {"heavy_examples": audit.HEAVY, "light_examples": audit.LIGHT}
    return {"settings": settings, "rows": _quietly(lambda: audit.audited(arguments.trials))}


def measure_times(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a round in Flower's simulation."""
    from benchmarks.flower_comparison import round_times

    rows = []
    for setting in round_times.SETTINGS:
        rows.append(_quietly(functools.partial(round_times.measured, setting, arguments.turns, arguments.rounds)))
        print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows, "load": round(os.getloadavg()[0], 1)}


MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "digits": measure_digits,
    "audit": measure_audit,
    "times": measure_times,
}


def records_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a folder by part."""
    paths = {part: folder / f"{part}.json" for part in PARTS}
    return {part: json.loads(path.read_text(encoding="utf-8")) for part, path in paths.items() if path.exists()}


def main(words: list[str] | None = None) -> None:
    """Measure the parts that are asked for, and write records and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--trials", type=int, default=3000, help="rounds with and as many without the attacked user")
    parser.add_argument("--turns", type=int, default=3, help="turns of either strategy, for the times")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of a turn, for the times")
    arguments = parser.parse_args(words)
    commit = commit_of({"git": git_state(ROOT, (*SOURCES, "benchmarks"))})
    try:
        if arguments.parts and arguments.out.resolve() == RESULTS:
            check_commits("flower", commit)
    except ResultsError as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part in arguments.parts:
        record = {"format": f"fl-sim flower {part}", "format_version": 1, "flwr": flower_version, "commit": commit}
        record |= MEASURES[part](arguments)
        text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
        (arguments.out / f"{part}.json").write_text(text + "\n", encoding="utf-8")
    (arguments.out / "README.md").write_text(page(records_in(arguments.out)), encoding="utf-8")


def _quietly(measure: Callable[[], Any]) -> Any:
    """Return what ``measure`` returns, without the lines that Flower logs for every message."""
    flower = logging.getLogger("flwr")
    before = flower.level
    flower.setLevel(logging.CRITICAL)
    try:
        return measure()
    finally:
        flower.setLevel(before)


if __name__ == "__main__":
    main()
