"""Labelled corpora with private attributes."""
