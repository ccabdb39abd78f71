"""Attack finished runs, beside what their proof allows any attack.

* :mod:`~fl_sim.auditing.leakage.rates`: areas, rates and intervals of scores, and their test against a bound.
* :mod:`~fl_sim.auditing.leakage.proven_rates`: the largest true positive rates that a run's ledger allows.
* :mod:`~fl_sim.auditing.leakage.attacked_run`: a run, opened to be attacked, and the options of all attacks.
* :mod:`~fl_sim.auditing.leakage.membership`: which users trained.
* :mod:`~fl_sim.auditing.leakage.canary_exposure`: planted secrets.
* :mod:`~fl_sim.auditing.leakage.attacked_names`, :mod:`~fl_sim.auditing.leakage.name_ranking`: names.
* :mod:`~fl_sim.auditing.leakage.leak`: all attacks on several runs.
"""
