"""Utility for whom: held-out figures by user, with intervals, and beside models trained on a user's own text.

* ``bootstrap``: intervals of ratios and of differences between runs, with users as the resampling unit.
* ``user_utility``: what a run records of its last evaluation.
* ``personal_models``: a model trained on one user alone, and adapters of one user on the run's model.
"""
