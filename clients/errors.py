"""The one error that models, tokenizers and their inputs raise."""

from __future__ import annotations


class ModelError(ValueError):
    """A model, tokenizer, device or token sequence that cannot be used; one line that says what was tried."""
