"""Models that the tests of clients share within a file."""

from __future__ import annotations

import pytest

from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from tests.clients.models import models_to_try


@pytest.fixture(scope="module")
def small() -> LanguageModel:
    return models_to_try.small_gpt2()


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """The smallest one."""
    return load_model(ModelSpec(hidden=16, layers=1, heads=2, max_tokens=24), 0)
