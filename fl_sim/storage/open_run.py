"""A run at work: folder and ledger with one writer, bound to what it computes, each release recorded before it is seen.

Runs on a corpus (:mod:`fl_sim.experiments.experiment`) and Flower apps (:mod:`fl_sim.flower.app_run`) begin, record,
checkpoint and resume by :class:`OpenRun`. What binds what:

    ledger.jsonl            its first line names ancestors and computation; each line has the hash of the one before it
    ledger.head.json        run, number of releases and last hash of the ledger: replaced after each line
    computation.json        all that releases are computed from; the ledger's first line has its salted digest
    checkpoint, result.json the head of the ledger; the checkpoint also hashes of config.json and metrics.jsonl
    the anchor              the head of the ledger, outside the folder

If two runs with other learning rates, corpora or initial models had the same seeded noise, the difference of their
releases would have none. So all that a release depends on is written down before the first one (but the keys of
:data:`NOT_RELEASED`), and a digest of it is part of the key of the seeded noise. That in the ledger is salted, because
a plain digest would tell a corpus from the one with a user less. Secure noise cannot be repeated: a copy of the folder
that is resumed twice, or put back, loses releases, which only a head outside it can tell (docs/reliability.md).

Assumption: whoever edits a run's files does not edit computation, ledger and head consistently.

>>> import tempfile
>>> before = Computation({"settings": {"seed": 0, "rounds": 3}, "corpus": "0a1b"}, salt="5a17")
>>> with tempfile.TemporaryDirectory() as folder:
...     before.write(Path(folder))
...     Computation.read(Path(folder)).check({"settings": {"seed": 0, "rounds": 4}, "corpus": "0a1b"}, Path("run"))
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: run: rounds is 4; allowed: 3, as when the run began, or a new run
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt

from fl_sim.config import RunConfig
from fl_sim.files import canonical_json, json_object, owner_only, replace_file, sha256_of_json
from fl_sim.settings_origin import leaves
from fl_sim.storage import environment, model_files
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.model_files import Lineage
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import ResultsError, RunFolder, encode
from fl_sim.strategies.ledger import Ledger, LedgerError, LedgerHead, ReleaseRecord, is_head
from fl_sim.strategies.primitives.noise import gaussian_noise

NO_ANCHOR = "none"
"""The value of the setting ``anchor`` for no anchor at all."""

_ANCHORS = Path("fl-sim") / "anchors"


class OpenRun:
    """The folder of a run that is at work; build it with :meth:`begin` or :meth:`resume`.

    Attributes:
        checkpoint: the last one of a run that resumes; None before the first.
        noise_key: a secret digest of what the releases are computed from, part of the key of seeded noise; empty before
            :meth:`bind`.
    """

    def __init__(
        self, claim: RunClaim, folder: RunFolder, ledger: Ledger, anchor: Anchor, checkpoint: Checkpoint | None = None
    ) -> None:
        self.folder = folder
        self.ledger = ledger
        self.checkpoint = checkpoint
        self.noise_key = ""
        self._claim = claim
        self._anchor = anchor

    @classmethod
    def begin(
        cls,
        claim: RunClaim,
        config: Mapping[str, object],
        lineage: Lineage,
        ancestors: list[LedgerHead],
        anchor: str | None,
        secure_noise: bool,
    ) -> OpenRun:
        """Write the files with which the record of a new run begins, on an initial model of this lineage.

        Args:
            ancestors: the heads of those runs of the lineage whose releases count in every ε.
            anchor: a setting (:meth:`Anchor.of`).
            secure_noise: whether noise cannot be repeated.

        Raises:
            ResultsError: the anchor cannot be kept, or the folder cannot be written.
        """
        folder = RunFolder.create(claim.path, config=config, environment=environment.describe())
        model_files.write_ancestors(folder.path, lineage)
        ledger = Ledger.create(folder.path, ancestors)
        kept = Anchor.of(anchor, secure_noise, ledger.run)
        kept.check_new()
        return cls(claim, folder, ledger, kept)

    @classmethod
    def resume(
        cls,
        claim: RunClaim,
        folder: RunFolder,
        anchor: str | None,
        secure_noise: bool,
        *,
        replaced: bool = False,
        rows: bool = True,
    ) -> OpenRun:
        """Open the record of a run that stopped, and check it against every head that was kept.

        Args:
            replaced: whether ``anchor`` is another one than until now, so that a missing file begins with this ledger.
            rows: whether the rows of the metrics must be those of a checkpoint of round 0.

        Raises:
            ResultsError: settings or metrics were changed, or releases have no checkpoint.
            LedgerError: the ledger cannot be trusted, or another copy of the folder went on.
        """
        ledger = Ledger.open(folder.path)
        kept = Anchor.of(anchor, secure_noise, ledger.run)
        if replaced:
            kept.begin(ledger)
        kept.check(ledger)
        if folder.result is not None:
            ledger.check_head(folder.result.get("ledger") or {})
        checkpoint = Checkpoint.read(folder.checkpoint_dir)
        if checkpoint is not None:
            ledger.check_head(checkpoint.ledger)
            folder.check_head(checkpoint.folder, rows=rows or checkpoint.server_round > 0)
        elif ledger.entries:
            raise ResultsError(
                f"{folder.path}: has no checkpoint, but its ledger has {len(ledger.entries)} releases; allowed: the "
                "folder with its checkpoint, or a new run"
            )
        return cls(claim, folder, ledger, kept, checkpoint)

    def bind(self, parts: ReleaseParts, as_begun: tuple[str, ...] = ()) -> None:
        """Bind the ledger to what the releases are computed from, once; a resumed run must compute the same.

        Args:
            as_begun: the parts that stay what they were when the run began, whatever they would be now.

        Raises:
            ResultsError: a part differs, or computation.json is not what the ledger is bound to.
        """
        path = self.folder.path
        if not self.ledger.computation and not self.ledger.entries:  # a new run, or one that was killed before this
            computation = Computation(parts)
            computation.write(path)
            self.ledger.bind(computation.digest)
        else:
            computation = Computation.of_ledger(self.ledger)
            first: dict[str, object] = {name: computation.parts.get(name) for name in as_begun}
            computation.check(cast(ReleaseParts, {**parts, **first}), path)
        self.noise_key = noise_key(computation.parts)

    def record_release(self, terms: ReleaseRecord, server_round: int, total: str, *, one_sum: bool) -> str:
        """Record a release before its noise is drawn; return the name of the stream of seeded noise.

        Args:
            total: a keyed hash of the sum; empty for secure noise.
            one_sum: whether a round may have one sum under seeded noise alone, as under an ε budget.

        Raises:
            LedgerError: the release must not be recorded, or another copy of the run's folder went on.
            ResultsError: the round was released with another sum before a crash.
        """
        if one_sum and terms.noise == "seeded" and self.ledger.is_repeated(server_round, total):
            raise ResultsError(
                f"{self.folder.path}: round {server_round} has another sum than the one released before the run "
                "stopped (a node failed, or their number changed); allowed under epsilon_budget: the same sum"
            )
        self._anchor.check(self.ledger)
        stream = self.ledger.record_release(terms, server_round, total)
        self._anchor.write(self.ledger)
        return stream

    @owner_only()
    def write_checkpoint(
        self, server_round: int, vector: npt.NDArray[np.floating], state: Mapping[str, npt.NDArray[np.floating]]
    ) -> None:
        """Replace the checkpoint by the state after a round, with the heads of ledger, settings and metrics.

        Args:
            vector: the model, float32 or float64 (d,).
            state: the server's arrays, by name.
        """
        heads = {"ledger": self.ledger.head, "folder": self.folder.head()}
        Checkpoint(server_round, vector, state, **heads).write(self.folder.checkpoint_dir)

    def close(self) -> None:
        """Unlock the folder."""
        self._claim.release()

    def discard_unmeasured(self) -> bool:
        """Remove the folder of a new run without a measurement; return whether it was one."""
        if self.folder.last_round is None and self._claim.new:
            self._claim.discard()
            return True
        return False


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
    def of(cls, setting: str | None, secure_noise: bool, run: str) -> Anchor:
        """Return the anchor of a run.

        Args:
            setting: a file, :data:`NO_ANCHOR`, or None for one in the user's state folder if noise is secure.
        """
        if setting == NO_ANCHOR:
            return cls(None)
        if setting is not None:
            return cls(Path(setting), required=True)
        folder = state_folder() if secure_noise else None
        return cls(None if folder is None else folder / _ANCHORS / f"{run}.json")

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

    def begin(self, ledger: Ledger) -> None:
        """Begin with the releases of ``ledger``, unless the file exists."""
        if self.file is not None and not self.file.exists():
            self.check_new()
            self.write(ledger)

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
                f"{head['entries']} releases; allowed: the copy that went on, or a new file as `anchor`, if "
                "fl-sim account is given all copies"
            ) from error

    def write(self, ledger: Ledger) -> None:
        """Replace the content by the head of ``ledger``; OSError only if the anchor is required."""
        if self.file is None:
            return
        with suppress(*(() if self.required else (OSError,))):
            if not self.required:
                self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, canonical_json(ledger.head) + b"\n")

    def _read(self, ledger: Ledger) -> LedgerHead | None:
        """Return the head that was kept; None without an anchor, or before the first release."""
        if self.file is None:
            return None
        try:
            head = json_object(self.file.read_bytes())
        except FileNotFoundError as error:
            if not self.required or len(ledger.entries) <= 1:  # killed between the first release record and the anchor
                return None
            raise LedgerError(
                f"{self.file}: is missing; allowed: the anchor of the run, or a new file as `anchor`"
            ) from error
        except (OSError, ValueError) as error:
            if not self.required:
                return None
            raise LedgerError(f"{self.file}: cannot be read as an anchor") from error
        if not is_head(head):
            raise LedgerError(f"{self.file}: is corrupt ('run', 'entries' and 'last' are expected)")
        return head


def state_folder() -> Path | None:
    """Return the user's folder for state; None if there is no home."""
    given = os.environ.get("XDG_STATE_HOME")
    try:
        folder = Path(given) if given else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None


