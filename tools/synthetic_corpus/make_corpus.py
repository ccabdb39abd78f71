"""Generate the synthetic corpus: users who write about their lives, each in a style of their own.

    pip install 'fl-sim[dev]'
    python -m tools.synthetic_corpus.make_corpus --out made                   # data_prep/bundled
    python -m tools.synthetic_corpus.make_corpus --users 5000 --out larger    # another one of the same kind

Every choice comes from generators derived from one seed and the user's number. The number of users, the seed and the
recorded Faker version therefore determine the corpus.

>>> sentence = next(synthetic_sentences(num_users=20, seed=1))
>>> sentence.split, sentence.user
('train', 'train-00001')
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from tools.synthetic_corpus.grammar import Piece
from tools.synthetic_corpus.synthetic_user import User
from tools.synthetic_corpus.world import World, build_world

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
    """Yield the sentences of one user; their number is log-normal, from 5 to 40 with mean about 14."""
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


def raw_corpus(users: int, seed: int) -> RawCorpus:
    """Return the generated corpus as ``fl_sim.data_prep.prepare`` takes it."""
    return RawCorpus(
        "synthetic",
        lambda: synthetic_sentences(users, seed),
        has_gold=True,
        settings={"kind": "synthetic", "users": users, "seed": seed},
        tools=("faker",),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Generate the synthetic corpus that ships, or one of another size.")
    parser.add_argument("--users", type=int, default=DEFAULT_USERS, help=f"of all splits (default {DEFAULT_USERS})")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"default {DEFAULT_SEED}")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    args = parser.parse_args(argv)
    try:
        corpus = prepare(raw_corpus(args.users, args.seed), args.out).corpus
    except CorpusError as error:
        parser.error(str(error))
    print(f"{corpus.path}: {sum(split.sentences for split in corpus.manifest.splits.values()):,} sentences")


if __name__ == "__main__":
    main()
