"""Audit the guarantees: lower bounds on ε from membership attacks, with a stated confidence.

An accountant proves an upper bound on ε; an audit shows a lower bound. If the lower bound exceeds the upper one, the
code or the proof is wrong (docs/audit.md). :mod:`~fl_sim.auditing.cases` attacks mechanisms on their worst-case corpora
(:mod:`~fl_sim.auditing.audited_rounds`), :mod:`~fl_sim.auditing.one_run_audit` and
:mod:`~fl_sim.auditing.real_rounds` a real training, :mod:`~fl_sim.auditing.leakage` finished runs;
:mod:`~fl_sim.auditing.ledger_audit` checks what a run recorded.
"""
