"""Bind the ledger of a run to what it records, so that no ε is shown that the ledger does not support.

ε of a run is that of the releases in its ledger (:mod:`fl_sim.strategies.ledger`). Metrics and result repeat it for
readers. If the ledger lost lines, was changed, or counts other releases than they do, their ε may be too small.

First the anchor, a copy of the ledger's head outside the run's folder, by which older copies are noticed; then what
the releases are computed from (``computation.json``), to which the ledger is bound; then the ledger against metrics
and result.

Secure noise cannot be repeated. If a copy of a run's folder is resumed twice, or an older copy is put back, releases
are lost from the ledger that goes on, and its ε is too small. A folder cannot tell this about itself. So the head hash
is also kept elsewhere and compared when the run resumes and before each release: in the file of the setting ``anchor``,
and otherwise, with secure noise, in the user's state folder (``$XDG_STATE_HOME`` or ``~/.local/state``). The latter is
kept where that folder can be written, and lost with the machine; the former is required.

If two runs with other learning rates, corpora or initial models had the same seeded noise, the difference of their
releases would have none. So all that a release depends on is written down before the first one: every setting but those
of :data:`NOT_RELEASED`, and digests of corpus, tokens, selection, initial model and code. A digest of it is part of the
key of the seeded noise. The ledger's head and its first line depend on a salted digest of the file, because a ledger
may be given away and a plain digest would tell a corpus from the one with a user less. Every resume computes the parts
again.

Assumption: whoever edits a run's files does not edit this file, the ledger and its head consistently.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     ledger = Ledger.create(Path(folder))
...     anchor = Anchor(Path(folder) / "kept.json", required=True)
...     anchor.write(ledger)
...     anchor.check(ledger)

>>> before = Computation({"settings": {"seed": 0, "rounds": 3}, "corpus": "0a1b"}, salt="5a17")
>>> with tempfile.TemporaryDirectory() as folder:
...     before.write(Path(folder))
...     Computation.read(Path(folder)).check({"settings": {"seed": 0, "rounds": 4}, "corpus": "0a1b"}, Path("run"))
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: run: rounds is 4; allowed: 3, as when the run began, or a new run

>>> with tempfile.TemporaryDirectory() as folder:
...     run = RunFolder.create(Path(folder) / "run", config={}, environment={})
...     run.append_metrics({"round": 1, "releases": 1, "epsilon_any": 0.5})
...     before = Ledger.create(run.path)
...     check_ledger(run).problem.rpartition("ledger.jsonl")[2]
': has 0 releases of the rounds 1 to 1, metrics.jsonl counts 1'
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.config import RunConfig, keys_of_others
from fl_sim.formats import format_epsilon
from fl_sim.plugins import PluginError
from fl_sim.storage.checkpoint import folder_head_of
from fl_sim.storage.run_folder import ResultsError, RunFolder, encode, replace_file
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.ledger import LEDGER_FILE, Ledger, LedgerError, epsilon_of, epsilon_of_any
from fl_sim.strategies.primitives.noise import gaussian_noise

NONE = "none"
"""The value of the setting ``anchor`` for no anchor at all."""

_FOLDER = Path("fl-sim") / "anchors"


@dataclass(frozen=True)
class Anchor:
    """A file that holds the head of a run's ledger.

    Attributes:
        file: its path; None for a run without an anchor.
        required: whether the run may not go on without it.
    """

    file: Path | None
    required: bool = False

    @classmethod
    def of(cls, config: RunConfig, run: str) -> Anchor:
        """Return the anchor of a run.

        Args:
            config: of the run.
            run: the identity in its ledger.
        """
        if config.anchor == NONE:
            return cls(None)
        if config.anchor is not None:
            return cls(Path(config.anchor), required=True)
        return cls.by_default(run, secure_noise=config.privacy.secure_noise)

    @classmethod
    def by_default(cls, run: str, *, secure_noise: bool) -> Anchor:
        """Return the anchor of a run that names none: in the user's state folder, for secure noise alone."""
        folder = state_folder() if secure_noise else None
        return cls(None if folder is None else folder / _FOLDER / f"{run}.json")

    def check_new(self) -> None:
        """Check that a new run can have this anchor.

        Raises:
            ResultsError: the file exists, or its folder does not.
        """
        if self.file is None or not self.required:
            return
        if self.file.exists() or self.file.is_symlink():
            raise ResultsError(f"anchor is {self.file}, which exists; allowed: a new file")
        if not self.file.parent.is_dir():
            raise ResultsError(f"anchor is {self.file}; allowed: a file in a folder that exists")

    def check(self, ledger: Ledger) -> None:
        """Check that the ledger has all releases of which the anchor knows.

        Raises:
            LedgerError: the folder is an older copy, or another copy of it went on; or a required anchor is missing,
                corrupt or of another run.
        """
        head = self._read(ledger)
        if head is None:
            return
        if head["run"] != ledger.run:
            raise LedgerError(f"{self.file}: is the anchor of another run; allowed: the file of this run, or a new one")
        try:
            ledger.check_head(head)
        except LedgerError as error:
            raise LedgerError(
                f"{ledger.folder}: is an older copy of the run, or another copy went on: {self.file} knows of "
                f"{head['entries']} releases; allowed: the copy that went on, or resume --anchor with a new file, if "
                "fl-sim account is given all copies"
            ) from error

    def write(self, ledger: Ledger) -> None:
        """Replace the content by the head of ``ledger``; OSError only if the anchor is required."""
        if self.file is None:
            return
        content = {name: ledger.head[name] for name in ("run", "entries", "last")}
        if self.required:
            replace_file(self.file, json.dumps(content).encode() + b"\n")
            return
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, json.dumps(content).encode() + b"\n")

    def _read(self, ledger: Ledger) -> dict[str, Any] | None:
        """Return the head that was kept; None without an anchor, or before the first release."""
        if self.file is None:
            return None
        try:
            head = json.loads(self.file.read_bytes())
            kinds = {name: type(value) for name, value in head.items()}
            if kinds == {"run": str, "entries": int, "last": str}:
                return dict(head)
        except FileNotFoundError as error:
            if not self.required or len(ledger.entries) <= 1:  # killed between the first release record and the anchor
                return None
            raise LedgerError(f"{self.file}: is missing; allowed: the anchor of the run, or --anchor anew") from error
        except (OSError, ValueError, AttributeError) as error:
            if not self.required:
                return None
            raise LedgerError(f"{self.file}: cannot be read as an anchor") from error
        raise LedgerError(f"{self.file}: is corrupt ('run', 'entries' and 'last' are expected)")


