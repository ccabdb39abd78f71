"""Attack finished runs, beside what their proof allows any attack.

* :mod:`~fl_sim.auditing.leakage.proven_rates`: the largest true positive rates that a run's ledger allows.
* :mod:`~fl_sim.auditing.leakage.attacked_run`: a run, opened to be attacked.
* :mod:`~fl_sim.auditing.leakage.rates`: areas, rates and intervals of scores, and the test against a proof.
* :mod:`~fl_sim.auditing.leakage.membership`: which users and sentences trained.
* :mod:`~fl_sim.auditing.leakage.canary_exposure`, :mod:`~fl_sim.auditing.leakage.canary_attack`: planted secrets.
* :mod:`~fl_sim.auditing.leakage.names`: what a model gives away of names.
* :mod:`~fl_sim.auditing.leakage.leak`: all attacks on several runs.
"""
