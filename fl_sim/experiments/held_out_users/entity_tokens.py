"""Which tokens of a sentence are part of a mention, and how many bytes of its text each token covers.

A token is an entity token if one of its characters lies in a mention. A token covers the text from the end of the
token before it to its own end, so that the bytes of all tokens add up to those of the text; the end of the sentence
covers the rest and one byte more.

>>> covers = [(0, 3), (4, 9), (9, 10)]
>>> is_entity_token(covers, [(4, 9)]).tolist(), covered_bytes("Ada läuft.", covers).tolist()
([False, True, False, False], [3, 7, 1, 1])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
"""First character, and the one after the last."""


def token_spans(texts: Sequence[str], tokenizer: Any) -> list[list[Span]] | None:
    """Return the characters of every token of every text, without special tokens.

    Args:
        texts: the sentences.
        tokenizer: of transformers, as the model reads its texts.

    Returns:
        A list per text; None if the tokenizer does not know its tokens' places.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    options = {"add_special_tokens": False, "split_special_tokens": True, "return_offsets_mapping": True}
    return tokenizer(list(texts), **options)["offset_mapping"] if texts else []


def is_entity_token(spans: Sequence[Span], mentions: Sequence[Span]) -> NDArray[np.bool_]:
    """Return which of a sentence's targets are entity tokens, bool (k + 1,); the last is the sentence's end.

    Args:
        spans: the characters of its k tokens.
        mentions: those of its mentions.
    """
    overlaps = [any(max(start, first) < min(end, last) for first, last in mentions) for start, end in spans]
    return np.array([*overlaps, False])


def covered_bytes(text: str, spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the bytes that each of a sentence's targets covers, int64 (k + 1,); their sum is the text's and 1."""
    ends = np.maximum.accumulate(np.array([0, *(end for _, end in spans)], dtype=np.int64))
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    return np.diff(np.append(bytes_before[ends], bytes_before[-1] + 1))