NO_FILE = Anchor(None)
"""No anchor at all."""


def state_folder() -> Path | None:
    """Return the user's folder for state; None if there is no home."""
    given = os.environ.get("XDG_STATE_HOME")
    try:
        folder = Path(given) if given else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None


FILE = "computation.json"

RELEASE_FORMAT = 2
"""Version of samples, sums and noise; raised when equal settings would give another release."""

NOT_RELEASED = frozenset(
    {
        "out", "anchor", "observers", "tracking", "checkpoint_every", "evaluation",  # presentation
        "engine",  # placement
        "origin",  # a remark
        "corpus.path", "corpus.held_out_split", "corpus.feature_cache",  # the fingerprint stands for the corpus
        "model.name", "model.tokenizer", "model.device",  # the weights and the tokens do
        "privacy.public_names", "privacy.public_weights",  # the selection does
        "privacy.entity_key",  # a digest under the key does
    }
)  # fmt: skip
"""Keys and sections of a configuration on which no release depends, or whose content has a digest of its own."""


@dataclass(frozen=True)
class Computation:
    """All that the releases of a run are computed from.

    Attributes:
        parts: settings by name, and digests by subject, JSON-ready.
        salt: random text, so that the digest does not tell which corpus it was.
    """

    parts: Mapping[str, Any]
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of salt and parts, to which the ledger is bound."""
        return hashlib.sha256(_canonical({"salt": self.salt, "parts": self.parts})).hexdigest()

    def write(self, folder: Path) -> None:
        """Write the file into the folder of a run."""
        content = {"salt": self.salt, "parts": self.parts}
        replace_file(folder / FILE, json.dumps(encode(content), indent=2, ensure_ascii=False).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Computation:
        """Return the computation of the run in ``folder``.

        Raises:
            ResultsError: the file is missing or corrupt.
        """
        file = folder / FILE
        try:
            content = json.loads(file.read_bytes())
            return cls(dict(content["parts"]), str(content["salt"]))
        except FileNotFoundError as error:
            raise ResultsError(
                f"{file}: is missing; allowed: the folder as its run left it, or a run that another version of fl-sim "
                "began, resumed by that version"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ResultsError(f"{file}: is corrupt ('salt' and 'parts' are expected)") from error

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> Computation:
        """Return what the releases of a ledger were computed from.

        Raises:
            ResultsError: the file is missing, corrupt, or not what the ledger is bound to.
        """
        computation = cls.read(ledger.folder)
        computation.check_binding(ledger)
        return computation

    def check_binding(self, ledger: Ledger) -> None:
        """Raise ResultsError if the ledger is bound to something else."""
        if self.digest != ledger.computation:
            raise ResultsError(f"{ledger.folder / FILE}: is not what the run's ledger is bound to")

    def check(self, parts: Mapping[str, Any], folder: Path) -> None:
        """Check that the run in ``folder`` would still compute the same releases.

        Args:
            parts: what they would be computed from now.
            folder: of the run.

        Raises:
            ResultsError: a part differs; the message names the first one.
        """
        now = json.loads(_canonical(parts))
        for name in sorted({*self.parts, *now} - {"settings"}):
            if self.parts.get(name) != now.get(name):
                raise ResultsError(
                    f"{folder}: {name.replace('_', ' ')} is not that of the run's beginning; allowed: the same, or a "
                    "new run"
                )
        before, after = (dict(each.get("settings") or {}) for each in (self.parts, now))
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                raise ResultsError(
                    f"{folder}: {key} is {_shown(after.get(key))}; allowed: {_shown(before.get(key))}, as when the run "
                    "began, or a new run"
                )


def released_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run on which its releases depend, by their full names.

    Keys that only other strategies read have their defaults: seeded noise does not depend on who declares a key.
    """
    unread = _leaves(keys_of_others(type(config.privacy)), "privacy.")
    return dict(unread) | dict(_leaves(config.model_dump(mode="json"), ""))


