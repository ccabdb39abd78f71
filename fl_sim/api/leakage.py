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
>>> found.holds, found.runs[0].users.rates.members
(True, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.api.runs import Run

if TYPE_CHECKING:
    from fl_sim.auditing.leakage.leak import Leakage, Progress


def leak(
    runs: Sequence[Run | str | Path],
    *,
    attacks: Sequence[str] | None = None,
    entity: str | None = None,
    references: Sequence[str | Path] = (),
    raw: str | Path | None = None,
    max_users: int = 500,
    sentences_per_user: int = 20,
    secrets: int = 1000,
    entities: int = 200,
    candidates: int = 50,
    failure: float = 1e-3,
    seed: int = 0,
    show_names: bool = False,
    progress: Progress | None = None,
) -> Leakage:
    """Attack finished runs, as ``fl-sim leak`` does.

    Args:
        runs: at least one, each open or as the path of its folder.
        attacks: names of "users", "canaries", "entities"; by default all that make sense for a run.
        entity: attack this name alone, in all its mentions.
        references: runs that never saw the attacked users or the attacked name, whose models are the reference in place
            of the model with which the attacked run began.
        raw: the corpus from which that of the runs was de-identified; its text is attacked.
        max_users: attack at most so many users of each side.
        sentences_per_user: read at most so many sentences of a user, or of the named entity.
        secrets: rank each canary among so many secrets of its distribution.
        entities: attack at most so many names.
        candidates: rank each name among so many of its kind.
        failure: the probability that an attack is called beyond its bound although all proofs hold.
        seed: the seed of the attacked units and of the intervals.
        show_names: name entities and users; such output is private.
        progress: gives a context with an observer for each attack, whose name it is called with.

    Returns:
        ``runs`` (the results of the attacks on each), ``holds`` (no attack reached more than its bound), ``record()``
        and ``page()``. The figures are for the corpus's owner.

    Raises:
        ConfigError: an option is out of range, or an attack that was asked for makes no sense for a run.
        ResultsError: a run has no model, its files or its corpus have changed.
        LedgerError: a ledger cannot be trusted.
    """
    from fl_sim.auditing.leakage.attacked_run import Options
    from fl_sim.auditing.leakage.leak import attack_runs

    options = Options(
        seed=seed,
        max_users=max_users,
        sentences_per_user=sentences_per_user,
        references=tuple(map(str, references)),
        secrets=secrets,
        entities=entities,
        candidates=candidates,
        entity=entity,
        failure=failure,
        show_names=show_names,
    )
    folders = [run.path if isinstance(run, Run) else run for run in runs]
    shown = {} if progress is None else {"progress": progress}
    return attack_runs(folders, options, attacks, raw, **shown)
