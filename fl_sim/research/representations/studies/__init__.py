"""Reproductions of published tables of private representations."""
