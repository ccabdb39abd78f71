"""Attack one entity or one user, chosen by name.

* :mod:`~fl_sim.auditing.leakage.one_name.compared_models`: the attacked model beside those that did not see the name.
* :mod:`~fl_sim.auditing.leakage.one_name.one_entity`: what the models complete, and how they rank the true name.
* :mod:`~fl_sim.auditing.leakage.one_name.one_user`: how much a user's text stands out, and how its ends are ranked.
"""
