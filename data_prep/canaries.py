"""Canaries: secrets planted in a corpus to measure what a model remembers.

A secret is words drawn uniformly and independently from a public list that ships here, so the number of possible
secrets |R| is known; no preprocessing changes the words. A canary is a sentence: public words and a secret. A canary of
a *user* is said r times by a user of its own, and mentions nothing. A canary of an *entity* names a made-up person of
its own and is said once by each of r users of its own. Each canary is in the corpus with probability ½, independently
of the others: all of its sentences, and so its users, or none.

docs/audit.md says why corpora with a canary and without it are neighbours, limits included, and which N fits both. An
enrolled user without sentences sends nothing, as one who is not sampled. (A neutral sentence in the place of a canary
would keep the number of users, too, but a canary would then replace another text of its user, which is two steps of
adding or removing.)

Canary i has the owner and the number of repetitions that follow from i, so that every combination has as many canaries
as any other, up to one. Secrets, names and whether a canary is included are drawn from streams of their own, so none of
them says anything about another, and whether one is included does not depend on how many canaries there are.

>>> planted = draw_canaries(CanarySettings(number=28, seed=1))
>>> planted.canaries[2].text(planted.law)
'the secret words are pillow chair door'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator

from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.data_prep.store.manifest import Record
from fl_sim.files import read_bytes

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus

_WORD_LIST = """
apple arrow basket beach bell bird boat bottle bread bridge button candle castle chair cheese cloud coat copper corn
cotton desert door dragon drum eagle engine feather field fish flag flower forest garden gate glass gold grass hammer
horse island jacket kettle ladder lamp lemon lion mirror moon mountain ocean orange paper pencil piano pillow pocket
river rocket salt silver spoon tiger tower window
"""

WORDS = tuple(_WORD_LIST.split())
"""The public list: 64 words."""


class SecretLaw(Record):
    """The uniform distribution over sequences of words.

    Attributes:
        words: the list, without repetition.
        length: of a secret, in words.
    """

    words: tuple[str, ...] = Field(WORDS, min_length=2)
    length: int = Field(3, ge=1, le=12)

    @field_validator("words")
    @classmethod
    def _distinct(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(words)) < len(words):
            raise ValueError("a word is there twice")
        return words

    @property
    def size(self) -> int:
        """|R|, the number of possible secrets."""
        return len(self.words) ** self.length

    def secret(self, number: int) -> str:
        """Return the secret with this number in [0, |R|)."""
        words = []
        for _ in range(self.length):
            number, position = divmod(number, len(self.words))
            words.append(self.words[position])
        return " ".join(words)

    def draw(self, rng: np.random.Generator, count: int, without: Collection[int] = ()) -> NDArray[np.int64]:
        """Return distinct secrets other than ``without``, drawn uniformly, int64 (count,), in random order.

        Raises:
            CorpusError: there are not so many secrets.
        """
        excluded = set(without)
        if count > self.size - len(excluded):
            raise CorpusError(f"{count} secrets are to be drawn; allowed: at most {self.size - len(excluded)}")
        if self.size <= 4 * (count + len(excluded)):
            allowed = np.array(sorted(set(range(self.size)) - excluded), dtype=np.int64)
            return rng.permutation(allowed)[:count]
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            number = int(rng.integers(self.size))
            if number not in excluded:
                drawn[number] = None
        return np.fromiter(drawn, dtype=np.int64, count=count)


Owner = Literal["user", "entity"]

SPLIT = "train"
NAME_LABEL = "PERSON"


class Canary(Record):
    """A canary, included or not.

    Attributes:
        number: its position, from 0.
        owner: what it belongs to.
        repetitions: r, how many sentences say it.
        included: whether the corpus has these sentences.
        users: the keys of the users who say it: one, or one per repetition.
        before: the public text before the secret, with the space between them.
        name: the entity's name in this text; None where no mention is marked.
        secret: its number in the law.
    """

    number: int = Field(ge=0)
    owner: Owner
    repetitions: int = Field(ge=1)
    included: bool
    users: tuple[str, ...] = Field(min_length=1)
    before: str = Field(min_length=1)
    name: str | None
    secret: int = Field(ge=0)

    def text(self, law: SecretLaw, secret: int | None = None) -> str:
        """Return the sentence, or the one that another secret would have made."""
        return self.before + law.secret(self.secret if secret is None else secret)

    def sentences(self, law: SecretLaw) -> Iterator[Sentence]:
        """Yield the r sentences, with their mentions."""
        mentions: tuple[Mention, ...] = ()
        if self.name is not None:
            start = self.before.index(self.name)
            mentions = (Mention(start, start + len(self.name), NAME_LABEL),)
        for number in range(self.repetitions):
            yield Sentence(SPLIT, self.users[number % len(self.users)], self.text(law), mentions)


class PlantedCanaries(Record):
    """All canaries of a corpus.

    Attributes:
        seed: of secrets, names and which canaries are included.
        canaries: in the order of their numbers; no two have the same secret.
    """

    format: Literal["fl-sim canaries"] = "fl-sim canaries"
    format_version: Literal[1] = 1
    seed: int = Field(ge=0)
    law: SecretLaw
    canaries: tuple[Canary, ...] = Field(min_length=1)

    @property
    def users(self) -> frozenset[str]:
        """The users of all canaries, included or not."""
        return frozenset(user for canary in self.canaries for user in canary.users)

    @property
    def left_out_users(self) -> int:
        """How many users are not in the corpus because their canary was left out."""
        return sum(len(canary.users) for canary in self.canaries if not canary.included)

    def population(self, corpus: Corpus) -> int:
        """Return N: the users of the corpus's train split, and those of the canaries that were left out."""
        return corpus.manifest.splits[SPLIT].users + self.left_out_users

    def sentences(self) -> Iterator[Sentence]:
        """Yield the sentences of the canaries that are included."""
        for canary in self.canaries:
            if canary.included:
                yield from canary.sentences(self.law)

    def rewritten(self, rewrite: Callable[[Sentence], Sentence | None]) -> PlantedCanaries:
        """Return the canaries as they stand in a corpus whose sentences went through ``rewrite``.

        Args:
            rewrite: changes the text of a sentence outside its secret, and moves its mentions.

        Raises:
            CorpusError: a secret would not stand at the end of its text as it was.
        """
        rewritten = []
        for canary in self.canaries:
            secret, sentence = self.law.secret(canary.secret), rewrite(next(canary.sentences(self.law)))
            if sentence is None or not sentence.text.endswith(f" {secret}"):
                raise CorpusError(
                    f"canary {canary.number} would lose its secret; allowed: changes of the text before it"
                )
            name = sentence.surface(sentence.mentions[0]) if sentence.mentions else None
            rewritten.append(canary.model_copy(update={"before": sentence.text.removesuffix(secret), "name": name}))
        return self.model_copy(update={"canaries": tuple(rewritten)})

    def to_json(self) -> str:
        """Return the text of ``canaries.json``; beside each canary stand its text and |R|."""
        record = self.model_dump(mode="json")
        for row, canary in zip(record["canaries"], self.canaries, strict=True):
            row["text"] = canary.text(self.law)
        record["law"]["size"] = self.law.size
        return json.dumps(record, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> PlantedCanaries:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: the text is no such record, or contradicts itself.
        """
        record = json.loads(text)
        size = record["law"].pop("size")
        texts = [row.pop("text") for row in record["canaries"]]
        planted = cls.model_validate(record)
        if size != planted.law.size or texts != [canary.text(planted.law) for canary in planted.canaries]:
            raise ValueError("a text or |R| is not that of the law")
        if len({canary.secret for canary in planted.canaries}) < len(planted.canaries):
            raise ValueError("two canaries have one secret")
        return planted


def read_canaries(corpus: Corpus) -> PlantedCanaries:
    """Return the canaries of a prepared corpus.

    Raises:
        CorpusError: it has none, or its file is damaged.
    """
    path = corpus.path / CANARIES_FILE
    if not corpus.has_canaries:
        raise CorpusError(f"{corpus.path}: has no canaries; allowed: a corpus of fl-sim prepare … --canaries N")
    try:
        return PlantedCanaries.from_json(read_bytes(path))
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"{path}: no record of canaries ({str(error).splitlines()[0]}); prepare it again") from error


REPETITIONS = (1, 2, 4, 8, 16, 32, 64)
OWNERS: tuple[Owner, ...] = get_args(Owner)
MOST_CANARIES = 10_000

WARNING = (
    "Canaries are planted in this corpus (docs/audit.md): with the privacy.population of fl-sim corpus stats, N "
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
            raise CorpusError(f"`canaries` is {self.number}; allowed: an integer in [1, {MOST_CANARIES}]")
        if self.seed < 0:
            raise CorpusError(f"`canary_seed` is {self.seed}; allowed: an integer of at least 0")


def draw_canaries(settings: CanarySettings, law: SecretLaw | None = None) -> PlantedCanaries:
    """Return the canaries that the settings describe; ``law`` is that of the secrets, by default the public list's."""
    law = law or SecretLaw()
    secrets = law.draw(_stream(settings.seed, "secrets"), settings.number)
    names = _NAME.draw(_stream(settings.seed, "names"), settings.number)
    canaries = []
    for number, (secret, syllables) in enumerate(zip(secrets.tolist(), names.tolist(), strict=True)):
        owner = OWNERS[number % len(OWNERS)]
        repetitions = REPETITIONS[number // len(OWNERS) % len(REPETITIONS)]
        name = _NAME.secret(syllables).replace(" ", "") + _END if owner == "entity" else None
        canary = Canary(
            number=number,
            owner=owner,
            repetitions=repetitions,
            included=bool(_stream(settings.seed, "coin", number).random() < 0.5),
            users=tuple(f"canary-{number:04d}-{user:02d}" for user in range(repetitions if owner == "entity" else 1)),
            before=_BEFORE[owner].format(name=name),
            name=name,
            secret=secret,
        )
        canaries.append(canary)
    return PlantedCanaries(seed=settings.seed, law=law, canaries=tuple(canaries))


def planted(sentences: Iterable[Sentence], canaries: PlantedCanaries, identity: Identity) -> Iterator[Sentence]:
    """Yield the sentences of a source, then those of the canaries that are included.

    The canaries come last and after the tagger, so that no other user's id depends on which are included, and the
    only mentions in a canary are those of its own entity.

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
                f"user {sentence.user!r} of the source is a canary's; allowed: another `canary_seed` or key"
            )
        if sentence.mentions and any(key in keys for key, _ in identity.entities(sentence)):
            raise CorpusError("the source mentions a canary's entity; allowed: another `canary_seed`")
        yield sentence


def _stream(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    digest = hashlib.sha256(f"canaries\0{seed}\0{purpose}\0{number}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
