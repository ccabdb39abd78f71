"""Audit real rounds: the real model, gradients, clips, sampling, server and noise, with gradients of our choice.

* :mod:`~fl_sim.auditing.real_rounds.canary_federation`: real rounds on users and entities of canaries, and the model in
  which a canary sentence has a random gradient.
* :mod:`~fl_sim.auditing.real_rounds.canary_audit`: bounds on ε and on the noise from the releases of one training.
* :mod:`~fl_sim.auditing.real_rounds.canary_cases`: mechanisms and models to audit, and their table.
* :mod:`~fl_sim.auditing.real_rounds.round_sensitivity`: two adjacent rounds without noise, against their bound.
"""
