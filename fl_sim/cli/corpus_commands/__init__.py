"""Commands that make or describe corpora."""
