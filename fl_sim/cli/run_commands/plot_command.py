"""Plot one or more runs together: ε against training steps, and utility against ε."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.api.runs import Plot, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim plot``."""
    parser.add_argument("runs", metavar="DIR", type=Path, nargs="+", help="run folders")
    parser.add_argument(
        "--out", metavar="FILE.png", type=Path, default=Path(),
        help="a picture (.png, .pdf, .svg), or a folder for one file per plot (default: the current folder)",
    )  # fmt: skip
    parser.add_argument(
        "--x", choices=["round", "epsilon"],
        help="round: ε against training steps; epsilon: perplexity against ε (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--unit", default=None,
        help="the protected unit of ε: any, stated, user, user_unbounded, user_entity_median|p95|max, "
        "user_entity_robust_median|p95|max "
        "(default: any, or user_entity_p95 if a run sets no bound; one run against rounds: all)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object: the files written")


def run(args: argparse.Namespace) -> int:
    """Draw the plots and print the written paths; return the exit code 0."""
    from fl_sim.api.runs import PICTURES, open_run
    from fl_sim.cli.written_files import check_no_other
    from fl_sim.storage.run_folder import ResultsError

    if args.out.suffix and args.out.suffix not in PICTURES and not args.out.is_dir():
        raise ResultsError(f"--out is {args.out}; allowed: a folder, or a file that ends in {', '.join(PICTURES)}")
    check_no_other("--out", None if args.out.is_dir() else args.out)
    runs = [open_run(path) for path in args.runs]
    for opened in runs:
        if opened.folder.truncated_tail:
            print(f"fl-sim plot: {opened.folder.truncated_tail}", file=sys.stderr)
    pictures = _pictures(runs, args)  # draw all before writing one: a bad run leaves no partial output
    for path, picture in pictures.items():
        picture.save(path)
    files = [str(path) for path in pictures]
    print(json.dumps({"files": files}) if args.json else "\n".join(files))
    return 0


def _pictures(runs: list[Run], args: argparse.Namespace) -> dict[Path, Plot]:
    """Return the requested plots by output path."""
    from fl_sim.api.runs import PICTURES, plot_runs
    from fl_sim.reporting import plots

    if args.out.suffix in PICTURES:
        return {args.out: plot_runs(runs, args.x, args.unit)}
    names = {"round": plots.EPSILON_FILE, "epsilon": plots.UTILITY_FILE}
    return {args.out / names[x]: plot_runs(runs, x, args.unit) for x in ([args.x] if args.x else names)}
