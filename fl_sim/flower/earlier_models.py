"""Know a model that an earlier run of a Flower app released, so that a training from it counts that run's releases.

Every run keeps a digest of each model that it released, from before anybody sees the model: also of one whose round was
lost in a stop, and of which the metrics know nothing. A run whose initial model is one of them, in the same folder of
runs, composes the releases of both, as a run on a corpus does with the lineage of its model
(:mod:`fl_sim.experiments.plan.lineage`). A model that was changed on the way, or is of a run elsewhere, is not known.

>>> earlier_of(Path("no/such/run"), "0a1b", seed=None).composed
()
"""

from __future__ import annotations

import os
from pathlib import Path

from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.files import naming, owner_only
from fl_sim.flower.private_settings import USER_METRIC, USER_UNIT
from fl_sim.storage import model_lineage
from fl_sim.storage.model_lineage import Ancestor, Lineage
from fl_sim.strategies.ledger import Ledger, ReleaseRecord
from fl_sim.strategies.primitives.limits import PrivacyError

RELEASED_MODELS = "released_models.txt"
"""The file in a run's folder with the digests of the models that it released, a line each."""


@owner_only()
def keep_digest(folder: Path, digest: str) -> None:
    """Keep the digest of a model that a run is about to show; it is on disk when this returns."""
    path = folder / RELEASED_MODELS
    with naming(path), path.open("ab") as file:
        file.write(f"{digest}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def earlier_of(folder: Path, digest: str, seed: int | None) -> Earlier:
    """Return the earlier releases on which the initial model of a new run rests; none if no run beside it released it.

    Args:
        folder: of the run; the others are beside it.
        digest: of the initial model.
        seed: of the run; None for secure noise.

    Raises:
        LedgerError, LineageError: the earlier run's ledger, or that of one before it, cannot be trusted.
        PrivacyError: the run would have the samples of one of them.
    """
    known: dict[str, Ancestor] = {}
    for file in sorted(folder.parent.glob(f"*/{RELEASED_MODELS}")):
        if file.parent != folder and digest.encode() in file.read_bytes():
            before = model_lineage.read_ancestors(file.parent).ancestors
            for one in (*before, Ancestor(Ledger.read(file.parent), "", {USER_METRIC: USER_UNIT.record()})):
                known[one.ledger.run] = one
    if seed is not None:
        _check_seed(seed, [ancestor.ledger for ancestor in known.values()])
    return Earlier(Lineage(tuple(known.values())))


def earlier_of_record(folder: Path) -> Earlier:
    """Return the earlier releases of a run that began before, as its own folder keeps them.

    Raises:
        LineageError, LedgerError: they were changed.
    """
    return Earlier(model_lineage.read_ancestors(folder))


def _check_seed(seed: int, ledgers: list[Ledger]) -> None:
    own = ReleaseRecord.stream_of(seed)
    for ledger in ledgers:
        if any(entry.terms.stream == own for entry in ledger.entries):
            raise PrivacyError(
                f"seed is {seed}, which the run {ledger.folder} that trained the initial model also has, so both would "
                "have the same samples; allowed: another seed, or none"
            )
