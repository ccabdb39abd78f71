"""Bound ε from the canaries of a single training.

* :mod:`~fl_sim.auditing.one_run.f_dp_bounds`: the one-run bound for a whole trade-off curve, and the Gaussian analysis.
"""
