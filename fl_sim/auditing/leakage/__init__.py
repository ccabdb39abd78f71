"""Attack finished runs, beside what their proof allows any attack.

* :mod:`~fl_sim.auditing.leakage.rates`: areas, rates and intervals of scores, and the largest true positive rates that
  a run's ledger allows.
* :mod:`~fl_sim.auditing.leakage.attacked_run`: a run, opened to be attacked.
* :mod:`~fl_sim.auditing.leakage.membership`: which users and sentences trained.
* :mod:`~fl_sim.auditing.leakage.canary_exposure`: planted secrets.
* :mod:`~fl_sim.auditing.leakage.entity_targets`, :mod:`~fl_sim.auditing.leakage.entity_attacks`: names.
* :mod:`~fl_sim.auditing.leakage.one_name`: one entity or one user.
* :mod:`~fl_sim.auditing.leakage.leak`: all attacks on several runs.
"""
