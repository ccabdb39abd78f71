"""The points of a curve that is compared at equal ε: a target for each joint ε of the figure.

>>> figure = TrainingFigure.model_construct(joint=(2.0, 4.0))
>>> curve = CurveSettings(name="uedp", label="ours", budget="joint")
>>> [point.set["privacy.target_epsilon"] for point in budget_points(figure, curve, {})]
[2.0, 4.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fl_sim.config import RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.research.uedp_paper.figures import CurveSettings, PointSettings, Settings, TrainingFigure

_TARGET, _UNIT = "privacy.target_epsilon", "privacy.target_unit"


def budget_points(
    figure: TrainingFigure, curve: CurveSettings, user_epsilons: Mapping[float, float]
) -> tuple[PointSettings, ...]:
    """Return the points of a curve, whose x is the joint ε of their comparison.

    Args:
        figure: with x = "joint".
        curve: of the figure.
        user_epsilons: ε of any user that the reference spends, by joint ε.

    Returns:
        A point per joint ε; a single one without x for a curve without a budget.
    """
    if curve.budget is None:
        return (PointSettings(),)
    if curve.budget == "joint":
        return tuple(PointSettings(x=x, set={_TARGET: x, _UNIT: "user_entity"}) for x in figure.joint)
    return tuple(PointSettings(x=x, set={_TARGET: user_epsilons[x], _UNIT: "user"}) for x in figure.joint)


def user_epsilons(
    figure: TrainingFigure, settings: Callable[[PointSettings], Settings], path: str
) -> dict[float, float]:
    """Return ε of any user that the reference spends at each joint ε, rounded down to a thousandth.

    ε rests on the settings and the public bounds alone, so it is the same for all seeds.

    Args:
        figure: with x = "joint".
        settings: returns the reference's settings at a point.
        path: of the reference's corpus.
    """
    split = RunConfig().corpus.train_split
    ownership = Corpus.open(path).ownership(split)
    found = {}
    for x in figure.joint:
        point = PointSettings(x=x, set={_TARGET: x, _UNIT: "user_entity"})
        config = RunConfig.from_mapping({**settings(point), "corpus.path": path})
        planned = plan_run(config, ownership)
        found[x] = math.floor(1000 * planned.guarantees.after(planned.rounds)["epsilon_user"]) / 1000
    return found
