"""Attack the private names of a training text (Lukas et al. 2023).

* :mod:`~fl_sim.auditing.leakage.names.entity_targets`: which names are private, and where they stand.
* :mod:`~fl_sim.auditing.leakage.names.entity_extraction`: names that a model writes unasked.
* :mod:`~fl_sim.auditing.leakage.names.entity_reconstruction`: masked names that it completes.
* :mod:`~fl_sim.auditing.leakage.names.entity_inference`: masked names that it ranks among others.
* :mod:`~fl_sim.auditing.leakage.names.entity_attack`: all three on a run.
"""
