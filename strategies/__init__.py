"""Compute the server's part of a round and state its privacy guarantee: sampling, clipping, noise, accounting.

>>> from fl_sim.strategies import registry
>>> sorted(registry.built_in_strategies())
['noiseless', 'published', 'uedp', 'user_level']
"""
