"""Attack the names of a training text: what the model writes unasked, completes, and tells from other names.

The three attacks of Lukas et al. 2023, on the same private entities. Beside them stands what the run states for any
user with any entity: the largest true positive rate of a test whether they took part. No verdict follows from it,
because the names that are ranked beside the true one trained, too, with sentences of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError
from fl_sim.auditing.leakage.names.entity_extraction import extract_entities
from fl_sim.auditing.leakage.names.entity_inference import infer_entities
from fl_sim.auditing.leakage.names.entity_reconstruction import reconstruct_entities
from fl_sim.auditing.leakage.names.entity_targets import NoEntityError, TrainingEntities
from fl_sim.auditing.leakage.options import Options
from fl_sim.clients.frozen_states import Observer


def attack_entities(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Extract, reconstruct and infer the private names of the training split; return the record.

    Args:
        run: the run.
        rng: not used; every attack draws from streams of ``options.seed``, so that all runs meet the same names.
        options: of the attacks.
        observer: called with the number of attacks that are done, and 3.

    Raises:
        NotApplicableError: the model predicts classes, or no private entity can be attacked.
    """
    if run.model.task.classes:
        raise NotApplicableError("the model predicts classes; allowed: next-word models, to attack entities")
    models, seed, most, known = (run.model, run.initial), options.seed, options.entities, run.of_initial
    try:
        entities = TrainingEntities.of(run.corpus, run.members.split)
        observer(0, 3)
        extraction = extract_entities(*models, entities, seed=seed, samples=options.texts, known=known)
        observer(1, 3)
        reconstruction = reconstruct_entities(*models, entities, seed=seed, most=most, known=known)
        observer(2, 3)
        inference = infer_entities(*models, entities, seed=seed, most=most, candidates=options.candidates, known=known)
        observer(3, 3)
    except NoEntityError as error:
        raise NotApplicableError(str(error)) from error
    show = options.show_names
    return {
        "private_entities": len(entities.targets),
        "extraction": extraction.record(show_names=show),
        "reconstruction": reconstruction.record(show_names=show),
        "inference": inference.record(show_names=show),
        "bound": (run.folder.result or {}).get("attacker"),
    }
