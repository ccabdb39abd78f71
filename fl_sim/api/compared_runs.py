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

from collections.abc import Sequence
from pathlib import Path

from fl_sim.api.runs import Run, folder_of
from fl_sim.reporting.comparison import Comparison, compare_runs
from fl_sim.storage.run_folder import listed


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs, as ``fl-sim report`` does; the first one is the baseline of differences.

    Args:
        runs: at least one, each open or as the path of its folder.

    Raises:
        ResultsError: there is no run, one is given twice, is no run folder, or is corrupt.
    """
    return compare_runs([folder_of(run) for run in listed(runs)])
