"""Turn text into token ids with a public vocabulary.

The vocabulary must be public (docs/privacy.md): the bundled tokenizer was trained on public text only
(tools/train_tokenizer.py), and a named one comes with its public model.

>>> ids = Vocabulary("bundled").tokenizer("It rained.", add_special_tokens=False)["input_ids"]
>>> Vocabulary("bundled").tokenizer.decode(ids).strip()
'It rained.'
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.hub import describe_failure, locate, quiet_transformers

BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).resolve().parents[1] / "assets" / "tokenizer"

_ANY_LENGTH = int(1e30)
"""The longest text of a tokenizer here, as of transformers without a limit: a model cuts texts, and nothing warns."""


class Vocabulary:
    """The tokens that a model reads; the tokenizer is loaded when it is first needed.

    ``begin`` and ``end`` are the tokens around every sentence, ``None`` for the tokenizer's own.
    """

    def __init__(self, name: str, begin: str | None = None, end: str | None = None) -> None:
        self.name = name
        self._ends = (begin, end)

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; ModelError if it cannot be loaded."""
        tokenizer = load_tokenizer(self.name)
        if self._ends != (None, None):
            vocabulary = tokenizer.get_vocab()
            for key, token in zip(("begin_token", "end_token"), self._ends, strict=True):
                if token is not None and token not in vocabulary:
                    raise ModelError(f"model.{key} is {token!r}; allowed: a token of the tokenizer {self.name!r}")
            own = tokenizer.convert_ids_to_tokens(list(boundary_ids(tokenizer)))
            tokenizer.bos_token, tokenizer.eos_token = (
                before if token is None else token for token, before in zip(self._ends, own, strict=True)
            )
        return tokenizer

    @property
    def size(self) -> int:
        """The number of token ids."""
        return len(self.tokenizer)

    @property
    def boundaries(self) -> tuple[int, int]:
        """The (bos, eos) ids of every sentence."""
        return boundary_ids(self.tokenizer)


def load_tokenizer(name: str) -> Any:
    """Return the transformers tokenizer of that name: ``"bundled"``, a local folder or a hub name.

    Raises:
        ModelError: it cannot be loaded, or has no token for a sentence's ends.
    """
    tokenizer: Any
    if name == BUNDLED:
        from transformers import PreTrainedTokenizerFast

        if not (BUNDLED_FOLDER / "tokenizer.json").is_file():
            raise ModelError(f"the bundled tokenizer is missing: no file {BUNDLED_FOLDER / 'tokenizer.json'}")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(BUNDLED_FOLDER)
    else:
        from transformers import AutoTokenizer  # half a second that a run with the bundled tokenizer need not pay

        try:
            with quiet_transformers():  # it warns of a config.json of a model that it does not know
                tokenizer = AutoTokenizer.from_pretrained(locate(name), trust_remote_code=False)
        except ModelError:
            raise
        except Exception as error:  # transformers', tokenizers' and the system's errors have no common class
            raise ModelError(f"cannot load tokenizer {name!r}: {describe_failure(name, error)}") from error
    boundary_ids(tokenizer, f"tokenizer {name!r}")
    tokenizer.model_max_length = _ANY_LENGTH
    return tokenizer


def boundary_ids(tokenizer: Any, described: str = "the tokenizer") -> tuple[int, int]:
    """Return the (bos, eos) ids, or an encoder's (cls, sep); one alone stands for both, none is a ModelError."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is None and eos is None:
        bos, eos = tokenizer.cls_token_id, tokenizer.sep_token_id
    if bos is None and eos is None:
        raise ModelError(f"{described} has neither a bos nor an eos token; allowed: one with at least one")
    return (eos if bos is None else bos), (bos if eos is None else eos)
