"""ε of one run, or of several on one corpus, from their ledgers alone.

>>> account = account_for([], Adjacency(12), Adjacency(12), delta=1e-5, joined_at=None)
>>> account["releases"], account["epsilon_user"]
(0, 0.0)
>>> read_ledgers(["no/such/run"])
Traceback (most recent call last):
fl_sim.strategies.ledger.LedgerError: no/such/run: there is no such folder
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_sim.storage import model_lineage
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.ledger import Entry, Ledger, LedgerError, epsilon_of, epsilon_of_any, longest, since, together


def read_ledgers(folders: Sequence[str | Path]) -> list[Ledger]:
    """Return the ledgers of run folders and of their ancestors, those that started first in front.

    Ledgers are checked, those of finished runs also against the head hash in the result. The last is that of the last
    folder. Of copies of one run only the longest are returned: one, or one per copy that went on separately. A run
    that went on after another one had started from its model counts with all of its releases.

    Raises:
        LedgerError: a ledger is missing, changed, cut off or reordered.
        ResultsError: the run's result is corrupt.
    """
    ledgers: list[Ledger] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise LedgerError(f"{folder}: {'is not a folder' if folder.exists() else 'there is no such folder'}")
        ledger = Ledger.read(folder)
        if (folder / "result.json").exists():
            ledger.check_head((RunFolder.open(folder).result or {}).get("ledger") or {})
        ledgers.append(ledger)
    ancestors = [ancestor for ledger in ledgers for ancestor in model_lineage.ancestor_ledgers(ledger)]
    given = {ledger.run for ledger in ledgers}
    kept = longest([*ledgers, *(ancestor for ancestor in ancestors if ancestor.run in given)])
    others = longest([ancestor for ancestor in ancestors if ancestor.run not in given])
    return [*others, *sorted(kept, key=lambda ledger: ledger in ledgers)]


def are_of_apps(folders: Sequence[str | Path]) -> bool:
    """Return whether all folders are of runs of Flower apps, as far as they tell: a ledger alone does not."""
    settings = [Path(folder) / "config.json" for folder in folders]
    return all(file.is_file() and "app" in RunFolder.open(file.parent).config for file in settings)


def account_for(
    ledgers: Sequence[Ledger], user: Adjacency, both: Adjacency, delta: float, joined_at: int | None
) -> dict[str, Any]:
    """Return ε of all releases that ``ledgers`` record.

    Args:
        ledgers: of runs on one corpus, as :func:`read_ledgers` returns them.
        user: the protected user alone.
        both: the user together with an entity within a contribution bound.
        delta: δ, in (0, 1).
        joined_at: the round at which the protected user and entity joined, of a single run; None counts all releases.
            An entity joined in that round only if no earlier sentence mentioned it, detected or not. So the robust ε,
            which also holds if the tagger missed the entity, counts all releases, those of the run's ancestors too.

    Raises:
        LedgerError: the runs are not independent, or ``joined_at`` is not a round.
    """
    entries = everything = together(ledgers)
    if joined_at is not None:
        own = ledgers[-1]
        given = [ledger for ledger in ledgers if ledger.run not in {head["run"] for head in own.ancestors}]
        if len(given) > 1:
            raise LedgerError(f"joined-at is {joined_at}, of {len(given)} runs; allowed: with one run only")
        entries = since(own.entries, joined_at)
    forks = sum(count for count in Counter(ledger.run for ledger in ledgers).values() if count > 1)
    return {
        "releases": len(entries),
        **({"forks": forks} if forks else {}),
        "noiseless_releases": sum(entry.terms.mechanism.event() is None for entry in entries),
        **({} if joined_at is None else {"releases_robust": len(everything)}),
        "delta": delta,
        "epsilon_any": epsilon_of_any(everything, delta),
        "mention_graph": _mention_graph(everything),
        "epsilon_user": epsilon_of(entries, user, delta),
        "epsilon_user_entity": epsilon_of(entries, both, delta),
        "epsilon_user_entity_robust": epsilon_of(everything, both, delta, robust=True),
    }


def _mention_graph(entries: Sequence[Entry]) -> str:
    """Return the mention graph for which ``epsilon_any`` of all entries holds: public if it is for any of them."""
    graphs = {entry.terms.guarantee.mention_graph for entry in entries}
    return "public" if "public" in graphs else "private"
