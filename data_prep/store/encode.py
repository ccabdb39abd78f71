"""Encode texts as tokens, each sentence by itself, in two memory-mapped arrays, and keep them for the next run.

>>> split = EncodedSplit(tokens=np.array([0, 7, 8, 1, 0, 9], dtype=np.int32), offsets=np.array([0, 4, 6]))
>>> split.sentence(1)
array([0, 9], dtype=int32)
>>> split.lengths
array([4, 2])
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import open_vector, write_vector
from fl_sim.files import cache_folder, json_object, read_bytes, sha256_of, sha256_of_json

_TOKENS = "tokens.npy"
_OFFSETS = "offsets.npy"
_DIGESTS = "digests.json"
_BATCH = 4096
_MOST_KEPT = 8  # folders beside a corpus: training and held-out split of four tokenizers

Tokenizer = Callable[..., Any]
"""A ``transformers`` fast tokenizer, or a callable that answers the call in :func:`encode_split` like one."""


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """The tokens of S sentences; the tokens of sentence s are ``tokens[offsets[s]:offsets[s+1]]``.

    Attributes:
        tokens: int32 (total,).
        offsets: int64 (S+1,).
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens per sentence with the special ones, int64 (S,)."""
        return np.diff(self.offsets)

    def sentence(self, s: int) -> NDArray[np.int32]:
        """Return the tokens of sentence ``s``, int32 (length,): a view."""
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
    """Encode each text as ``[bos] + tokens + [eos]``, truncated to ``max_tokens``, in the folder ``out_dir``.

    A truncated sentence has no eos. Sentences are never packed together, so that a gradient depends on one sentence.
    The folder appears atomically.

    Args:
        tokenizer: encodes a batch of texts without special tokens.
        max_tokens: at most so many tokens per sentence, special ones included.
        out_dir: the folder to make.
        bos_id, eos_id: the tokens at the beginning and at the end.

    Raises:
        CorpusError: ``max_tokens`` is less than 2, or the folder is taken.
    """
    if max_tokens < 2:
        raise CorpusError(f"max_tokens {max_tokens} must be at least 2: one token to read, one to predict")
    with folder_appearing_at(out_dir) as folder:
        lengths: list[int] = []

        def tokens() -> Iterator[NDArray[np.int32]]:
            for batch in _batches(texts):
                # A special token spelt out in a text is plain text, so no text can forge the end of a sentence.
                encoded = tokenizer(batch, add_special_tokens=False, split_special_tokens=True)["input_ids"]
                rows = [[bos_id, *ids, eos_id][:max_tokens] for ids in encoded]
                lengths.extend(map(len, rows))
                yield np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32)

        write_vector(folder / _TOKENS, np.int32, tokens())
        write_vector(folder / _OFFSETS, np.int64, [np.cumsum([0, *lengths])])
    return open_encoded(out_dir)


def encode_once(
    corpus: Corpus, split: str, tokenizer: Tokenizer, max_tokens: int, out_dir: Path, *, bos_id: int, eos_id: int
) -> EncodedSplit:
    """Return what :func:`encode_split` makes of a split of ``corpus``, without encoding it if an earlier run did.

    Its tokens are kept in ``tokens/`` in the corpus's folder, as private as the run's own, under a digest of all that
    decides them; those of a corpus that ships are in the user's cache. The files of ``out_dir`` are links to them, or
    copies, and are checked by their SHA-256. The folders used last are kept, ``_MOST_KEPT`` of them. Nothing is kept
    where no file can be written, or of a tokenizer that cannot tell what it consists of. Arguments and errors are those
    of :func:`encode_split`.
    """
    source = _kept_tokens(corpus, split, tokenizer, [max_tokens, bos_id, eos_id])
    if source is None or not _linked(source, out_dir):
        encode_split(corpus.texts(split), tokenizer, max_tokens, out_dir, bos_id=bos_id, eos_id=eos_id)
        if source is not None:
            with suppress(OSError, CorpusError):  # no room, a folder for reading alone, or another run keeps them now
                _keep(out_dir, source)
    return open_encoded(out_dir)


def _kept_tokens(corpus: Corpus, split: str, tokenizer: Tokenizer, limits: list[int]) -> Path | None:
    """Return the folder of these tokens; None if there is no place for them, or the tokenizer is no fast one."""
    import tokenizers

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    kept = corpus.path / "tokens"
    if corpus.shipped_name is not None:
        try:
            kept = cache_folder() / "tokens" / corpus.shipped_name
        except RuntimeError:  # no home
            return None
    return kept / sha256_of_json([corpus.fingerprint, split, tokenizers.__version__, backend.to_str(), *limits])


def _linked(source: Path, out_dir: Path) -> bool:
    """Make ``out_dir`` of kept tokens, and return whether these are there and what was written.

    It does not depend on ``source`` afterwards: a later run may remove that.
    """
    try:
        digests = json_object(read_bytes(source / _DIGESTS))
        with folder_appearing_at(out_dir) as folder:
            for name in (_TOKENS, _OFFSETS):
                _link_or_copy(source / name, folder / name)
                if sha256_of(folder / name) != digests.get(name):
                    raise CorpusError(f"{source / name}: damaged")
    except (OSError, ValueError):
        return False
    with suppress(OSError):  # of another user, or just removed by another run
        os.utime(source)
    return True


def _keep(encoded: Path, source: Path) -> None:
    """Keep tokens for later runs as ``source``, and remove those that were not used for longest."""
    with folder_appearing_at(source, replace=True) as folder:
        for name in (_TOKENS, _OFFSETS):
            _link_or_copy(encoded / name, folder / name)
        (folder / _DIGESTS).write_text(json.dumps({name: sha256_of(folder / name) for name in (_TOKENS, _OFFSETS)}))
    kept = [folder for folder in source.parent.iterdir() if not folder.name.startswith(".")]  # no unfinished ones
    for unused in sorted(kept, key=lambda folder: folder.stat().st_mtime, reverse=True)[_MOST_KEPT:]:
        shutil.rmtree(unused, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copyfile(source, target)


def open_encoded(out_dir: Path) -> EncodedSplit:
    """Open what :func:`encode_split` wrote, memory-mapped; :class:`CorpusError` if it is absent or damaged."""
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
