"""Compare runs: a table, text, a page, and plain values.

>>> import tempfile
>>> import fl_sim
>>> tiny = {"hidden": 8, "layers": 1, "heads": 1, "max_tokens": 8}
>>> settings = dict(rounds=1, model=tiny, privacy__q_s=0.001, engine__name="inline", evaluation__max_sentences=10)
>>> with tempfile.TemporaryDirectory() as folder:
...     runs = [
...         fl_sim.run(out=f"{folder}/z{z}", privacy__noise_multiplier=z, seed=z, **settings)
...         for z in (4, 8)
...     ]
...     found = fl_sim.compare(runs)
...     print(found.table()[["run", "epsilon"]].round(3).to_string(index=False))
run  epsilon
 z4    0.014
 z8    0.006
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.api.runs import Run, folder_of
from fl_sim.reporting.comparison import ComparedRun, Pair, compare_runs, comparison_text
from fl_sim.reporting.comparison import Comparison as ComparedRuns
from fl_sim.reporting.run_facts import NO_GUARANTEE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; ε that are different statements are told apart in :attr:`notes`."""

    runs: ComparedRuns

    @property
    def notes(self) -> list[str]:
        """What must not be compared, one sentence each."""
        return self.runs.notes

    @property
    def problems(self) -> list[str]:
        """Why the ε of runs cannot be trusted, one line for each such run; their ε are left out everywhere."""
        return self.runs.problems

    def record(self) -> dict[str, Any]:
        """Return what ``fl-sim report --json`` prints (docs/report.md)."""
        return self.runs.record()

    def table(self) -> pd.DataFrame:
        """Return one row per run: ε with unit and δ, utility with intervals, differences to the first, settings.

        ``epsilon`` is NaN where no ε can be trusted, and inf where nothing is guaranteed.
        """
        import pandas as pd

        pairs = {pair.run: pair for pair in self.runs.paired}
        rows = [dict(_row(run, pairs.get(run.key))) for run in self.runs.runs]
        for name, values in self.runs.settings.items():
            for row, value in zip(rows, values, strict=True):
                row[f"setting {name}"] = value
        return pd.DataFrame(rows)

    def text(self) -> str:
        """Return what ``fl-sim report`` prints."""
        return comparison_text(self.runs)

    def page(self) -> str:
        """Return one page of HTML with pictures, which needs no other file; it is for the corpus's owner."""
        from fl_sim.reporting.pages.run_page import run_page

        return run_page(self.runs)

    def save(self, path: str | Path) -> Path:
        """Write :meth:`page` for the owner alone; return the path.

        Raises:
            OSError: the file cannot be written.
        """
        from fl_sim.files import replace_private_file

        target = Path(path)
        replace_private_file(target, self.page().encode())
        return target


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs, as ``fl-sim report`` does; the first one is the baseline of differences.

    Args:
        runs: at least one, each open or as the path of its folder.

    Raises:
        ResultsError: there is no run, one is given twice, is no run folder, or is corrupt.
    """
    return Comparison(compare_runs([folder_of(run) for run in runs]))


def _row(run: ComparedRun, pair: Pair | None) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a run."""
    facts, head = run.facts, run.facts.headline
    found = pair.difference if pair else None
    yield "run", run.name
    yield "strategy", facts.strategy
    yield "rounds", facts.rounds_done
    yield "stopped", facts.stopped
    yield "epsilon_state", head.state
    yield "epsilon_unit", head.unit_words
    yield "epsilon", float("inf") if head.state == NO_GUARANTEE else head.epsilon
    yield "epsilon_missed", head.epsilon_missed
    yield "epsilon_user", head.epsilon_user
    yield "delta", head.delta
    yield "known", head.known
    yield "metric", facts.utility.metric
    yield "initial", facts.utility.initial
    yield "final", facts.utility.final
    for name, figure in (facts.held_out.figures if facts.held_out else {}).items():
        yield name, figure.value
        yield f"{name}_low", figure.low
        yield f"{name}_high", figure.high
    yield "difference", found and found.value
    yield "difference_low", found and found.low
    yield "difference_high", found and found.high
    yield "warnings", " | ".join(facts.warnings)
