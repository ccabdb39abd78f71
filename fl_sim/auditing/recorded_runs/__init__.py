"""Audit what a run recorded and which sentences an enforced bound kept.

* :mod:`~fl_sim.auditing.recorded_runs.ledger_audit`: a run's ledger against its record, its metrics and its ε.
* :mod:`~fl_sim.auditing.recorded_runs.simulated_loss`: a lower bound on δ at a claimed ε, by simulation.
* :mod:`~fl_sim.auditing.recorded_runs.bound_violations`: sentence weights against the bounds that they enforce.
"""