def _leaves(tree: Mapping[str, Any], section: str) -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{section}{name}"
        if key in NOT_RELEASED:
            continue
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, encode(value)


def noise_key(parts: Mapping[str, Any]) -> str:
    """Return the digest of what releases are computed from that is part of the key of their seeded noise.

    It is not salted, so that the same run can be repeated, and must not leave the process. Settings that are None are
    left out, so that a later version's new setting gives earlier runs no other noise.
    """
    settings = {key: value for key, value in parts["settings"].items() if value is not None}
    return hashlib.sha256(_canonical({**parts, "settings": settings})).hexdigest()


def noise_digest() -> str:
    """Return a digest of a sample of the seeded noise, which another sampler would change."""
    return digest_of([gaussian_noise(seed=0, server_round=1, size=256, std=1.0)])


def digest_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of types, shapes and bytes of arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        values = np.ascontiguousarray(array)
        digest.update(f"{values.dtype.str} {values.shape}\n".encode())
        digest.update(values.data if values.size else b"")
    return digest.hexdigest()


def _shown(value: Any) -> str:
    return "missing" if value is None else json.dumps(value, ensure_ascii=False)


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(encode(values), sort_keys=True, separators=(",", ":")).encode()


_TOLERANCE = 1e-9
_OF_ACCOUNTANTS = 0.01  # two discretisations of one ε differ by far less, a lost release of few rounds by more


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """What a comparison of a run's ledger with its metrics and result found.

    Attributes:
        problem: why no ε of the run can be trusted, in one line that names the file; None if nothing is wrong.
        notes: what a reader should know of a ledger that is in order.
        ledger: the ledger; None if it cannot be read.
    """

    problem: str | None = None
    notes: tuple[str, ...] = ()
    ledger: Ledger | None = None


def check_ledger(run: RunFolder) -> LedgerCheck:
    """Compare the ledger of ``run`` with its metrics and, if it has ended, with its result.

    A run without a round has nothing to compare. A release after the last row of the metrics is that of a round under
    way, or of a run that was killed in it: ε of the metrics' rounds stands, and a note says what it leaves out.

    Raises:
        ResultsError: metrics or result are corrupt.
    """
    rows = run.metrics().to_dict("records")  # before the ledger, which is ahead of them in a run that is at work
    if not rows:
        return LedgerCheck()
    row = {str(name): value for name, value in rows[-1].items()}
    try:
        ledger = Ledger.read(run.path)
        if run.result is not None:
            ledger.check_head(run.result.get("ledger") or {})
    except (LedgerError, OSError) as error:
        if isinstance(error.__cause__, PluginError):
            return _without_strategy(run, row, error.__cause__)
        return LedgerCheck(" ".join(str(error).split()))
    problem = next(_contradictions(run, ledger, row), None)
    return LedgerCheck(problem, () if problem else tuple(_notes(run, ledger, row)), ledger)


