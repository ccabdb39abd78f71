"""The picture of any record.

>>> from fl_sim.research.uedp_paper.figure_records import find_record
>>> picture_of(find_record("table2")) is None
True
"""

from __future__ import annotations

from matplotlib.figure import Figure

from fl_sim.research.uedp_paper import figure_pictures
from fl_sim.research.uedp_paper.equal_budgets.budget_pictures import draw_budgets
from fl_sim.research.uedp_paper.figure_records import LeakageRecord, Record, TrainingRecord
from fl_sim.research.uedp_paper.leakage.attack_pictures import draw_attacks


def picture_of(record: Record) -> Figure | None:
    """Return the picture of a record; None for a table."""
    if isinstance(record, LeakageRecord):
        return draw_attacks(record)
    if isinstance(record, TrainingRecord) and record.x == "joint":
        return draw_budgets(record)
    return figure_pictures.draw(record)
