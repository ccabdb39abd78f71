"""Readers: raw corpora as cleaned sentences with their users and any gold entities."""
