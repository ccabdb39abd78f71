"""Attacking our own promises: lower bounds on ε from membership tests, with a stated confidence.

An accountant proves that ε is at most something; an audit shows that it is at least something. Where the second
exceeds the first, the code or the proof is wrong (docs/audit.md).

* :mod:`~fl_sim.auditing.lower_bounds`: from the scores of an attack to a lower bound on ε.
* :mod:`~fl_sim.auditing.worst_case_corpora`: the worst-case adjacent corpora, as incidence and gradients.
* :mod:`~fl_sim.auditing.audited_rounds`: our real rounds on them, many independent copies at once.
* :mod:`~fl_sim.auditing.own_targets`: our mechanisms as targets of an attack.
* :mod:`~fl_sim.auditing.published_round`: the published algorithm as a target, as stated and as its code ran.
* :mod:`~fl_sim.auditing.attack`: the likelihood-ratio attack that joins these.
* :mod:`~fl_sim.auditing.mutations`: broken mechanisms that an audit must catch.
* :mod:`~fl_sim.auditing.canaries`: one-run auditing of a real training.
* :mod:`~fl_sim.auditing.audit_table`: every mechanism beside its claim.
"""
