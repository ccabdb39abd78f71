"""Render public sentences as people type in a chat: lower case, no full stop, often a nick in front.

Chat text that may ship in weights is scarce, so half of the public sentences are rendered so. The nicks are made up.
"""

from __future__ import annotations

import numpy as np

_CONSONANTS = "b br c ch d dr f fl g gr h j k kr l m n p r s sh st t tr v w z"
_ONSETS = _CONSONANTS.split()
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ee", "oo"]
_CODAS = ["", "", "", *["d", "k", "l", "m", "n", "r", "s", "t", "x", "nd", "rk", "rt", "st"]]
_ENDINGS = ["", "", "", "_", "1", "2", "23", "77", "99", "_1", "5"]
_MARKS = [":", ":", ","]
RENDERED_SHARE, ADDRESSED_SHARE, LOWER_SHARE, FACE_SHARE = 0.5, 0.4, 0.6, 0.08
_FACES = [":)", ":(", ";)", ":P", ":/", "lol", "heh"]


def nick(rng: np.random.Generator) -> str:
    """Return a made-up nick of two or three syllables."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.integers(2, 4))]
    return "".join(syllables) + rng.choice(_ENDINGS)


def chat_message(sentence: str, rng: np.random.Generator) -> str:
    """Return the sentence as a chat message: without its full stop, mostly in lower case, perhaps with a smiley."""
    text = sentence.removesuffix(".") if rng.random() < 0.85 else sentence
    if rng.random() < LOWER_SHARE:
        text = text.lower()
    elif text[1:2].islower():
        text = text[:1].lower() + text[1:]
    return f"{text} {rng.choice(_FACES)}" if rng.random() < FACE_SHARE else text


def render(sentences: list[str], seed: int) -> list[str]:
    """Return the sentences in their order, each rendered as a message with probability ``RENDERED_SHARE``."""
    rng = np.random.default_rng(seed)
    rendered = []
    for sentence in sentences:
        if rng.random() < RENDERED_SHARE:
            sentence = chat_message(sentence, rng)
            if rng.random() < ADDRESSED_SHARE:
                sentence = f"{nick(rng)}{rng.choice(_MARKS)} {sentence}"
        rendered.append(sentence)
    return rendered
