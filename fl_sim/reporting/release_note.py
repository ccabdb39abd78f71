"""What the guarantee of a run says about text that its model generates.

Generating reads the released model and the prompts alone. By the post-processing property of differential privacy such
text has the ε and δ of the model, however much of it is made, if the prompts do not depend on private text
(docs/privacy.md).

>>> NO_GUARANTEE_OF_TEXT
'no guarantee (ε = ∞): the model may repeat private sentences. Do not release these texts.'
"""

from __future__ import annotations

import math
from typing import Any

from fl_sim.formats import format_delta, format_epsilon
from fl_sim.reporting.report import NO_GUARANTEE, report
from fl_sim.storage.ledger_check import require_ledger
from fl_sim.storage.run_folder import RunFolder

NO_GUARANTEE_OF_TEXT = f"{NO_GUARANTEE}: the model may repeat private sentences. Do not release these texts."

_UNITS = {
    "epsilon_any": "any user with any entity",
    "epsilon_stated": "any user with an entity within the stated bound",
    "epsilon_user": "any user",
}
_COVERED = (
    "post-processing of a model with {epsilon}, δ = {delta}. More texts do not raise ε. Prompts must not be taken from "
    "private text. What ε leaves out: fl-sim report."
)


def note_on_texts(run: RunFolder) -> dict[str, Any]:
    """Return the guarantee of texts that the model of a run generates, JSON-ready.

    Returns:
        ``guarantee`` (whether there is one), ``delta``, ``epsilon`` by the metrics' names (empty without a guarantee;
        never one at a percentile of the corpus), and ``note``, the same in words.

    Raises:
        LedgerError: the run's ledger does not support its ε.
    """
    require_ledger(run)
    facts = report(run)
    epsilon = {unit: facts["epsilon"][unit] for unit in _UNITS if math.isfinite(facts["epsilon"].get(unit, math.inf))}
    if not facts["guarantee"] or not epsilon:
        return {"guarantee": False, "delta": facts["delta"], "epsilon": {}, "note": NO_GUARANTEE_OF_TEXT}
    words = ", ".join(f"ε {format_epsilon(value)} for {_UNITS[unit]}" for unit, value in epsilon.items())
    note = _COVERED.format(epsilon=words, delta=format_delta(facts["delta"]))
    return {"guarantee": True, "delta": facts["delta"], "epsilon": epsilon, "note": note}
