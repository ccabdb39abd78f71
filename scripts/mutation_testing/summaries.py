"""The verdicts of the gate as numbers and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mutation_testing.trials import Verdict

LEAST_SHARE = 0.97
"""Share of the mutations without an equivalent that must die."""


def share_killed(verdicts: Iterable[Verdict]) -> float:
    """Return the share of killed mutations among those not explained as equivalent; 1 if there are none."""
    real = [verdict.outcome == "killed" for verdict in verdicts if verdict.mutation.equivalent is None]
    return sum(real) / len(real) if real else 1.0


def passes(verdicts: Sequence[Verdict]) -> bool:
    """Return whether the gate is passed: enough die, and every other one is explained."""
    return share_killed(verdicts) >= LEAST_SHARE and all(verdict.accepted for verdict in verdicts)


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Return the numbers of verdicts by kind; an equivalent mutation that survived is a kind of its own."""
    result = {"killed": 0, "equivalent": 0, "survived": 0, "broken": 0}
    for verdict in verdicts:
        explained = verdict.outcome == "survived" and verdict.mutation.equivalent is not None
        result["equivalent" if explained else verdict.outcome] += 1
    return result


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return a table of the numbers by subject, and one of all verdicts."""
    subjects = list(dict.fromkeys(verdict.mutation.subject for verdict in verdicts))
    lines = ["| subject | mutations | killed | equivalent | survived | broken |", "|---|---|---|---|---|---|"]
    for subject in subjects:
        lines.append(_numbers(subject, [verdict for verdict in verdicts if verdict.mutation.subject == subject]))
    lines += [_numbers("all", verdicts), "", "| mutation | fault | verdict | caught by |", "|---|---|---|---|"]
    lines += [_line(verdict) for verdict in verdicts]
    return "\n".join(lines) + "\n"


def _numbers(name: str, verdicts: Sequence[Verdict]) -> str:
    numbers = counts(verdicts)
    return f"| {name} | {len(verdicts)} | {' | '.join(map(str, numbers.values()))} |"


def _line(verdict: Verdict) -> str:
    mutation = verdict.mutation
    outcome = verdict.outcome
    if outcome == "survived" and mutation.equivalent is not None:
        outcome_in_words, by = "equivalent", mutation.equivalent
    else:
        outcome_in_words, by = outcome, _test_in_words(verdict.by) if verdict.by else verdict.reason
    return f"| {mutation.id} | {mutation.fault} | {outcome_in_words} | {by.replace('|', '/')} |"


def _test_in_words(test: str) -> str:
    """Return a node id as "`test_ledger::test_a_gap_is_refused`", without folder and parameters."""
    file, _, name = test.partition("[")[0].partition("::")
    return f"`{file.rpartition('/')[2].removesuffix('.py')}::{name}`"
