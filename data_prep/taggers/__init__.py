"""Taggers: mark the spans of a text that are sensitive entities, and their categories."""
