"""Post-process a noisy average after its release, at no privacy cost: the server's step and iterate averages."""
