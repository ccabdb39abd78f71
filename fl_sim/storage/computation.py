"""What the releases of a run are computed from (computation.json), to which the run's ledger is bound.

If two runs with other learning rates, corpora or initial models had the same seeded noise, the difference of their
releases would have none. So all that a release depends on is written down before the first one: every setting but those
of :data:`NOT_RELEASED`, and digests of corpus, tokens, selection, initial model and code. A digest of it is part of the
key of the seeded noise. The ledger's head and its first line depend on a salted digest of the file, because a ledger
may be given away and a plain digest would tell a corpus from the one with a user less. Every resume computes the parts
again.

Assumption: whoever edits a run's files does not edit this file, the ledger and its head consistently.

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
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_sim.config import RunConfig
from fl_sim.storage.run_folder import ResultsError, encode, replace_file
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.primitives.noise import gaussian_noise

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
    """Return the settings of a run on which its releases depend, by their full names."""
    return dict(_leaves(config.model_dump(mode="json"), ""))


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
