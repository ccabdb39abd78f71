"""Text to tokens: every sentence alone, kept in two memory-mapped arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.arrays import open_vector, write_vector
from fl_sim.data_prep.store.atomic import folder_appearing_at

_TOKENS = "tokens.npy"
_OFFSETS = "offsets.npy"
_BATCH = 4096

Tokenizer = Callable[..., Any]
"""A ``transformers`` fast tokenizer, or what answers the call in :func:`encode_split` alike."""


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """Sentence s is ``tokens[offsets[s]:offsets[s+1]]``; tokens int32 (total,), offsets int64 (S+1,)."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 (S,): tokens per sentence, the added ones included."""
        return np.diff(self.offsets)

    def sentence(self, s: int) -> NDArray[np.int32]:
        """The tokens of sentence ``s``, a view."""
        if not 0 <= s < len(self.offsets) - 1:
            raise CorpusError(f"sentence {s} must lie in [0, {len(self.offsets) - 1})")
        return self.tokens[self.offsets[s] : self.offsets[s + 1]]


def encode_split(
    texts: Iterable[str] | pa.ChunkedArray,
    tokenizer: Tokenizer,
    max_tokens: int,
    out_dir: Path,
    *,
    bos_id: int,
    eos_id: int,
) -> EncodedSplit:
    """Encode each text as ``[bos] + tokens + [eos]``, cut to its first ``max_tokens``, into the folder
    ``out_dir``.

    A sentence that is cut has no eos: it did not end there. Sentences are never packed together, so that a
    gradient can depend on one alone. The folder appears whole or not at all; whoever caches it must name it
    by all that made it (corpus fingerprint, tokenizer, ``max_tokens``). Raises :class:`CorpusError` for
    ``max_tokens`` < 2 and a folder that is taken.
    """
    if max_tokens < 2:
        raise CorpusError(f"max_tokens {max_tokens} must be at least 2: one token to read, one to predict")
    with folder_appearing_at(out_dir) as folder:
        lengths: list[int] = []

        def tokens() -> Iterator[NDArray[np.int32]]:
            for batch in _batches(texts):
                # A special token spelt out in a text is text: nobody can forge the boundary of a sentence.
                encoded = tokenizer(batch, add_special_tokens=False, split_special_tokens=True)["input_ids"]
                rows = [[bos_id, *ids, eos_id][:max_tokens] for ids in encoded]
                lengths.extend(map(len, rows))
                yield np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32)

        write_vector(folder / _TOKENS, np.int32, tokens())
        write_vector(folder / _OFFSETS, np.int64, [np.cumsum([0, *lengths])])
    return open_encoded(out_dir)


def open_encoded(out_dir: Path) -> EncodedSplit:
    """Open what :func:`encode_split` wrote, memory-mapped; :class:`CorpusError` where absent or damaged."""
    try:
        tokens = open_vector(out_dir / _TOKENS, np.int32)
        offsets = open_vector(out_dir / _OFFSETS, np.int64)
    except CorpusError as error:
        raise CorpusError(f"{out_dir}: not an encoded split: {error}") from error
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise CorpusError(f"{out_dir}: not an encoded split: {_TOKENS} and {_OFFSETS} do not fit together")
    return EncodedSplit(tokens=tokens, offsets=offsets)


def _batches(texts: Iterable[str] | pa.ChunkedArray) -> Iterator[list[str]]:
    if isinstance(texts, pa.ChunkedArray):
        for start in range(0, len(texts), _BATCH):
            yield texts.slice(start, _BATCH).to_pylist()
        return
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        yield batch
