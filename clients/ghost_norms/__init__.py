"""Compute per-sentence gradient norms and weighted gradient sums, layer by layer, from one recorded pass.

>>> import torch
>>> from fl_sim.clients.ghost_norms.layer_gradients import Product
>>> Product("weight", torch.ones(1, 2, 3), torch.ones(1, 2, 3), transposed=False).squared.sqrt()
tensor([6.], dtype=torch.float64)
"""
