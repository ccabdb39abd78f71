"""The server's side of private representations: classifiers, adversaries and their training."""
