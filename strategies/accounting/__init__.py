"""Accounting: from what a round releases to a proven ε, per user, entity and both. Pure mathematics, no framework."""
