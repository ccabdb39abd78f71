"""Attack finished runs, beside what their proof allows any attack.

* :mod:`~fl_sim.auditing.leakage.proven_rates`: the largest true positive rates that a run's ledger allows.
"""
