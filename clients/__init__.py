"""Compute a client's part of a round: select eligible sentences and sum the bounded client updates.

>>> import numpy as np
>>> from fl_sim.clients.batches import padded
>>> padded([np.array([5, 6, 7]), np.array([8])]).tolist()
[[5, 6, 7], [8, 0, 0]]
"""
