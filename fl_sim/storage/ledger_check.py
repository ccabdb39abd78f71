"""Check the ledger of a run against what its folder repeats of it, so that no ε is shown that it does not support.

ε of a run is that of the releases in its ledger (:mod:`fl_sim.strategies.ledger`). Metrics and result repeat it for
readers. If the ledger lost lines, was changed, or counts other releases than they do, their ε may be too small.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     run = RunFolder.create(Path(folder) / "run", config={}, environment={})
...     run.append_metrics({"round": 1, "releases": 1, "epsilon_any": 0.5})
...     before = Ledger.create(run.path)
...     check_ledger(run).problem.rpartition("ledger.jsonl")[2]
': has 0 releases of the rounds 1 to 1, metrics.jsonl counts 1'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real

from fl_sim.formats import format_epsilon, one_line
from fl_sim.plugins import PluginError
from fl_sim.storage.checkpoint import Heads, heads_of
from fl_sim.storage.run_folder import Result, ResultsError, RunFolder, numbers_of
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.ledger import LEDGER_FILE, Ledger, LedgerError, epsilon_of, epsilon_of_any

_TOLERANCE = 1e-9
_OF_NOTHING = 1e-9  # an ε of 0 comes out as 1e-11 at most, more or less of it by the grid
_OF_ACCOUNTANTS = 0.01  # two discretisations of one ε differ by far less, a lost release of few rounds by more


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """What a comparison of a run's ledger with its metrics and result found.

    Attributes:
        problem: why no ε of the run can be trusted, in one line that names the file; None if nothing is wrong.
        notes: what a reader should know of a ledger that is in order.
    """

    problem: str | None = None
    notes: tuple[str, ...] = ()
    ledger: Ledger | None = None


def check_ledger(run: RunFolder) -> LedgerCheck:
    """Compare the ledger of ``run`` with its metrics and, if it has ended, with its result.

    A run that was never begun has nothing to compare. A release after the last row of the metrics is that of a round
    under way, or of a run that was killed in it: ε of the metrics' rounds stands, and a note says what it leaves out.

    Raises:
        ResultsError: metrics or result are corrupt.
    """
    rows = run.metrics().to_dict("records")  # before the ledger, which is ahead of them in a run that is at work
    last = rows[-1] if rows else {"round": 0}
    row = {str(name): float(value) for name, value in last.items() if isinstance(value, Real)}
    result, finished = run.result, run.finished
    try:
        heads = None if finished else heads_of(run.checkpoint_dir)  # a finished run has its figures twice
        if not rows and heads is None and not (result or {}).get("ledger") and not (run.path / LEDGER_FILE).exists():
            return LedgerCheck()
        ledger = Ledger.read(run.path)
        if heads is not None:
            ledger.check_head(heads.ledger)
        if result is not None:
            ledger.check_head(result.get("ledger") or {})
    except (LedgerError, ResultsError, OSError) as error:
        if isinstance(error.__cause__, PluginError):
            return _without_strategy(run, row, error.__cause__)
        return LedgerCheck(one_line(error))
    problem = next(_contradictions(run, ledger, row, heads), None)
    return LedgerCheck(problem, () if problem else tuple(_notes(run, ledger, row)), ledger)


def _without_strategy(run: RunFolder, row: Mapping[str, float], error: PluginError) -> LedgerCheck:
    """Return what the number of lines says of a ledger whose strategy is not installed here, so that none is read."""
    file = run.path / LEDGER_FILE
    entries, counted = file.read_bytes().count(b"\n") - 1, int(row.get("releases", row["round"]))
    if entries < counted:
        return LedgerCheck(f"{file}, line {entries + 2}: is cut off; metrics.jsonl counts {counted} releases")
    return LedgerCheck(notes=(f"ε is that of the metrics; the ledger cannot be read here ({error})",))


def _contradictions(run: RunFolder, ledger: Ledger, row: Mapping[str, float], heads: Heads | None) -> Iterator[str]:
    """Yield what metrics and result say that the ledger does not."""
    file, last = run.path / LEDGER_FILE, int(row["round"])
    if ledger.last_round < last:
        yield f"{file}: has {ledger.releases(last)} releases of the rounds 1 to {last}, metrics.jsonl counts {last}"
    counted = row.get("releases")
    if counted is not None and ledger.releases(last) != counted:
        yield (
            f"{file}: has {ledger.releases(last)} releases of the rounds 1 to {last}, metrics.jsonl counts "
            f"{counted:.0f}"
        )
    if heads is not None and heads.server_round:  # the row of the initial model may be measured again
        try:
            run.check_head(heads.folder)
        except ResultsError as error:  # settings or metrics are not those of the checkpoint
            yield f"{error}"
    yield from _other_bounds(run, ledger)
    if run.result is not None:
        yield from _contradictions_of_result(run, run.result, ledger, row)
    yield from _understated(run, ledger, row)


def _other_bounds(run: RunFolder, ledger: Ledger) -> Iterator[str]:
    """Yield what bounds the run's files state that its releases do not have: they say which adjacency ε is of."""
    released = [guarantee.record() for guarantee in {entry.terms.guarantee for entry in ledger.entries}]
    of_result = (run.result or {}).get("guarantee") or {}
    for file, stated in {run.config_file: run.section("guarantee"), run.result_file: of_result}.items():
        for bounds in released if stated else ():
            for name in sorted(name for name in bounds if bounds[name] != stated.get(name)):
                yield f"{file}: {name} is {stated.get(name)}, but the releases in its ledger have {bounds[name]}"


