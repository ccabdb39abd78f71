"""Comparisons of methods at an equal ε: what each run may spend, paired differences, table and picture."""
