"""The server's side of private representations: classifiers, adversaries, attacks (docs/representations.md)."""
