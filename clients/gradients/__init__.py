"""Exact per-sentence clipped gradient sums, per user or over a batch, without materialising per-sentence gradients."""
