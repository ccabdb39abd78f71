"""Records of attacks (:class:`~fl_sim.research.uedp_paper.figure_records.LeakageRecord`), for people.

* :mod:`~fl_sim.research.uedp_paper.leakage.attack_tables`: as tables.
* :mod:`~fl_sim.research.uedp_paper.leakage.attack_pictures`: as a picture.
"""