COMPUTATION_FILE = "computation.json"

RELEASE_FORMAT = 2
"""Version of samples, sums and noise; raised when equal settings would give another release."""

NOT_RELEASED = frozenset(
    {
        "out", "anchor", "observers", "tracking", "checkpoint_every", "evaluation",  # presentation
        "engine",  # placement
        "origin",  # a remark
        "corpus.path", "corpus.held_out_split", "corpus.feature_cache",  # the fingerprint stands for the corpus
        "model.name", "model.tokenizer", "model.device",  # the weights and the tokens do
        "privacy.public_names", "privacy.public_weights", "privacy.counts",  # the selection does
        "privacy.entity_key",  # a digest under the key does
    }
)  # fmt: skip
"""Keys and sections of a configuration on which no release depends, or whose content has a digest of its own."""


class ReleaseParts(TypedDict, total=False):
    """What the releases of a run are computed from: settings by their full names, and digests by subject, JSON-ready.

    ``model_layout`` is of Flower apps; ``guarantee``, ``selection`` and ``corpus`` are of runs on a corpus, with
    ``tokens`` unless the digest of the corpus has them; ``weights`` of a run on text whose noise a formula alone keys.
    """

    settings: dict[str, object]
    plan: dict[str, object]
    guarantee: dict[str, object]
    code: dict[str, object]
    selection: str
    weights: str
    corpus: str
    tokens: str
    initial_model: str
    model_layout: str


