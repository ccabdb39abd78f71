"""Draw runs over each other: ε against training steps, and perplexity against ε."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fl_sim.storage.run_folder import RunFolder

NAME = "plot"
HELP = "draw one or more runs: ε against training steps, perplexity against ε"

PICTURES = (".png", ".pdf", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        help="whose ε: user, user_unbounded, user_entity_median|p95|max, user_entity_robust_median|p95|max "
        "(default: user_entity_p95; one run against rounds: all)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object: the files written")


def run(args: argparse.Namespace) -> int:
    from fl_sim.reporting import plots
    from fl_sim.storage.run_folder import ResultsError, RunFolder

    if args.out.suffix and args.out.suffix not in PICTURES and not args.out.is_dir():
        raise ResultsError(f"--out is {args.out}; allowed: a folder, or a file that ends in {', '.join(PICTURES)}")
    folders = [RunFolder.open(path) for path in args.runs]
    for folder in folders:
        if folder.truncated_tail:
            print(f"fl-sim plot: {folder.truncated_tail}", file=sys.stderr)
    figures = _figures(folders, args)  # all drawn before one is written: a bad run leaves nothing half done
    for path, figure in figures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        plots.save(figure, path)
    files = [str(path) for path in figures]
    print(json.dumps({"files": files}) if args.json else "\n".join(files))
    return 0


def _figures(folders: list[RunFolder], args: argparse.Namespace) -> dict[Path, Figure]:
    """The pictures that the arguments ask for, by where they go."""
    from fl_sim.reporting import plots

    unit = args.unit or plots.DEFAULT_UNIT
    if args.out.suffix in PICTURES and args.x is None:
        return {args.out: plots.two_panel_figure(folders, unit)}
    names = {"round": plots.EPSILON_FILE, "epsilon": plots.UTILITY_FILE}
    figures = {}
    for x in [args.x] if args.x else names:
        path = args.out if args.out.suffix in PICTURES else args.out / names[x]
        whole = x == "round" and len(folders) == 1 and args.unit is None
        figures[path] = plots.epsilon_figure(folders[0]) if whole else plots.overlay_figure(folders, x, unit)
    return figures
