"""Distributed noise: nodes add shares of discrete Gaussian noise, and the server sees modular sums alone."""
