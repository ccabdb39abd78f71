"""`fl-sim reproduce`."""

from __future__ import annotations

import json
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from fl_sim.cli.from_signature import FOLDER
from fl_sim.cli.verbs import VerbGroup, as_json, quiet

if TYPE_CHECKING:
    from fl_sim.research.uedp_paper.figure_records import Record
    from fl_sim.research.uedp_paper.figures import Figure, Size
    from fl_sim.research.uedp_paper.make_figure import FigureResult

_DATA = Path("..") / "shared" / "data"
_OUT = Path("runs") / "reproduce"
_RESULTS = Path("results")
TABLES = ("adult", "ag-study", "dpnr-ag", "words")
"""Tables of private representations (docs/representations.md); all other names are figures of language models."""


_data = click.option(
    "--data", type=FOLDER, default=_DATA, show_default=True, metavar="DIR", help="The raw corpora, a folder each."
)


@click.group(cls=VerbGroup)
def reproduce() -> None:
    """Make a figure or table of the UeDP paper, or one of ours: run, draw and record it."""


@reproduce.command()
@click.argument("figure", metavar="NAME")
@_data
@click.option(
    "--out", type=FOLDER, default=_OUT, show_default=True, metavar="DIR",
    help="Corpora, runs and pictures; the same command resumes.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="At the paper's size (needs a GPU for the training figures).")
@click.option("--small", is_flag=True, help="A small size, of a figure that has one: some of it in minutes.")
@click.option("--panel", "panels", multiple=True, metavar="NAME", help="Only this panel. May be repeated.")
@click.option(
    "--jobs", type=int, default=1, show_default=True, metavar="N", help="The number of runs at once, a process each."
)
@click.option("--seeds", metavar="N,N,…", help=f"The seeds of {', '.join(TABLES)}; 0 to 9 by default.")
@click.option("--layer", metavar="NAME", help="The layer of adult: l1, the paper's (by default), or l2, its code's.")
@click.option("--record", type=FOLDER, metavar="DIR", help="Put the figure's record there (results).")
@as_json
@quiet
def make(jobs: int, **settings: Any) -> int:
    """Run, draw and record a figure or table.

    NAME is one of fl-sim reproduce list, or a .toml file (conf/figures/README.md). Exit code 1 means that a run failed
    or nothing could be made.
    """
    from fl_sim.config import ConfigError
    from fl_sim.research.study_files import check_commits
    from fl_sim.storage.environment import commit_of, describe

    if not 1 <= jobs <= 1024:
        raise ConfigError(f"--jobs is {jobs}; allowed: an integer from 1 to 1024")
    if settings["small"] and (settings["full"] or settings["record"] is not None):
        raise ConfigError("--small is given; allowed: without --full, and without --record, because it shows no spread")
    if settings["record"] is not None:  # now, not after hours
        check_commits(settings["figure"], commit_of(describe()))
    return _make(Asked(jobs=jobs, **settings))


@reproduce.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--points", type=int, default=1, show_default=True, metavar="N", help="Points of each record.")
@click.option("--seed", type=int, metavar="N", help="The seed of the draw; another one each time by default.")
@_data
@click.option(
    "--out", type=FOLDER, default=_OUT, show_default=True, metavar="DIR",
    help="Corpora as of make, and the runs while they are compared.",
)  # fmt: skip
@as_json
@quiet
def check(points: int, seed: int | None, out: Path, as_json: bool, quiet: bool, **settings: Any) -> int:
    """Compute a random point of every record of a folder again, and compare.

    NAME is a record's; all by default. Exit code 1 means that a point differs by more than rounding, or failed; one
    whose corpus or package is not there is skipped.
    """
    from fl_sim.cli.progress_bar import said_in_lines
    from fl_sim.config import ConfigError
    from fl_sim.files import owner_only
    from fl_sim.research import check_records
    from fl_sim.storage.run_folder import encode

    if points < 1:
        raise ConfigError(f"--points is {points}; allowed: an integer of at least 1")
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed is {seed}; allowed: an integer of at least 0")
    seed = secrets.randbelow(2**31) if seed is None else seed
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    with owner_only(), TemporaryDirectory(prefix="check-", dir=out) as runs, said_in_lines("check", quiet) as say:
        asked = check_records.Check(
            points=points, seed=seed, corpora=out / "corpora", out=Path(runs), say=say, **settings
        )
        checked = list(check_records.check(asked))
    if as_json:
        print(json.dumps(encode(checked), ensure_ascii=False))
    else:
        print(check_records.table(checked))
    return int(any(one.verdict in (check_records.DIFFERS, check_records.FAILED) for one in checked))


@reproduce.command("list")
@as_json
def list_figures(as_json: bool) -> int:
    """List the figures and tables."""
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


@reproduce.command()
@click.argument("folder", type=FOLDER, metavar="DIR")
@as_json
def readme(folder: Path, as_json: bool) -> int:
    """Write README.md and the pictures of a folder's records."""
    from fl_sim.research.representations.studies import reproductions
    from fl_sim.research.uedp_paper.figure_document import write_document

    written = (*write_document(folder), *reproductions.write_document(folder / reproductions.FOLDER))
    files = list(map(str, written))
    print(json.dumps({"files": files}) if as_json else "\n".join(files))
    return 0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The flags of ``fl-sim reproduce make``."""

    figure: str
    data: Path
    out: Path
    full: bool
    small: bool
    panels: tuple[str, ...]
    jobs: int
    seeds: str | None
    layer: str | None
    record: Path | None
    as_json: bool
    quiet: bool

    @property
    def size(self) -> Size:
        """Return the size that the flags ask for."""
        return "full" if self.full else "small" if self.small else "default"


def _make(asked: Asked) -> int:
    from fl_sim.config import ConfigError
    from fl_sim.research.uedp_paper.figures import find_figure
    from fl_sim.stop_signals import raise_missed_stop

    if asked.figure in TABLES:
        return _make_table(asked)
    if asked.seeds is not None:
        raise ConfigError(f"--seeds is {asked.seeds!r}; allowed with {', '.join(TABLES)}: a figure's file has its own")
    if asked.layer is not None:
        raise ConfigError(f"--layer is {asked.layer!r}; allowed with {', '.join(TABLES)}")
    codes: list[int] = []
    for name, path in find_figure(asked.figure).items():
        raise_missed_stop()
        codes.append(_make_one(asked, name, path))
        if codes[-1] > 1:  # interrupted
            break
    return max(codes)


def _make_table(asked: Asked) -> int:
    """Make a table of private representations, print it and, with ``--record``, write it with its pictures."""
    from fl_sim.cli.progress_bar import said_in_lines
    from fl_sim.config import ConfigError
    from fl_sim.files import owner_only
    from fl_sim.research.representations.studies import reproductions
    from fl_sim.research.representations.studies.study_runs import Options
    from fl_sim.research.study_files import check_commits
    from fl_sim.storage.run_folder import encode

    if asked.panels:
        raise ConfigError(f"--panel is {asked.panels[0]!r}; {asked.figure} has no panels: leave it out")
    if asked.small:
        raise ConfigError(f"--small is given; {asked.figure} has no small size: leave it out")
    table = reproductions.REPRODUCTIONS[asked.figure]
    seeds = [str(seed) for seed in range(10)] if asked.seeds is None else asked.seeds.split(",")
    numbers = tuple(int(number) for number in seeds if re.fullmatch("[0-9]{1,18}", number))
    if len(numbers) < len(seeds) or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"--seeds is {asked.seeds!r}; allowed: different integers of at least 0 and 18 digits at most, separated "
            "by commas"
        )
    options = Options(
        source=(asked.data / table.folder).expanduser().absolute(),
        seeds=numbers,
        full=asked.full,
        layer=asked.layer or "l1",
        jobs=asked.jobs,
        work=(asked.out / asked.figure).expanduser().absolute(),
    )

    with owner_only(), said_in_lines(asked.figure, asked.quiet) as log:  # the work folder has features of the texts
        made = reproductions.run(asked.figure, options, log)
    if asked.record is not None:
        check_commits(asked.figure, made["commit"])
        reproductions.write(made, asked.record / reproductions.FOLDER / reproductions.file_name(made))
    print(json.dumps(encode(made), ensure_ascii=False) if asked.as_json else reproductions.show(made), end="")
    return 0


def _make_one(asked: Asked, name: str, path: Path) -> int:
    from fl_sim.research.study_files import check_commits
    from fl_sim.research.uedp_paper.figure_records import (
        check_publishable,
        file_name,
        with_earlier_panels,
        write_record,
    )
    from fl_sim.research.uedp_paper.figures import load_figure
    from fl_sim.stop_signals import exit_status

    figure = load_figure(path)
    earlier = _earlier_panels(asked, name, figure)
    result = _make_with_progress(asked, name, figure)
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
    files, record = list(result.files), result.record
    if asked.record is not None:
        check_publishable(record)
        check_commits(name, record.commit)
        files.append(asked.record / file_name(record))
        record = with_earlier_panels(record, earlier)
        write_record(record, files[-1])
    _print(asked, record, files)
    return 1 if any(ending.reason for ending in result.endings) else 0


def _earlier_panels(asked: Asked, name: str, figure: Figure) -> Record | None:
    """Return the record that new panels are to join; None for none, ResultsError if it is of other settings."""
    from fl_sim.research.uedp_paper.figure_records import check_same_settings, name_of, read_record
    from fl_sim.research.uedp_paper.figures import TrainingFigure

    if asked.record is None or not asked.panels or not isinstance(figure, TrainingFigure):
        return None
    file = asked.record / name_of(name, asked.size)
    if not file.is_file():
        return None
    earlier = read_record(file)
    check_same_settings(figure.sized(asked.size), earlier)
    return earlier


def _make_with_progress(asked: Asked, name: str, figure: Figure) -> FigureResult:
    """Make the figure, and say on stderr what is done."""
    from fl_sim.cli.progress_bar import said_in_lines
    from fl_sim.research.uedp_paper.figure_records import read_record
    from fl_sim.research.uedp_paper.make_figure import FigureJob, make_figure

    known = (asked.record or _RESULTS) / f"{name}.json"
    with said_in_lines(name, asked.quiet) as log:
        return make_figure(
            FigureJob(
                name=name,
                figure=figure,
                size=asked.size,
                panels=asked.panels,
                data=asked.data.expanduser(),
                out=asked.out.expanduser().absolute(),
                jobs=asked.jobs,
                say=log,
                known=read_record(known) if known.is_file() else None,
            )
        )


def _print(asked: Asked, record: Record, files: list[Path]) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from fl_sim.research.uedp_paper.figure_document import section
    from fl_sim.storage.run_folder import encode

    if asked.as_json:
        result = {"files": [str(path) for path in files], "record": encode(record.model_dump(mode="python"))}
        print(json.dumps(result, ensure_ascii=False))
        return
    text = section(record)
    Console().print(Markdown(text, hyperlinks=False)) if sys.stdout.isatty() else print(text, end="")
    print("\n" + "\n".join(str(path) for path in files))
