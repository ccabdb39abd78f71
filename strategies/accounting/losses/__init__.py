"""Privacy losses: dominating pairs of a round, their grids, and their composition."""
