"""Taggers: which spans of a text are sensitive entities, and of which category."""
