"""Generate the synthetic corpus: users who write about their lives, each in a style of their own.

Every choice comes from generators derived from one seed and the user's number. The number of users, the seed and the
recorded Faker version therefore determine the corpus.

>>> sentence = next(synthetic_sentences(num_users=20, seed=1))
>>> sentence.split, sentence.user
('train', 'train-00001')
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.synthetic.grammar import Piece
from fl_sim.data_prep.synthetic.synthetic_user import User
from fl_sim.data_prep.synthetic.world import World, build_world

DEFAULT_USERS = 1500
DEFAULT_SEED = 20240312
MIN_USERS = 20
VALIDATION_SHARE = 1 / 14
PUBLIC_SHARE = 1 / 7
"""Shares of the users; the public split is for tokenizers, and no run trains on it."""

_FEWEST, _MOST = 5, 40


def synthetic_sentences(num_users: int = DEFAULT_USERS, seed: int = DEFAULT_SEED) -> Iterator[Sentence]:
    """Yield all sentences of ``num_users`` users, user by user: train, then validation, then public.

    Raises:
        CorpusError: there are fewer than 20 users, or the seed is negative.
    """
    if num_users < MIN_USERS:
        raise CorpusError(f"users {num_users} must be at least {MIN_USERS}, to fill three splits")
    if seed < 0:
        raise CorpusError(f"seed {seed} must not be negative")
    world = build_world(num_users, seed)
    held_out = round(num_users * VALIDATION_SHARE)
    public = round(num_users * PUBLIC_SHARE)
    sizes = {"train": num_users - held_out - public, "validation": held_out, "public": public}
    number = 0
    for split, size in sizes.items():
        for index in range(1, size + 1):
            number += 1
            yield from user_sentences(world, split, f"{split}-{index:05d}", np.random.default_rng([seed, number]))


def user_sentences(world: World, split: str, key: str, rng: np.random.Generator) -> Iterator[Sentence]:
    """Yield the sentences of one user; their number is log-normal, from 5 to 40 with mean about 14.

    Args:
        world: of the corpus.
        split: of the user.
        key: of the user.
        rng: draws.
    """
    user = User.of(world, rng)
    count = int(np.clip(round(rng.lognormal(2.55, 0.5)), _FEWEST, _MOST))
    for _ in range(count):
        yield _sentence(user.pieces(rng), split, key)


def _sentence(pieces: list[Piece], split: str, key: str) -> Sentence:
    mentions = []
    position = 0
    for text, label in pieces:
        if label:
            mentions.append(Mention(position, position + len(text), label))
        position += len(text)
    return Sentence(split, key, "".join(text for text, _ in pieces), tuple(mentions))
