"""The public API, one module a subject; ``import fl_sim`` offers all of it under one name.

* :mod:`~fl_sim.api.runs`: start, resume, open and plot runs.
* :mod:`~fl_sim.api.corpora`: prepare and open corpora.
* :mod:`~fl_sim.api.accounts`: compute ε, and the setting that meets a target ε.
* :mod:`~fl_sim.api.audits`: attack a mechanism and bound its ε from below; attack finished runs.

The command line is a thin layer on these functions.
"""
