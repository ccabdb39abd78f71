"""Two checkouts of fl_sim run side by side, and what must not change between them (``compare_checkouts.py``)."""
