"""A CNN on digits, trained with user-level differential privacy."""
