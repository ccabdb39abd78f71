"""Utility for whom: held-out figures by user, with intervals, and beside models trained on a user's own text.

* ``bootstrap``: intervals of ratios, with users as the resampling unit.
* ``entity_tokens``: which tokens are part of a mention, and the bytes that each token covers.
* ``user_utility``: what a run records of its last evaluation.
* ``personal_models``: a model trained on one user alone, and adapters of one user on the run's model.
"""
