"""What a worker opens is what the server wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_sim.clients.worker.workspace import Workspace, WorkspaceSpec
from fl_sim.data_prep.records import CorpusError
from fl_sim.experiments.experiment import Experiment
from tests.e2e.small_runs import configuration, small_corpus


def test_weights_that_were_raised_are_refused(tmp_path: Path) -> None:
    """The weights keep the bounds on users and entities; a worker takes them from the server alone."""
    corpus = small_corpus(tmp_path / "corpus")
    experiment = Experiment.create(configuration(corpus, tmp_path / "run", privacy__entity_bound=2))
    spec = WorkspaceSpec.model_validate_json(experiment._strategy.federation.workspace)
    opened = Workspace.of(spec)
    assert opened.weights is not None
    assert 0 < opened.weights.sum() < len(opened.weights)
    assert spec.weights is not None
    np.save(spec.weights, np.ones_like(opened.weights))
    with pytest.raises(CorpusError, match=r"weights\.npy: was changed since the run began"):
        Workspace.of(spec)
    experiment.abandon(RuntimeError())
