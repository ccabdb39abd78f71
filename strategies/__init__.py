"""Strategies, the round that they share on the server, and its guarantee: sampling, clipping, noise, accounting."""
