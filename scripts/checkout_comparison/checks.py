"""The checks: what is compared between the two checkouts, each with the steps that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from checkout_comparison.checkouts import Side, read_pyproject
from checkout_comparison.differences import InputError, Items
from checkout_comparison.flags import read_flags
from checkout_comparison.readings import (
    file_digests,
    file_names,
    json_items,
    keys_and_values,
    printed_items,
    tensor_digests,
    toml_items,
    under,
)
from checkout_comparison.sources import RUNS
from checkout_comparison.steps import GOLDEN, GOLDEN_CASES, INTERRUPTED, OLDER, PREPARED, PRINTED, TAKEN_OVER, refusals

MANIFEST = "manifest.json"
CACHE_OF_SOURCES = ".sources.json"
"""The file with the time and inode of each source when it was last read."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the comparison.

    Attributes:
        name: group and name, as in ``run/uedp/model``.
        read: reads from one checkout the items to compare.
        needs: the steps that produce them.
        may_refuse: the step whose command the newer checkout may refuse with exit code 2.
    """

    name: str
    read: Callable[[Side], Items]
    needs: tuple[str, ...] = ()
    may_refuse: str | None = None


def all_checks() -> list[Check]:
    """Return every check, in the order of the table."""
    checks = [Check(f"golden/{name}", _printed(f"golden-{name}"), (f"golden-{name}",)) for name in GOLDEN_CASES]
    checks.append(Check("golden/files", lambda side: file_digests(side.checkout / GOLDEN)))
    for name in PREPARED:
        checks.append(Check(f"prepare/{name}", _corpus(name), (name,)))
    for name in RUNS:
        checks += _checks_of_run(name)
    checks.append(Check("run/resumed", _of_resumed(INTERRUPTED), ("interrupted",)))
    checks += [Check(f"json/{name}", _printed(name), (name,)) for name in PRINTED]
    checks += [
        Check("files/sweep", lambda side: file_names(side.work / "sweep"), ("sweep",)),
        Check("files/plot", lambda side: file_names(side.work / "pictures"), ("plot",)),
        Check("files/reproduce", lambda side: file_names(side.work / "figures"), ("reproduce",)),
        Check("files/represent", lambda side: json_items(side.work / "represented" / "record.json", side),
              ("represent",)),
        Check("files/pretrain", lambda side: file_digests(side.work / "models" / "small"), ("pretrain",)),
        Check("files/deidentify", lambda side: _corpus_items(side.work / "corpora" / "category", side),
              ("deidentify",)),
        Check("files/surrogate", lambda side: _corpus_items(side.work / "corpora" / "surrogate", side),
              ("deidentify-surrogate",)),
        Check("older/resume", _of_resumed(TAKEN_OVER), ("taken-over",), may_refuse="taken-over"),
        *(Check(f"older/{name}", _printed(f"older-{name}"), (f"older-{name}",)) for name in OLDER),
        Check("flags", _all_flags),
        Check("refused", refusals, ("refused",)),
        Check("configuration/files", _configurations),
        Check("configuration/flwr", _flwr_keys),
    ]  # fmt: skip
    return checks


def chosen_checks(only: list[str]) -> list[Check]:
    """Return the checks that match one of the patterns; all of them without a pattern.

    Raises:
        InputError: a pattern matches no check.
    """
    checks = all_checks()
    for pattern in only:
        if not any(fnmatchcase(check.name, pattern) for check in checks):
            raise InputError(f"--only {pattern}: no check has such a name (see --list)")
    return [check for check in checks if not only or any(fnmatchcase(check.name, pattern) for pattern in only)]


def _printed(step: str) -> Callable[[Side], Items]:
    return lambda side: printed_items(step, side)


def _corpus(name: str) -> Callable[[Side], Items]:
    def read(side: Side) -> Items:
        return _corpus_items(side.work / "corpora" / name, side) | under("printed", printed_items(name, side))

    return read


def _corpus_items(folder: Path, side: Side) -> Items:
    """Return the SHA-256 of every file of a prepared corpus, and its manifest key by key."""
    return file_digests(folder, but=lambda path: path.name in (MANIFEST, CACHE_OF_SOURCES)) | json_items(
        folder / MANIFEST, side
    )


def _checks_of_run(name: str) -> list[Check]:
    readers: dict[str, Callable[[Path, Side], Items]] = {
        "model": _model_of,
        "metrics": _metrics_of,
        "record": _record_of,
        "files": lambda folder, side: file_names(folder),
    }
    return [
        Check(f"run/{name}/{what}", lambda side, read=read: read(side.work / "runs" / name, side), (name,))  # type: ignore[misc]
        for what, read in readers.items()
    ]


def _model_of(folder: Path, side: Side) -> Items:
    """Return the SHA-256 of the final model's files and of every tensor of the last checkpoint."""
    del side
    return file_digests(folder / "model") | under(
        "checkpoint", tensor_digests(folder / "checkpoint" / "latest.safetensors")
    )


def _metrics_of(folder: Path, side: Side) -> Items:
    """Return every figure of every round with all digits (except times)."""
    return json_items(folder / "metrics.jsonl", side)


def _record_of(folder: Path, side: Side) -> Items:
    """Return keys and figures of the JSON files of a run, its ledger included, and of its ``--json`` output."""
    names = ("config.json", "result.json", "environment.json", "ledger.jsonl", "ledger.head.json")
    items: Items = {}
    for name in names:
        items |= under(name, json_items(folder / name, side))
    return items | under("printed", printed_items(folder.name, side))


def _of_resumed(run: Path) -> Callable[[Side], Items]:
    """Read model, metrics and figures of a resumed run, but not its ledger.

    Depending on when the run was killed, its ledger may count a round twice.
    """

    def read(side: Side) -> Items:
        folder = side.work / run
        result = {
            item: value
            for item, value in json_items(folder / "result.json", side).items()
            if not item.startswith("ledger.")
        }
        return file_digests(folder / "model") | _metrics_of(folder, side) | under("result.json", result)

    return read


def _all_flags(side: Side) -> Items:
    items: Items = {}
    for verb, flags in read_flags(side).items():
        items |= under(verb or "fl-sim", flags)
    return items


def _configurations(side: Side) -> Items:
    """Return every key of every configuration in ``conf/``."""
    folder, items = side.checkout / "conf", Items()
    for path in sorted(folder.rglob("*.toml")):
        items |= under(path.relative_to(folder).as_posix(), toml_items(path, side))
    return items


def _flwr_keys(side: Side) -> Items:
    """Return the keys that ``flwr run --run-config`` takes."""
    return keys_and_values("pyproject.toml", read_pyproject(side.checkout)["tool"]["flwr"]["app"]["config"], side)
