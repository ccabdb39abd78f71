"""Readers: turn raw corpora into clean sentences with their users and gold entities."""