def _without_strategy(run: RunFolder, row: Mapping[str, Any], error: PluginError) -> LedgerCheck:
    """Return what the number of lines says of a ledger whose strategy is not installed here, so that none is read."""
    file = run.path / LEDGER_FILE
    lines, counted = file.read_bytes().count(b"\n"), int(row.get("releases", row["round"]))
    if lines < counted:
        return LedgerCheck(f"{file}, line {lines + 1}: is cut off; metrics.jsonl counts {counted} releases")
    return LedgerCheck(notes=(f"ε is that of the metrics; the ledger cannot be read here ({error})",))


def require_ledger(run: RunFolder) -> None:
    """Raise LedgerError if no ε of ``run`` can be trusted."""
    if problem := check_ledger(run).problem:
        raise LedgerError(problem)


def _contradictions(run: RunFolder, ledger: Ledger, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what metrics and result say that the ledger does not."""
    file, last = run.path / LEDGER_FILE, int(row["round"])
    if ledger.last_round < last:
        yield f"{file}: has {ledger.releases(last)} releases of the rounds 1 to {last}, metrics.jsonl counts {last}"
    counted = row.get("releases")
    if counted is not None and ledger.releases(last) != counted:
        yield (
            f"{file}: has {ledger.releases(last)} releases of the rounds 1 to {last}, metrics.jsonl counts "
            f"{int(counted)}"
        )
    yield from _changed_since_checkpoint(run)
    yield from _other_bounds(run, ledger)
    if run.result is not None:
        yield from _contradictions_of_result(run, run.result, ledger, row)
    yield from _understated(run, ledger, row)


def _other_bounds(run: RunFolder, ledger: Ledger) -> Iterator[str]:
    """Yield what bounds the run's files state that its releases do not have: they say which adjacency ε is of."""
    released = [guarantee.record() for guarantee in {entry.terms.guarantee for entry in ledger.entries}]
    for file, tree in {run.config_file: run.config, run.result_file: run.result or {}}.items():
        stated = tree.get("guarantee") or {}
        for bounds in released if stated else ():
            for name in sorted(name for name in bounds if bounds[name] != stated.get(name)):
                yield f"{file}: {name} is {stated.get(name)}, but the releases in its ledger have {bounds[name]}"


def _changed_since_checkpoint(run: RunFolder) -> Iterator[str]:
    """Yield that an unfinished run's settings or metrics are not those of its checkpoint, if they are not.

    A finished run has the same figures twice, in metrics and result.
    """
    if run.finished:
        return
    try:
        head = folder_head_of(run.checkpoint_dir)
        if head is not None:
            run.check_head(head)
    except ResultsError as error:
        yield f"{error}"


def _understated(run: RunFolder, ledger: Ledger, row: Mapping[str, Any]) -> Iterator[str]:
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
        if written < proven * (1 - _OF_ACCOUNTANTS):
            found = format_epsilon(proven)
            yield f"{run.metrics_file}: has {name} {written:g}, but the releases in its ledger have ε {found}"


def _contradictions_of_result(
    run: RunFolder, result: Mapping[str, Any], ledger: Ledger, row: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what the result says that ledger or metrics do not."""
    entries = (result.get("ledger") or {}).get("entries")
    if run.finished and entries is not None and len(ledger.entries) != entries:
        yield f"{run.path / LEDGER_FILE}: has {len(ledger.entries)} releases, {run.result_file.name} counts {entries}"
    if not run.finished or result.get("rounds") != row["round"]:
        return  # a run that was interrupted and went on has a newer row than result
    for name, value in result.items():
        if name.startswith("epsilon_") and name in row and value < row[name] * (1 - _TOLERANCE):
            yield f"{run.metrics_file}: has {name} {row[name]:g} after round {row['round']}, result.json has {value:g}"


def _notes(run: RunFolder, ledger: Ledger, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the ledger has besides: releases after the last row, and a line that a crash cut."""
    last = int(row["round"])
    later = len(ledger.entries) - ledger.releases(last)
    if later:
        yield (
            f"{LEDGER_FILE} has {later} more {'release' if later == 1 else 'releases'} than the metrics have rounds "
            f"(killed, or at work): ε is that of rounds 1 to {last}; of all: fl-sim account --ledger"
        )
    if not _is_whole(run.path / LEDGER_FILE):
        yield f"{LEDGER_FILE}, line {len(ledger.entries) + 1}: cut off (it was never released); left out"


def _is_whole(file: Path) -> bool:
    """Return whether the last line of a file ends with a line feed; also True of an empty file."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read ({error.strerror or error})") from error
    return not content or content.endswith(b"\n")
