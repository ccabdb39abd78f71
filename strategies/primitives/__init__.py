"""What a private round is made of: named random streams, Poisson sampling, clipping and Gaussian noise."""
