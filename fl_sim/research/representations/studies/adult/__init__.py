"""FEDERATE's table 3 on Adult, its sweep of relaxation thresholds, and its trade-offs."""
