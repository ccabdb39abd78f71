"""Commands that start, continue or show runs."""
