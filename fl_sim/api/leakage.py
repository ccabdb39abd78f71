"""Attack finished runs, and show what they give away beside what their proof allows.

>>> import tempfile
>>> import fl_sim
>>> tiny = {"hidden": 8, "layers": 1, "heads": 1, "max_tokens": 8}
>>> with tempfile.TemporaryDirectory() as folder:
...     run = fl_sim.run(
...         out=f"{folder}/run",
...         rounds=1,
...         model=tiny,
...         privacy__q_s=0.001,
...         engine__name="inline",
...         evaluation__max_sentences=10,
...     )
...     found = fl_sim.leak([run], max_users=10, attacks=["users"])
>>> found.holds, found.runs[0]["attacks"]["users"]["members"]
(True, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.api.runs import Run

if TYPE_CHECKING:
    from fl_sim.auditing.leakage.leak import Leakage, Progress


def leak(
    runs: Sequence[Run | str | Path],
    *,
    attacks: Sequence[str] | None = None,
    raw: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Leakage:
    """Attack finished runs, as ``fl-sim leak`` does.

    Args:
        runs: at least one, each open or as the path of its folder.
        attacks: names of :data:`fl_sim.auditing.leakage.leak.ATTACKS`; by default all that make sense for a run.
        raw: the corpus from which that of the runs was de-identified; its text is attacked.
        out: a folder in which results are kept, and found by a later call.
        progress: gives a context with an observer for each attack, whose name it is called with.
        options: the fields of :class:`~fl_sim.auditing.leakage.attacked_run.Options`, such as ``seed``, ``max_users``,
            ``references``, ``entity``, ``user``, ``without`` and ``show_names``.

    Returns:
        ``runs`` (a JSON object each), ``holds`` (no attack reached more than its bound) and :meth:`record`. The figures
        are for the corpus's owner.

    Raises:
        ConfigError: an option is out of range, or an attack that was asked for makes no sense for a run.
        ResultsError: a run has no model, its files or its corpus have changed.
        LedgerError: a ledger cannot be trusted.
    """
    from fl_sim.auditing.leakage import leak as leakage
    from fl_sim.auditing.leakage.attacked_run import Options

    folders = [run.path if isinstance(run, Run) else run for run in runs]
    if progress is None:
        return leakage.leak(folders, Options(**options), attacks, raw, out)
    return leakage.leak(folders, Options(**options), attacks, raw, out, progress)
