"""Finished runs for a reader: reports and plots."""