@dataclass(frozen=True)
class Computation:
    """All that the releases of a run are computed from: settings and digests.

    Attributes:
        salt: random text, so that the digest does not tell which corpus it was.
    """

    parts: ReleaseParts
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of salt and parts, to which the ledger is bound."""
        return sha256_of_json(self._content())

    def write(self, folder: Path) -> None:
        """Write the file into the folder of a run."""
        content = json.dumps(self._content(), indent=2, ensure_ascii=False)
        replace_file(folder / COMPUTATION_FILE, content.encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Computation:
        """Return the computation of the run in ``folder``.

        Raises:
            ResultsError: the file is missing or corrupt.
        """
        file = folder / COMPUTATION_FILE
        try:
            content = json_object(file.read_bytes())
            return cls(content["parts"], str(content["salt"]))
        except FileNotFoundError as error:
            raise ResultsError(
                f"{file}: is missing; allowed: the folder as its run left it, or a run that another version of fl-sim "
                "began, resumed by that version"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{file}: is corrupt ('salt' and 'parts' are expected)") from error

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> Computation:
        """Return what the releases of a ledger were computed from.

        Raises:
            ResultsError: the file is missing, corrupt, or not what the ledger is bound to.
        """
        computation = cls.read(ledger.folder)
        if computation.digest != ledger.computation:
            raise ResultsError(f"{ledger.folder / COMPUTATION_FILE}: is not what the run's ledger is bound to")
        return computation

    def check(self, parts: ReleaseParts, folder: Path) -> None:
        """Check that the run in ``folder`` would still compute the same releases, now from ``parts``.

        Raises:
            ResultsError: a part differs; the message names the first one.
        """
        now: ReleaseParts = json.loads(canonical_json(encode(parts)))
        for name in sorted({*self.parts, *now} - {"settings"}):
            if self.parts.get(name) != now.get(name):
                raise ResultsError(
                    f"{folder}: {name.replace('_', ' ')} is not that of the run's beginning; allowed: the same, or a "
                    "new run"
                )
        before, after = (side.get("settings") or {} for side in (self.parts, now))
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                raise ResultsError(
                    f"{folder}: {key} is {_shown(after.get(key))}; allowed: {_shown(before.get(key))}, as when the run "
                    "began, or a new run"
                )

    def _content(self) -> dict[str, object]:
        return {"salt": self.salt, "parts": encode(self.parts)}


def released_settings(config: RunConfig) -> dict[str, object]:
    """Return the settings of a run on which its releases depend, by their full names."""
    settings = leaves(config.model_dump(mode="json"))
    released = {key: encode(value) for key, value in settings if not {key, key.partition(".")[0]} & NOT_RELEASED}
    if released["privacy.target_unit"] is None:  # without a target it decides nothing, and keys the noise as one word
        released["privacy.target_unit"] = "user_entity"
    return released


def noise_key(parts: ReleaseParts) -> str:
    """Return the digest of what releases are computed from that is part of the key of their seeded noise.

    It is not salted, so that the same run can be repeated, and must not leave the process. Settings that are None are
    left out, so that a later version's new setting gives earlier runs no other noise; so are ``weights``, which follow
    from other parts and which a server that knows counts alone does not know.
    """
    settings = {key: value for key, value in parts["settings"].items() if value is not None}
    others = {name: part for name, part in parts.items() if name != "weights"}
    return sha256_of_json(encode({**others, "settings": settings}))


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
