"""The checks: what of the two checkouts is compared, each with the steps that it needs."""

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
    parquet_columns,
    printed_items,
    tensor_digests,
    toml_items,
    under,
)
from checkout_comparison.sources import RUNS
from checkout_comparison.steps import GOLDEN, GOLDEN_CASES, INTERRUPTED, OLDER, PREPARED, PRINTED, TAKEN_OVER, refusals

MANIFEST = "manifest.json"
CACHE_OF_SOURCES = ".sources.json"
"""What the sources were when they were last read, by their time and inode."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the comparison.

    Attributes:
        read: what is compared, of one checkout.
        needs: the steps that make it.
        may_refuse: the step whose command may refuse with exit code 2 in the newer checkout.
    """

    name: str
    read: Callable[[Side], Items]
    needs: tuple[str, ...] = ()
    may_refuse: str | None = None


def all_checks() -> list[Check]:
    """Every check, in the order of the table."""
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
    """The checks that one of the patterns names; without a pattern, all.

    Raises:
        InputError: a pattern names none.
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
    """The SHA-256 of every file of a prepared corpus, and its manifest key by key."""
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
    """The SHA-256 of the final model's files, and of every tensor of the last checkpoint."""
    del side
    return file_digests(folder / "model") | under(
        "checkpoint", tensor_digests(folder / "checkpoint" / "latest.safetensors")
    )


def _metrics_of(folder: Path, side: Side) -> Items:
    """Every figure of every round with all its digits, but for times; the columns of the Parquet file."""
    return json_items(folder / "metrics.jsonl", side) | under("parquet", parquet_columns(folder / "metrics.parquet"))


def _record_of(folder: Path, side: Side) -> Items:
    """Keys and figures of all that a run says of itself: in its files, its ledger included, and by --json."""
    names = ("config.json", "result.json", "environment.json", "ledger.jsonl", "ledger.head.json")
    found: Items = {}
    for name in names:
        found |= under(name, json_items(folder / name, side))
    return found | under("printed", printed_items(folder.name, side))


def _of_resumed(place: Path) -> Callable[[Side], Items]:
    """Model, metrics and figures of a run that went on; its ledger may count a round twice, by when it was killed."""

    def read(side: Side) -> Items:
        folder = side.work / place
        result = {
            item: value
            for item, value in json_items(folder / "result.json", side).items()
            if not item.startswith("ledger.")
        }
        return file_digests(folder / "model") | _metrics_of(folder, side) | under("result.json", result)

    return read


def _all_flags(side: Side) -> Items:
    found: Items = {}
    for verb, flags in read_flags(side).items():
        found |= under(verb or "fl-sim", flags)
    return found


def _configurations(side: Side) -> Items:
    """Every key of every configuration that ships."""
    folder, found = side.checkout / "conf", Items()
    for path in sorted(folder.rglob("*.toml")):
        found |= under(path.relative_to(folder).as_posix(), toml_items(path, side))
    return found


def _flwr_keys(side: Side) -> Items:
    """The keys that ``flwr run --run-config`` takes."""
    return keys_and_values("pyproject.toml", read_pyproject(side.checkout)["tool"]["flwr"]["app"]["config"], side)
