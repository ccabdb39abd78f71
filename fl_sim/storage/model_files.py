"""The model files of a run: their checksums, and the lineage kept beside the weights.

A ledger says what was released; the checksums, in the run's result beside the head of its ledger, say that the weights
in the folder are those. The lineage is the ledgers of all runs that trained the model.

    lineage/lineage.json          heads of the ledgers (oldest first), checksums of the model's files, its own hash
    lineage/owner.json            private: the corpus and the contribution bounds of every run
    lineage/<run>/ledger.jsonl    the ledger of each run, with its head (fl_sim.strategies.ledger)

A run's ``model/`` has such a folder, and so has a run that starts from a trained model (``ancestors/``), so that its
own ε can be computed when the first run is gone. ``spec.json`` and ``config.json`` of a trained model carry a mark, so
that a model whose lineage was removed is not taken for a public one. The hashes are checksums: they detect a change,
not an adversary who can write all files.

What of it may be given away: docs/privacy-accounting.md, section 9.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> _ = (folder / "weights.bin").write_bytes(b"1")
>>> check(folder, {KEY: checksums(folder)})

>>> read_model(Path("no/such/model")) == Lineage()
True
"""

from __future__ import annotations

import itertools
import json
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_sim.clients.models.architectures.architecture import ARCHITECTURE_KEY
from fl_sim.clients.models.model_names import AWD_LSTM
from fl_sim.files import json_object, read_bytes, replace_file, sha256_of, sha256_of_json
from fl_sim.storage.run_folder import ResultsError, decode, encode
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE, Ledger, LedgerError, LedgerHead, is_head

KEY = "model_files"
"""Key of the checksums in result.json."""


CARD = "README.md"
"""The model card, which its owner may edit: no checksum has it, and no ε is read from it."""

LINEAGE = "lineage"
"""Folder of the lineage in a model's folder, which has hashes of its own."""

ANCESTORS = "ancestors"
"""Folder of the same files in the folder of a run that starts from a trained model."""

PRETRAINING = "pretraining.json"
"""Record that ``fl-sim corpus pretrain`` writes: its text is public, so its models have no lineage."""

_INDEX, _OWNER = "lineage.json", "owner.json"
_MARK = "fl_sim_trained"
_MARKED = ("spec.json", "config.json")


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in ``folder`` and below but its card and its lineage, by relative path."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {file.as_posix(): sha256_of(folder / file) for file in files if file.parts[0] not in (CARD, LINEAGE)}


