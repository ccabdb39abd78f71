"""The server of private representations: classifiers, adversaries and their training."""
