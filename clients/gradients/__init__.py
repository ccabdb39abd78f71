"""Compute exact sums of per-sentence clipped gradients, per user or over a batch, without storing each gradient."""
