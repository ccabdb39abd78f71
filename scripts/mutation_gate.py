"""Put each mutation of tests/mutations into a copy of the tree and check that its tests fail.

    python scripts/mutation_gate.py --jobs 4                       # all of them
    python scripts/mutation_gate.py --only ID --only ID            # some, with the reason of each failure
    python scripts/mutation_gate.py --sample 24 --changed-since COMMIT --markdown verdicts.md

The working tree is never changed. The exit code is 0 if at least 97 % of the mutations are killed and each other one is
explained as equivalent, 1 if not, and 2 if the list cannot be used (docs/development.md).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mutation_testing.catalogue import CatalogueError, Mutation, changed_first, chosen, problems, read_catalogue
from mutation_testing.copies import Copies
from mutation_testing.summaries import LEAST_SHARE, as_markdown, counts, passes, share_killed
from mutation_testing.trials import Verdict, check_imports, failing_without_fault, judge

ROOT = Path(__file__).resolve().parents[1]
EXIT_FAILED, EXIT_BAD_INPUT = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Judge the requested mutations and print the verdicts; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        mutations = read_catalogue(ROOT)
        if args.sample is not None and args.sample < 1:
            raise CatalogueError(f"--sample is {args.sample}; allowed: an integer of at least 1")
        if args.only:
            mutations = chosen(mutations, args.only)
        elif args.sample is not None:
            mutations = changed_first(ROOT, mutations, args.changed_since, args.sample)
        wrong = [line for mutation in mutations for line in problems(ROOT, mutation)]
        if wrong:
            raise CatalogueError("; ".join(wrong))
    except CatalogueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    began = time.monotonic()
    verdicts = judge_all(mutations, args.jobs, args.timeout)
    _show(verdicts, time.monotonic() - began)
    if args.markdown is not None:
        args.markdown.write_text(as_markdown(verdicts), encoding="utf-8")
    return 0 if passes(verdicts) else EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mutation_gate.py", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this mutation; repeatable")
    parser.add_argument(
        "--sample", type=int, metavar="K", help="only K of them, first those of modules that changed since COMMIT"
    )
    parser.add_argument("--changed-since", default="HEAD", metavar="COMMIT", help="with --sample (default HEAD)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies of the tree at work (default 1)")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="per run of tests (default 600)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write all verdicts as tables")
    return parser


def judge_all(mutations: Sequence[Mutation], jobs: int, timeout: float) -> list[Verdict]:
    """Return the verdict on each mutation, in their order; their tests are first run without a fault.

    Args:
        mutations: the mutations to judge.
        jobs: copies of the tree, each with one run of tests at a time.
        timeout: the longest run of tests, in seconds.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-gate-", ignore_cleanup_errors=True) as folder:
        copies = Copies(ROOT, Path(folder).resolve(), max(1, min(jobs, len(mutations))), check_imports)
        failing = _failing(copies, mutations, timeout)
        sound = [mutation for mutation in mutations if not any(test in failing for test in mutation.tests)]
        judged = copies.map(lambda copy, mutation: _announced(judge(copy, mutation, timeout)), sound)
    verdicts = {verdict.mutation.id: verdict for verdict in judged}
    return [verdicts.get(mutation.id) or _broken(mutation, failing) for mutation in mutations]


def _failing(copies: Copies, mutations: Sequence[Mutation], timeout: float) -> dict[str, str]:
    """Return the tests that fail without any fault, with the reason."""
    by_file: dict[str, dict[str, None]] = {}
    for test in (test for mutation in mutations for test in mutation.tests):
        by_file.setdefault(test.partition("::")[0], {})[test] = None
    failing: dict[str, str] = {}
    for found in copies.map(
        lambda copy, tests: failing_without_fault(copy, tests, timeout), [list(tests) for tests in by_file.values()]
    ):
        failing |= found
    return failing


def _broken(mutation: Mutation, failing: dict[str, str]) -> Verdict:
    test = next(test for test in mutation.tests if test in failing)
    return Verdict(mutation, "broken", None, f"{test} fails without the fault: {failing[test]}", 0.0)


def _announced(verdict: Verdict) -> Verdict:
    by = verdict.by or verdict.reason
    print(f"{verdict.outcome:<9}{verdict.seconds:6.1f} s  {verdict.mutation.id}  {by}", flush=True)
    return verdict


def _show(verdicts: Sequence[Verdict], seconds: float) -> None:
    """Print what the gate does not accept, and the totals."""
    for verdict in verdicts:
        if not verdict.accepted:
            print(f"{verdict.outcome}: {verdict.mutation.id}: {verdict.mutation.fault} {verdict.reason}".rstrip())
    numbers = ", ".join(f"{number} {kind}" for kind, number in counts(verdicts).items() if number)
    print(f"{numbers}; {share_killed(verdicts):.1%} killed, at least {LEAST_SHARE:.0%} needed ({seconds:.0f} s)")


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