def changed(expected: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Return the files whose checksums differ, sorted."""
    names = sorted(expected.keys() | actual.keys())
    return [name for name in names if expected.get(name) != actual.get(name)]


def check(folder: Path, result: Mapping[str, object]) -> None:
    """Check that ``folder`` holds the model of the run with this content of result.json.

    Raises:
        ResultsError: a file was changed, removed or added, or the result has no checksums.
    """
    expected = result.get(KEY)
    if not isinstance(expected, dict) or not expected:
        raise ResultsError(f"{folder}: result.json has no {KEY}, the checksums of the model; allowed: a run with them")
    wrong = changed(expected, checksums(folder))
    if wrong:
        raise ResultsError(
            f"{folder / wrong[0]}: is not the file that the run wrote; no ε of the run covers this model"
        )


class LineageError(ResultsError):
    """A trained model whose lineage is missing or was changed; the message is one line that names the file."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """Describe one run that trained a model.

    Attributes:
        units: its protected unit by metric.
        states: the corpus's fingerprints: of now, before sentences were appended, and of all that it was made of.
        apart_from: fingerprints of corpora that share no user and no entity with this one, as their owner stated.
    """

    ledger: Ledger
    corpus: str
    units: Mapping[str, ProtectedUnit]
    states: frozenset[str] = frozenset()
    apart_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lineage:
    """Describe the runs that trained a model, oldest first; without any, the model counts as public.

    Attributes:
        lost: whether some runs are unknown, because a lineage was lost.
        lost_apart_from: fingerprints of corpora that share no user and no entity with those of the unknown runs, as
            their owner stated.
    """

    ancestors: tuple[Ancestor, ...] = ()
    lost: bool = False
    lost_apart_from: tuple[str, ...] = ()


def read_model(folder: Path) -> Lineage:
    """Return the lineage of the model in ``folder``; an empty one if fl_sim never trained it on a corpus.

    Raises:
        LineageError: the model was trained by fl_sim, and its lineage is missing or was changed, or the model was.
    """
    lineage = _read_one(folder)
    for base in _bases_of_adapter(folder):
        below = _read_one(base)
        for one, other in itertools.product((a.ledger for a in below.ancestors), (a.ledger for a in lineage.ancestors)):
            if one.run == other.run and not (one.continues(other) or other.continues(one)):  # and no ledger counts both
                raise LineageError(f"{base}: is the model of another copy of its run than {folder} was trained on")
        lineage = merged(below, lineage)
    return lineage


def _read_one(folder: Path) -> Lineage:
    """Return the lineage in a model's folder, that of a frozen model under it left out."""
    kept = folder / LINEAGE
    if not kept.is_dir():
        if _is_trained(folder):
            raise LineageError(f"{kept}: is missing; what the runs that trained this model released is not known")
        return Lineage()
    lineage, weights = _read(kept)
    for name in changed(weights, checksums(folder)):
        raise LineageError(f"{folder / name}: is not the file that its run wrote; no ε is known for this model")
    return lineage


def pretraining_sample(folder: Path) -> tuple[str, ...]:
    """Return the sample of the text that ``fl-sim corpus pretrain`` made the model in ``folder`` of; none of others.

    Raises:
        LineageError: its record is corrupt.
    """
    file = folder / PRETRAINING
    return tuple(_object(file).get("sentence_sample", ())) if file.is_file() else ()


def readable_ledgers(folder: Path) -> list[Ledger]:
    """Return the ledgers that are left in the lineage of the model in ``folder``, even if others are lost."""
    ledgers = []
    for file in sorted(folder.glob(f"{LINEAGE}/*/{LEDGER_FILE}")):
        with suppress(LedgerError):
            ledgers.append(Ledger.read(file.parent))
    return ledgers


def write_model(folder: Path, lineage: Lineage) -> None:
    """Mark the saved model in ``folder`` as trained, and write the lineage beside it."""
    for file in (folder / name for name in _MARKED):
        content = _object(file) if file.is_file() else {}
        if content and not is_own_format(content):
            _write_object(file, content | {_MARK: True})
    shutil.rmtree(folder / LINEAGE, ignore_errors=True)
    _write(folder / LINEAGE, lineage, checksums(folder))


def read_ancestors(folder: Path) -> Lineage:
    """Return the lineage of the initial model of the run in ``folder``; empty if it was public.

    Raises:
        LineageError: it was changed.
    """
    return _read(folder / ANCESTORS)[0] if (folder / ANCESTORS).is_dir() else Lineage()


def write_ancestors(folder: Path, lineage: Lineage) -> None:
    """Write the lineage of the initial model of the run in ``folder``; nothing for a public model."""
    if lineage != Lineage():
        _write(folder / ANCESTORS, lineage, {})


def ancestor_ledgers(ledger: Ledger) -> list[Ledger]:
    """Return the ledgers of the runs that a run's own ledger names as its ancestors, as its folder keeps them.

    Raises:
        LedgerError: one is missing, or is not the one that is named.
    """
    kept = []
    for head in ledger.ancestors:
        ancestor = Ledger.read(ledger.folder / ANCESTORS / head["run"])
        if ancestor.run != head["run"]:
            raise LedgerError(f"{ancestor.file}: is not the ledger of the run {head['run']}")
        ancestor.check_head(head)
        kept.append(ancestor)
    return kept


def merged(first: Lineage, second: Lineage) -> Lineage:
    """Return the runs of two lineages, each once, with the more releases of its two ledgers."""
    known = {ancestor.ledger.run: ancestor for ancestor in first.ancestors}
    for ancestor in second.ancestors:
        before = known.get(ancestor.ledger.run, ancestor).ledger
        longer = max(before, ancestor.ledger, key=lambda ledger: len(ledger.entries))
        known[ancestor.ledger.run] = replace(ancestor, ledger=longer)
    lost = [lineage.lost_apart_from for lineage in (first, second) if lineage.lost]
    common = tuple(name for name in (lost[0] if lost else ()) if all(name in others for others in lost))
    return Lineage(tuple(known.values()), bool(lost), common)


def _read(folder: Path) -> tuple[Lineage, dict[str, str]]:
    """Return a lineage, and the checksums of the model's files that its index has."""
    index = _object(folder / _INDEX)
    if index.pop("hash", None) != sha256_of_json(index):
        raise LineageError(f"{folder / _INDEX}: was changed, or is of another version of fl-sim")
    if not (folder / _OWNER).is_file():
        raise LineageError(f"{folder / _OWNER}: is missing; without it no ε of two trainings can be computed")
    owner = decode(_object(folder / _OWNER))
    try:
        if sha256_of(folder / _OWNER) != index["owner"]:
            raise LineageError(f"{folder / _OWNER}: was changed")
        ancestors = []
        for head in index["runs"]:
            if not is_head(head):
                raise LineageError(f"{folder / _INDEX}: is corrupt (a head of a ledger is expected)")
            ledger = _read_ledger(folder / head["run"], head)
            values = owner["runs"][ledger.run]
            units = _units(ledger, values["units"])
            states, apart = frozenset(values["states"]), tuple(values["apart_from"])
            ancestors.append(Ancestor(ledger, values["corpus"], units, states, apart))
        return Lineage(tuple(ancestors), index["lost"], tuple(owner["lost_apart_from"])), index["weights"]
    except (KeyError, TypeError) as error:
        raise LineageError(f"{folder}: is corrupt (it lacks {error})") from error


def _read_ledger(folder: Path, head: LedgerHead) -> Ledger:
    ledger = Ledger.read(folder)
    if ledger.head != head:
        raise LineageError(f"{ledger.file}: is not the ledger that {folder.parent / _INDEX} names")
    return ledger


def _units(ledger: Ledger, values: Mapping[str, Mapping[str, Any]]) -> dict[str, ProtectedUnit]:
    try:
        return {metric: ProtectedUnit.from_record(unit) for metric, unit in values.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise LineageError(f"{ledger.folder}: its contribution bounds are of another version of fl-sim") from error


def _write(folder: Path, lineage: Lineage, weights: Mapping[str, str]) -> None:
    """Write all files of a lineage; lineage.json, without which the others are not read, is the last."""
    folder.mkdir(parents=True)
    for ancestor in lineage.ancestors:
        own = folder / ancestor.ledger.run
        own.mkdir()
        for name in (LEDGER_FILE, HEAD_FILE):
            replace_file(own / name, (ancestor.ledger.folder / name).read_bytes())
        _read_ledger(own, ancestor.ledger.head)
    runs = {
        a.ledger.run: {"corpus": a.corpus, "units": a.units, "states": sorted(a.states), "apart_from": a.apart_from}
        for a in lineage.ancestors
    }
    # With the salt, the hash of this file in lineage.json does not tell which corpus it was.
    _write_object(
        folder / _OWNER,
        encode({"salt": secrets.token_hex(16), "runs": runs, "lost_apart_from": lineage.lost_apart_from}),
    )
    index = {
        "runs": [ancestor.ledger.head for ancestor in lineage.ancestors],
        "lost": lineage.lost,
        "weights": dict(weights),
        "owner": sha256_of(folder / _OWNER),
    }
    _write_object(folder / _INDEX, index | {"hash": sha256_of_json(index)})


def _write_object(file: Path, values: Mapping[str, object]) -> None:
    replace_file(file, json.dumps(values, indent=2).encode() + b"\n")


def _is_trained(folder: Path) -> bool:
    """Return whether fl_sim saved the model in ``folder`` after training it on a corpus, as far as its files tell.

    A file that fl_sim alone writes needs no mark.
    """
    contents = [_object(folder / name) for name in _MARKED if (folder / name).is_file()]
    if any(content.get(_MARK) for content in contents):
        return True
    saved_by_us = (folder / "spec.json").is_file() or any(map(is_own_format, contents))
    return saved_by_us and not (folder / PRETRAINING).is_file()


def is_own_format(content: Mapping[str, object]) -> bool:
    """Return whether a ``config.json`` is one that fl_sim alone writes, so that it needs no mark."""
    return content.get("model_type") == AWD_LSTM or ARCHITECTURE_KEY in content


def _bases_of_adapter(folder: Path) -> list[Path]:
    """Return the folders of the frozen models under the adapter in ``folder``, from the uppermost down."""
    below = [folder]
    while (file := below[-1] / "adapter_config.json").is_file():
        name = _object(file).get("base_model_name_or_path")
        if not (isinstance(name, str) and name and Path(name).is_dir()) or Path(name) in below:
            break
        below.append(Path(name))
    return below[1:]


def _object(file: Path) -> dict[str, Any]:
    try:
        return json_object(read_bytes(file))
    except FileNotFoundError as error:
        raise LineageError(f"{file}: is missing") from error
    except (OSError, ValueError) as error:
        raise LineageError(f"{file}: is corrupt (no JSON object)") from error
