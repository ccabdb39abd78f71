"""What the server does in a round, and what it may promise about it: sampling, clipping, noise, accounting."""
