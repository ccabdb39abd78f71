"""Run two checkouts of fl_sim side by side and compare what must not change (``compare_checkouts.py``)."""
