"""Per-sentence gradient norms and weighted gradient sums, layer by layer, from one recorded pass."""
