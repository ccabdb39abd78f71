"""Define the error that models, tokenizers and their inputs raise."""

from __future__ import annotations


class ModelError(ValueError):
    """Report, in one line, a model, tokenizer, device or token sequence that cannot be used."""
