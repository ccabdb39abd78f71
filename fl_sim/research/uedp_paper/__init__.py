"""Figures and tables of the UeDP paper and ours: configuration, runs, records, pictures and text."""
