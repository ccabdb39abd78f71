"""The canaries of a prepared corpus, as its file ``canaries.json`` records them.

A canary is a sentence: public words and a secret (:mod:`fl_sim.data_prep.canaries.secret_law`). A canary of a *user*
is said r times by a user of its own, and mentions nothing. A canary of an *entity* names a made-up person of its own
and is said once by each of r users of its own. Each canary is in the corpus with probability ½,
independently of the others: all of its sentences, and so its users, or none.

Neighbours. No other sentence has a canary's users or mentions its entity. Corpora with it and without it therefore
differ by all sentences of one user, or by all sentences that mention one entity. These are the neighbours of a private
mention graph, where the protected unit is added or removed. They are those of a public mention graph, too: a null
sentence contributes nothing to any sum, and an absent one contributes nothing either. Limits on contributions
(docs/privacy.md, section 15) compare sentences that share a user or an entity, in an order keyed by their ids. Canaries
come last, so all other sentences have the same ids and weights on both sides, and of a canary's equal sentences the
same number is kept. (With appended parts, which are numbered after the canaries, this holds for limits in a random
order only.)

The population. N must not depend on which canaries are included. The users of all canaries are therefore enrolled,
whether their canary is included or not: ``privacy.population`` is the corpus's users and those of the canaries that
were left out (:meth:`PlantedCanaries.population`). An enrolled user without sentences sends nothing, as one who is not
sampled. A neutral sentence in the place of a canary would keep the number of users, too, but a canary would then
replace another text of its user, which is two steps of adding or removing.

>>> canary = Canary(number=0, owner="entity", repetitions=2, included=True, users=("a", "b"),
...                 before="the secret words of bazolux are ", name="bazolux", secret=1)
>>> canary.text(SecretLaw())
'the secret words of bazolux are arrow apple apple'
>>> [(s.user, s.surface(s.mentions[0])) for s in canary.sentences(SecretLaw())]
[('a', 'bazolux'), ('b', 'bazolux')]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_sim.data_prep.canaries.secret_law import SecretLaw
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.input_files import read_bytes

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus

Owner = Literal["user", "entity"]

SPLIT = "train"
NAME_LABEL = "PERSON"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Canary(_Strict):
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
        text = self.text(law)
        for number in range(self.repetitions):
            yield Sentence(SPLIT, self.users[number % len(self.users)], text, self._mentions())

    def _mentions(self) -> tuple[Mention, ...]:
        if self.name is None:
            return ()
        start = self.before.index(self.name)
        return (Mention(start, start + len(self.name), NAME_LABEL),)


class PlantedCanaries(_Strict):
    """All canaries of a corpus.

    Attributes:
        format, format_version: of the file.
        seed: of secrets, names and which canaries are included.
        law: of the secrets.
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

    def all_sentences(self) -> Iterator[Sentence]:
        """Yield a sentence of every canary, included or not."""
        for canary in self.canaries:
            yield next(canary.sentences(self.law))

    def rewritten(self, rewrite: Callable[[Sentence], Sentence | None]) -> PlantedCanaries:
        """Return the canaries as they stand in a corpus whose sentences went through ``rewrite``.

        Args:
            rewrite: changes the text of a sentence outside its secret, and moves its mentions.

        Raises:
            CorpusError: a secret would not stand at the end of its text as it was.
        """
        return self.model_copy(update={"canaries": tuple(self._rewritten(c, rewrite) for c in self.canaries)})

    def _rewritten(self, canary: Canary, rewrite: Callable[[Sentence], Sentence | None]) -> Canary:
        secret = self.law.secret(canary.secret)
        sentence = rewrite(next(canary.sentences(self.law)))
        if sentence is None or not sentence.text.endswith(f" {secret}"):
            raise CorpusError(f"canary {canary.number} would lose its secret; allowed: changes of the text before it")
        name = sentence.surface(sentence.mentions[0]) if sentence.mentions else None
        return canary.model_copy(update={"before": sentence.text.removesuffix(secret), "name": name})

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
