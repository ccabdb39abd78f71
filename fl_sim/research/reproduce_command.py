"""Make a figure or table of the UeDP paper, or one of ours: run, draw and record it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_sim.research.uedp_paper.figure_records import Record
    from fl_sim.research.uedp_paper.make_figure import FigureResult
    from fl_sim.search.sweep import Ending

_DATA = Path("..") / "shared" / "data"
_OUT = Path("runs") / "reproduce"
TABLES = ("adult", "ag-study", "dpnr-ag", "words")
"""Tables of private representations (docs/representations.md); all other names are figures of language models."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim reproduce``."""
    parser.add_argument(
        "figure",
        nargs="?",
        metavar="NAME",
        help="fig2, table2, adult, … (--list), or a .toml file (conf/figures/README.md)",
    )
    parser.add_argument("--list", action="store_true", help="list the figures")
    parser.add_argument(
        "--data", type=Path, default=_DATA, metavar="DIR", help=f"the raw corpora, a folder each (default {_DATA})"
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR",
        help=f"corpora, runs and pictures; the same command resumes (default {_OUT})",
    )  # fmt: skip
    parser.add_argument(
        "--full", action="store_true", help="at the paper's size (needs a GPU for the training figures)"
    )
    parser.add_argument("--panel", action="append", default=[], metavar="NAME", help="only this panel; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once, a process each (default 1)")
    parser.add_argument("--seeds", metavar="N,N,…", help=f"of {', '.join(TABLES)}: default 0 to 9")
    parser.add_argument("--layer", metavar="NAME", help="of adult: l1, the paper's (default), or l2, its code's")
    parser.add_argument("--record", type=Path, metavar="DIR", help="put the figure's record there (results)")
    parser.add_argument("--readme", type=Path, metavar="DIR", help="write README.md and pictures of a folder's records")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Run the command; return exit code 0, 1 if a run failed or nothing could be made, 128 + n by signal n."""
    from fl_sim.config import ConfigError

    actions = [bool(args.list), args.readme is not None, args.figure is not None]
    if sum(actions) != 1:
        raise ConfigError("allowed: one of a figure's NAME, --list and --readme DIR")
    if args.list:
        return _list(args.json)
    if args.readme is not None:
        return _readme(args.readme, args.json)
    return _make(args)


def _list(as_json: bool) -> int:
    import json

    from fl_sim.research.representations.studies.reproductions import REPRODUCTIONS
    from fl_sim.research.uedp_paper.figures import find_figures, load_figure

    titles = {name: load_figure(path).title for name, path in find_figures().items()}
    titles |= {name: table.title for name, table in REPRODUCTIONS.items()}
    if as_json:
        print(json.dumps(titles, ensure_ascii=False))
        return 0
    width = max(map(len, titles))
    for name, title in titles.items():
        print(f"{name:<{width}}  {title}")
    return 0


def _readme(folder: Path, as_json: bool) -> int:
    import json

    from fl_sim.research.representations.studies import reproductions
    from fl_sim.research.uedp_paper.figure_document import write_document

    written = [*write_document(folder), *reproductions.write_document(folder / reproductions.FOLDER)]
    files = [str(path) for path in written]
    print(json.dumps({"files": files}) if as_json else "\n".join(files))
    return 0


def _make(args: argparse.Namespace) -> int:
    from fl_sim.config import ConfigError
    from fl_sim.research.uedp_paper.figures import find_figure
    from fl_sim.stop_signals import raise_missed_stop

    if not 1 <= args.jobs <= 1024:
        raise ConfigError(f"--jobs is {args.jobs}; allowed: an integer from 1 to 1024")
    if args.figure in TABLES:
        return _make_table(args)
    if args.seeds is not None:
        raise ConfigError(f"--seeds is {args.seeds!r}; allowed with {', '.join(TABLES)}: a figure's file has its own")
    if args.layer is not None:
        raise ConfigError(f"--layer is {args.layer!r}; allowed with {', '.join(TABLES)}")
    codes: list[int] = []
    for name, path in find_figure(args.figure).items():
        raise_missed_stop()
        codes.append(_make_one(args, name, path))
        if codes[-1] > 1:  # interrupted
            break
    return max(codes)


def _make_table(args: argparse.Namespace) -> int:
    """Make a table of private representations, print it and, with ``--record``, write it with its pictures."""
    import json

    from fl_sim.config import ConfigError
    from fl_sim.files import owner_only
    from fl_sim.research.representations.studies import reproductions
    from fl_sim.research.representations.studies.study_runs import Options
    from fl_sim.storage.run_folder import encode

    if args.panel:
        raise ConfigError(f"--panel is {args.panel[0]!r}; {args.figure} has no panels: leave it out")
    table = reproductions.REPRODUCTIONS[args.figure]
    seeds = [str(seed) for seed in range(table.seeds)] if args.seeds is None else args.seeds.split(",")
    if not all(number.isascii() and number.isdigit() for number in seeds):
        raise ConfigError(f"--seeds is {args.seeds!r}; allowed: integers of at least 0, separated by commas")
    options = Options(
        source=(args.data / table.folder).expanduser().absolute(),
        seeds=tuple(map(int, seeds)),
        full=args.full,
        layer=args.layer or "l1",
        jobs=args.jobs,
        work=(args.out / args.figure).expanduser().absolute(),
    )

    def log(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    with owner_only():  # the work folder has features of the texts
        made = reproductions.run(args.figure, options, log)
    if args.record is not None:
        reproductions.write(made, args.record / reproductions.FOLDER / f"{args.figure}.json")
    print(json.dumps(encode(made), ensure_ascii=False) if args.json else reproductions.show(made), end="")
    return 0


def _make_one(args: argparse.Namespace, name: str, path: Path) -> int:
    from fl_sim.stop_signals import exit_status

    result = _make_with_progress(args, name, path)
    for part, reason in result.skipped.items():
        print(f"left out: {part}: {reason}", file=sys.stderr)
    if result.interrupted_by is not None:
        print("interrupted; the same command resumes", file=sys.stderr)
        return exit_status(result.interrupted_by)
    for ending in result.endings:
        if ending.reason:
            print(f"{ending.status}: {ending.name}: {ending.reason}", file=sys.stderr)
    if result.record is None:
        print(f"fl-sim reproduce: nothing could be made of {name}", file=sys.stderr)
        return 1
    files = list(result.files)
    if args.record is not None:
        files.append(_record(result.record, args.record))
    _print(args, result.record, files)
    return 1 if any(ending.reason for ending in result.endings) else 0


def _make_with_progress(args: argparse.Namespace, name: str, path: Path) -> FigureResult:
    """Make the figure with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fl_sim.research.uedp_paper.figures import load_figure
    from fl_sim.research.uedp_paper.make_figure import FigureJob, make_figure
    from fl_sim.search.sweep import INTERRUPTED

    console = Console(stderr=True, quiet=args.quiet, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=console.quiet) as progress:
        task = progress.add_task("runs", total=None)

        def observe(ending: Ending) -> None:
            progress.update(task, advance=ending.status != INTERRUPTED, description=ending.name)

        return make_figure(
            FigureJob(
                name=name,
                figure=load_figure(path),
                full=args.full,
                panels=tuple(args.panel),
                data=args.data.expanduser(),
                out=args.out.expanduser().absolute(),
                jobs=args.jobs,
                say=lambda words: console.print(words, markup=False),
                begin=lambda runs: progress.update(task, total=runs),
                observe=observe,
            )
        )


def _record(record: Record, folder: Path) -> Path:
    from fl_sim.research.uedp_paper.figure_records import check_publishable, file_name, write_record

    check_publishable(record)
    path = folder / file_name(record)
    write_record(record, path)
    return path


def _print(args: argparse.Namespace, record: Record, files: list[Path]) -> None:
    import json

    from rich.console import Console
    from rich.markdown import Markdown

    from fl_sim.research.uedp_paper.figure_document import section
    from fl_sim.storage.run_folder import encode

    if args.json:
        result = {"files": [str(path) for path in files], "record": encode(record.model_dump(mode="python"))}
        print(json.dumps(result, ensure_ascii=False))
        return
    text = section(record)
    Console().print(Markdown(text, hyperlinks=False)) if sys.stdout.isatty() else print(text, end="")
    print("\n" + "\n".join(str(path) for path in files))
