"""The attacked model beside those that did not see one user or entity, and how they rank a truth among candidates.

Three kinds of models read the same texts: that of the run, that with which the run began, and those of runs that were
trained on the same text without the unit. What the last two know of it, they know from the language or from others.

A truth is ranked by the perplexity per token of its text among the texts of candidates, and, beside a model that did
not see the unit, by the ratio of the perplexities under both: what makes a text likely to any model cancels.
``ahead`` is the share of candidates that come after the truth: ½ for an attacker who knows nothing. Equal values count
against the attacker.

>>> losses = [np.array([2.0, 3.0, 1.0]), np.array([1.0, 4.0, 5.0])]  # of two truths, each with two candidates
>>> ahead(losses).tolist(), first(losses).tolist()
([0.5, 1.0], [0.0, 1.0])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage.attacked_run import AttackedRun
from fl_sim.auditing.leakage.canary_exposure import figure_record
from fl_sim.auditing.leakage.names.entity_targets import read
from fl_sim.auditing.leakage.other_runs import OtherRun
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.experiments.held_out_users.bootstrap import intervals

START = "start"
RUN = "run"

Floats = NDArray[np.float64]
Losses = Sequence[Floats]
"""The losses of one model on the text of each truth, and after it on those of its candidates."""


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """A model that reads the text of one user or entity.

    Attributes:
        name: ``run``, ``start``, or the folder of a run without the unit.
        model: the model.
    """

    name: str
    model: LanguageModel

    def baselines(self, models: Sequence[ComparedModel]) -> list[ComparedModel]:
        """Return the models to which this one's likelihoods are compared: all others for the run's, else the start."""
        if self.name == RUN:
            return [other for other in models if other.name != RUN]
        return [other for other in models if other.name == START and self.name != START]


def compared_models(run: AttackedRun, without: Mapping[str, OtherRun]) -> list[ComparedModel]:
    """Return the models to compare, the run's first and the one with which it began second.

    Args:
        run: the attacked run.
        without: runs that were trained without the unit, by their folders.
    """
    others = [ComparedModel(path, other.model) for path, other in without.items()]
    return [ComparedModel(RUN, run.model), ComparedModel(START, run.initial), *others]


def ahead(losses: Losses) -> Floats:
    """Return the share of candidates whose loss is above that of the truth, for each of n truths, float64 (n,)."""
    return np.array([(one[1:] > one[0]).mean() for one in losses])


def first(losses: Losses) -> Floats:
    """Return 1 for each of n truths that is ranked before all candidates, else 0, float64 (n,)."""
    return np.array([float((one[1:] > one[0]).all()) for one in losses])


def read_groups(
    models: Sequence[ComparedModel], groups: Sequence[Sequence[str]], observer: Observer
) -> list[list[Floats]]:
    """Return the losses of each model on the texts of each group, in nats per token.

    Args:
        models: next-word models.
        groups: texts, the truth first.
        observer: called with the number of groups that one model has read, over all models, and of all of them.

    Raises:
        ModelError: a model predicts classes.
    """
    losses: list[list[Floats]] = [[] for _ in models]
    for done, group in enumerate(groups):
        for compared, of_model in zip(models, losses, strict=True):
            of_model.append(read(compared.model, group).losses)
        observer(done + 1, len(groups))
    return losses


def ranks_record(
    models: Sequence[ComparedModel],
    losses: Sequence[Losses],
    values: Sequence[Mapping[str, Floats]],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Return a JSON object per model: how it ranks n truths, and further figures, with intervals over the truths.

    Args:
        models: the models.
        losses: of each model.
        values: further figures of each model, float64 (n,) each.
        rng: draws the resamples of the bootstrap.
    """
    of_model = {compared.name: own for compared, own in zip(models, losses, strict=True)}
    records = []
    for compared, further in zip(models, values, strict=True):
        own = of_model[compared.name]
        ratios = {
            other.name: ahead([mine - theirs for mine, theirs in zip(own, of_model[other.name], strict=True)])
            for other in compared.baselines(models)
        }
        columns = {"ahead": ahead(own), "first": first(own), **further}
        record = {"model": compared.name, **_figures(columns, rng), "ahead_by_ratio_to": _figures(ratios, rng)}
        records.append(record)
    return records


def _figures(columns: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, dict[str, float | None]]:
    """Return the means of columns of equal length, with intervals; None where there are fewer than two rows."""
    if not columns:
        return {}
    sums = np.stack([one for column in columns.values() for one in (column, np.ones(len(column)))], axis=1)
    return {name: figure_record(figure) for name, figure in zip(columns, intervals(sums, rng), strict=True)}