def _understated(run: RunFolder, ledger: Ledger, row: Mapping[str, float]) -> Iterator[str]:
    """Yield that the metrics' ε of any user, with any entity or alone, is below that of the ledger's releases, if so.

    The ledger's own releases are a part of those that ε covers: a model may have been trained before.
    """
    entries = [entry for entry in ledger.entries if entry.round <= row["round"]]
    delta = run.setting("delta")
    if delta is None or not entries:
        return
    user = Adjacency(max(entry.terms.guarantee.user.user_sentences for entry in entries))
    for name in ("epsilon_any", "epsilon_user"):
        written = row.get(name)
        if written is None or not math.isfinite(written):
            continue
        proven = epsilon_of_any(entries, delta) if name == "epsilon_any" else epsilon_of(entries, user, delta)
        if written < proven * (1 - _OF_ACCOUNTANTS) - _OF_NOTHING:
            found = format_epsilon(proven)
            yield f"{run.metrics_file}: has {name} {written:g}, but the releases in its ledger have ε {found}"


def _contradictions_of_result(
    run: RunFolder, result: Result, ledger: Ledger, row: Mapping[str, float]
) -> Iterator[str]:
    """Yield what the result says that ledger or metrics do not."""
    entries = (result.get("ledger") or {}).get("entries")
    if run.finished and entries is not None and len(ledger.entries) != entries:
        yield f"{run.path / LEDGER_FILE}: has {len(ledger.entries)} releases, {run.result_file.name} counts {entries}"
    rounds = result.get("rounds")
    if run.finished and isinstance(rounds, int) and rounds > row["round"]:
        yield f"{run.metrics_file}: ends after round {row['round']:.0f}, result.json counts {rounds} rounds"
    if not run.finished or rounds != row["round"]:
        return  # a run that was interrupted and went on has a newer row than result
    stated = numbers_of(result)
    for name in (name for name in result if name.startswith("epsilon_") and name in row):
        if name not in stated or stated[name] < row[name] * (1 - _TOLERANCE):
            after, ended = f"{row[name]:g} after round {row['round']:.0f}", stated.get(name)
            yield f"{run.metrics_file}: has {name} {after}, result.json has {'none' if ended is None else f'{ended:g}'}"


def _notes(run: RunFolder, ledger: Ledger, row: Mapping[str, float]) -> Iterator[str]:
    """Yield what the ledger has besides: releases after the last row, and a line that a crash cut."""
    last = int(row["round"])
    later = len(ledger.entries) - ledger.releases(last)
    releases = "release" if later == 1 else "releases"
    if later and last and run.finished:
        yield f"{LEDGER_FILE} has {later} more {releases} than the metrics have rounds (killed): ε counts them"
    elif later and last:
        yield (
            f"{LEDGER_FILE} has {later} more {releases} than the metrics have rounds (killed, or at work): ε is that "
            f"of rounds 1 to {last}; of all: fl-sim account ledger"
        )
    elif later:
        yield (
            f"{LEDGER_FILE} has {later} {releases} and the metrics no round (killed, or at work): their ε: "
            "fl-sim account ledger"
        )
    content = (run.path / LEDGER_FILE).read_bytes()
    if content and not content.endswith(b"\n"):
        yield f"{LEDGER_FILE}, line {len(ledger.entries) + 2}: cut off (it was never released); left out"
