"""Primitives of a private round: named random streams, Poisson sampling, clipping and Gaussian noise."""
