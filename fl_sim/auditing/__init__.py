"""Audit the guarantees: lower bounds on ε from membership attacks, with a stated confidence.

An accountant proves an upper bound on ε; an audit shows a lower bound. If the lower bound exceeds the upper one, the
code or the proof is wrong (docs/audit.md).

* :mod:`~fl_sim.auditing.lower_bounds`: lower bounds on ε from the scores of an attack, or from the canaries of a single
  training.
* :mod:`~fl_sim.auditing.worst_case_corpora`: the worst-case adjacent corpora, as ownership and gradients.
* :mod:`~fl_sim.auditing.audited_rounds`: the product's real rounds on them, many independent copies at once; its
  mechanisms, the published one among them, as targets of an attack, and broken ones that an audit must refute.
* :mod:`~fl_sim.auditing.attack`: the likelihood-ratio attack on a target.
* :mod:`~fl_sim.auditing.cases`: mechanisms on their worst cases, with the claims to test, and the table of them all.
* :mod:`~fl_sim.auditing.one_run_audit`: one-run auditing of a real training.
* :mod:`~fl_sim.auditing.real_rounds`: random canaries and adjacent rounds through the real model and clients.
* :mod:`~fl_sim.auditing.ledger_audit`: the ledger of a run, and enforced contribution bounds.
* :mod:`~fl_sim.auditing.leakage`: attacks on finished runs, beside what their proof allows.
"""
