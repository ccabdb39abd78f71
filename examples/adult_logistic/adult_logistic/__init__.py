"""Logistic regression on Adult, trained with user-level differential privacy."""
