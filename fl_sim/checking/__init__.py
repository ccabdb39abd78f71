"""Check a Flower app of somebody else: what one user can do to its models, and what its ε is worth (docs/check.md).

:mod:`~fl_sim.checking.app_process` runs an unmodified app in a process of its own, in
:mod:`~fl_sim.checking.trials` that differ in one user; :mod:`~fl_sim.checking.measurements` compares what they release,
and :mod:`~fl_sim.checking.faults` names what is wrong.
"""
