"""The client's side of private representations: encode, perturb, send (docs/representations.md)."""
