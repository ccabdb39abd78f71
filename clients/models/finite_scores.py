"""Decide whether a model has diverged, from the model alone: its parameters, and its scores of a fixed sentence.

No private sentence is read, so a run that stops at divergence stops by a function of the models that it has released,
which ε covers.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> from fl_sim.clients.models.language_model import load_model
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> has_finite_scores(model)
True
>>> model.set_vector(np.full(model.num_parameters, 1e38, np.float32))  # finite, but its products are not
>>> has_finite_scores(model)
False
"""

from __future__ import annotations

import numpy as np
import torch

from fl_sim.clients.examples import Example
from fl_sim.clients.models.language_model import LanguageModel

_TOKENS = 8


def has_finite_scores(model: LanguageModel) -> bool:
    """Return whether every parameter is finite, frozen ones included, and every score of a fixed public sentence is."""
    if not all(bool(parameter.isfinite().all()) for parameter in model.module.parameters()):
        return False
    with torch.no_grad(), model.exact():
        return bool(model.logits(model.batch([fixed_sentence(model)])).isfinite().all())


def fixed_sentence(model: LanguageModel) -> Example:
    """Return a public example: tokens spread evenly over the vocabulary, or features of ones if it reads features."""
    length = min(_TOKENS, model.task.longest(model.max_tokens))
    tokens = np.linspace(0, model.vocabulary_size - 1, length).astype(np.int32)
    features = None
    if model.classifier is not None and model.reads_features:
        features = np.ones(model.classifier.width, np.float32)
    return Example(tokens, target=0, features=features)
