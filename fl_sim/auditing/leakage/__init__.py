"""Attack finished runs, beside what their proof allows any attack.

* :mod:`~fl_sim.auditing.leakage.proven_rates`: the largest true positive rates that a run's ledger allows.
* :mod:`~fl_sim.auditing.leakage.attacked_run`: a run, opened to be attacked.
* :mod:`~fl_sim.auditing.leakage.rates`: areas, rates and intervals of scores, and the test against a proof.
* :mod:`~fl_sim.auditing.leakage.membership`: which users and sentences trained.
* :mod:`~fl_sim.auditing.leakage.leak`: all attacks on several runs.
"""
