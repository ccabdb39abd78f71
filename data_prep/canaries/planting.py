"""Draw canaries, and plant them among the sentences of a source.

Canary i has the owner and the number of repetitions that follow from i: owners alternate, and after each pair the
repetitions go on in 1, 2, 4, …, 64, so that every combination has as many canaries as any other, up to one. Secrets,
names and whether a canary is included are drawn from streams of their own, so none of them says anything about another,
and whether one is included does not depend on how many canaries there are.

>>> planted = draw_canaries(CanarySettings(number=28, seed=1))
>>> [(c.owner, c.repetitions) for c in planted.canaries][:4]
[('user', 1), ('entity', 1), ('user', 2), ('entity', 2)]
>>> planted.canaries[2].text(planted.law)
'the secret words are pillow chair door'
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_sim.data_prep.canaries.planted_canaries import Canary, Owner, PlantedCanaries
from fl_sim.data_prep.canaries.secret_law import SecretLaw
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError, Sentence

REPETITIONS = (1, 2, 4, 8, 16, 32, 64)
OWNERS: tuple[Owner, ...] = ("user", "entity")
MOST_CANARIES = 10_000

WARNING = (
    "Canaries are planted in this corpus (docs/canaries.md): with the privacy.population that fl-sim stats prints, N "
    "does not depend on which of them are included."
)

_BEFORE = {"user": "the secret words are ", "entity": "the secret words of {name} are "}
_CONSONANTS, _VOWELS, _END = "bdfgklmnprstvz", "aeiou", "x"
_SYLLABLES = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS)
_NAME = SecretLaw(words=_SYLLABLES, length=3)


@dataclass(frozen=True)
class CanarySettings:
    """How many canaries are planted, and the seed of all their draws.

    Raises:
        CorpusError: a value is out of range.
    """

    number: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MOST_CANARIES:
            raise CorpusError(f"--canaries is {self.number}; allowed: an integer in [1, {MOST_CANARIES}]")
        if self.seed < 0:
            raise CorpusError(f"--canary-seed is {self.seed}; allowed: an integer of at least 0")

    def manifest_settings(self) -> dict[str, Any]:
        """Return the settings, for a manifest."""
        return {"canaries": {"number": self.number, "seed": self.seed}}


def draw_canaries(settings: CanarySettings, law: SecretLaw | None = None) -> PlantedCanaries:
    """Return the canaries that the settings describe; ``law`` is that of the secrets, by default the public list's."""
    law = law or SecretLaw()
    secrets = law.draw(_stream(settings.seed, "secrets"), settings.number)
    names = _NAME.draw(_stream(settings.seed, "names"), settings.number)
    canaries = []
    for number in range(settings.number):
        owner = OWNERS[number % len(OWNERS)]
        repetitions = REPETITIONS[number // len(OWNERS) % len(REPETITIONS)]
        name = _NAME.secret(int(names[number])).replace(" ", "") + _END if owner == "entity" else None
        canary = Canary(
            number=number,
            owner=owner,
            repetitions=repetitions,
            included=bool(_stream(settings.seed, "coin", number).random() < 0.5),
            users=_users(number, repetitions if owner == "entity" else 1),
            before=_BEFORE[owner].format(name=name),
            name=name,
            secret=int(secrets[number]),
        )
        canaries.append(canary)
    return PlantedCanaries(seed=settings.seed, law=law, canaries=tuple(canaries))


def planted(sentences: Iterable[Sentence], canaries: PlantedCanaries, identity: Identity) -> Iterator[Sentence]:
    """Yield the sentences of a source, then those of the canaries that are included.

    The canaries come last and after the tagger, so that no other user's id depends on which are included, and the
    only mentions in a canary are those of its own entity.

    Args:
        sentences: with their mentions.
        canaries: to plant.
        identity: of the corpus.

    Raises:
        CorpusError: a sentence of the source has a canary's user or entity.
    """
    yield from apart(sentences, canaries, identity)
    yield from canaries.sentences()


def apart(sentences: Iterable[Sentence], canaries: PlantedCanaries, identity: Identity) -> Iterator[Sentence]:
    """Yield the sentences; raise :class:`CorpusError` for one with a canary's user or entity."""
    users = canaries.users
    keys = frozenset(identity.key(canary.name) for canary in canaries.canaries if canary.name is not None)
    for sentence in sentences:
        if sentence.user in users:
            raise CorpusError(
                f"user {sentence.user!r} of the source is a canary's; allowed: another --canary-seed or key"
            )
        if sentence.mentions and any(key in keys for key, _ in identity.entities(sentence)):
            raise CorpusError("the source mentions a canary's entity; allowed: another --canary-seed")
        yield sentence


def _users(number: int, count: int) -> tuple[str, ...]:
    return tuple(f"canary-{number:04d}-{user:02d}" for user in range(count))


def _stream(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    digest = hashlib.sha256(f"canaries\0{seed}\0{purpose}\0{number}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
