"""One part of every kind that fl_sim takes from other packages."""
