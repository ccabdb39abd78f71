"""A user of the synthetic corpus: topics, contacts, firms, towns, habits, and the user's sentences.

>>> from tools.synthetic_corpus.world import build_world
>>> rng = np.random.default_rng(0)
>>> user = User.of(build_world(num_users=2, seed=0), rng)
>>> 2 <= len(user.topics) <= 5, any(text.strip() for text, label in user.pieces(rng))
(True, True)
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fl_sim.data_prep.records import CorpusError
from tools.synthetic_corpus.chance import draw_rank, pick, pick_by_rank
from tools.synthetic_corpus.grammar import Piece
from tools.synthetic_corpus.inflection import TENSES, Agreement
from tools.synthetic_corpus.phrasebook import phrasebook
from tools.synthetic_corpus.world import FIRST_DAY, LAST_DAY, Firm, Person, World, house
from tools.synthetic_corpus.writing import Style, tidy

T = TypeVar("T")

_TENSE_WEIGHTS = (0.46, 0.14, 0.15, 0.1, 0.06, 0.09)
_SUBJECT_WEIGHTS = {"I": 0.4, "we": 0.14, "somebody": 0.14, "phrase": 0.32}
_STATEMENT_RATE = 0.08
_COMMA_BEFORE = ("so", "but", "and", "although", "which", "as", "just")


@dataclass(frozen=True)
class User:
    """Writes sentences: makes the choices of a person rather than of the language.

    ``topic_weights`` are cumulative; the first of every tuple is the favourite; ``today`` divides past from future.
    """

    world: World
    style: Style
    topics: tuple[str, ...]
    topic_weights: tuple[float, ...]
    contacts: tuple[Person, ...]
    firms: tuple[Firm, ...]
    towns: tuple[str, ...]
    products: tuple[str, ...]
    addresses: tuple[str, ...]
    today: datetime.date
    own_dates: tuple[datetime.date, ...]

    @staticmethod
    def of(world: World, rng: np.random.Generator) -> User:
        """Return a new user in ``world``."""
        topics = rng.choice(phrasebook().topics, size=rng.integers(2, 6), replace=False)
        contacts = tuple(pick(world.people, rng) for _ in range(rng.integers(3, 9)))
        days = (LAST_DAY - FIRST_DAY).days
        today = FIRST_DAY + datetime.timedelta(days=int(rng.integers(days // 2, days - 200)))
        return User(
            world=world,
            style=Style.of(rng, phrasebook().hedges),
            topics=tuple(str(topic) for topic in topics),
            topic_weights=tuple(np.cumsum(rng.dirichlet([1.5] * len(topics)))),
            contacts=contacts,
            firms=tuple(pick_by_rank(world.firms, rng) for _ in range(rng.integers(3, 7))),
            towns=tuple(pick_by_rank(world.towns, rng) for _ in range(3)),
            products=tuple(pick_by_rank(world.products, rng) for _ in range(3)),
            addresses=(house(pick(world.streets, rng), rng), *(contact.address for contact in contacts[:2])),
            today=today,
            own_dates=tuple(today + datetime.timedelta(days=int(rng.integers(-180, 180))) for _ in range(4)),
        )

    @property
    def verbosity(self) -> float:
        """The probability of taking an option."""
        return self.style.verbosity

    def pieces(self, rng: np.random.Generator) -> list[Piece]:
        """Return a sentence: opening, clause and tail, in the user's spelling and punctuation."""
        grammar = phrasebook().grammar
        tense = TENSES[int(np.searchsorted(np.cumsum(_TENSE_WEIGHTS), rng.random()))]
        negated = rng.random() < self.style.negation_rate
        pieces = [*self._opening(rng), *grammar.expand(self._rule(rng), tense, negated, self, rng)]
        if not pieces[-1][0].endswith("?") and rng.random() < self.style.tail_rate:
            tail = grammar.expand("tail", tense, False, self, rng)
            comma = "," if tail[0][0].split()[0] in _COMMA_BEFORE else ""
            pieces += [(f"{comma} ", ""), *tail]
        return self.style.apply(tidy(pieces), rng)

    def subject(self, rng: np.random.Generator) -> tuple[Piece, Agreement]:
        """Return a subject: most often "I"; else "we", a named person, or a relative or group without a name."""
        cumulative = np.cumsum(list(_SUBJECT_WEIGHTS.values()))
        kind = list(_SUBJECT_WEIGHTS)[int(np.searchsorted(cumulative, rng.random()))]
        if kind == "somebody":
            person = self._person(rng)
            return (self._called(person, rng), "PERSON"), Agreement(person.pronoun, 3, plural=False)
        if kind == "phrase":
            phrase, pronoun = pick(phrasebook().subjects, rng)
            return (phrase, ""), Agreement(pronoun, 3, plural=pronoun == "they")
        return (kind, ""), Agreement(kind, 1, plural=kind == "we")

    def entity(self, label: str, tense: str, rng: np.random.Generator) -> Piece:
        """Return an entity of ``label``, mostly of the user's own contacts and places, else a popular one of the world.

        SOMEBODY and FIRM may have no name, FIRST is a contact's first name, JOB is no entity.

        Raises:
            CorpusError: the label is unknown.
        """
        match label:
            case "SOMEBODY":
                nameless = rng.random() < 0.35
                return (pick(phrasebook().relatives, rng), "") if nameless else self.entity("PERSON", tense, rng)
            case "FIRM":
                nameless = rng.random() < 0.3
                return (pick(phrasebook().nameless_firms, rng), "") if nameless else self.entity("ORG", tense, rng)
            case "FIRST":
                return pick(self.contacts, rng).first_name, "PERSON"
            case "JOB":
                return pick(self.world.jobs, rng), ""
            case "DATE":
                return self._date(tense, rng), label
            case _:
                return self._named(label, rng), label

    def _named(self, label: str, rng: np.random.Generator) -> str:
        match label:
            case "PERSON":
                return self._called(self._person(rng), rng)
            case "ORG":
                return _own_or_known(self.firms, self.world.firms, 0.7, rng).name
            case "GPE":
                return self._place(rng)
            case "LOC":
                return self._address(rng)
            case "EMAIL":
                return self._reachable(rng).email
            case "PHONE":
                return self._reachable(rng).phone
            case "PRODUCT":
                return _own_or_known(self.products, self.world.products, 0.6, rng)
            case "MONEY":
                return _amount(rng)
        raise CorpusError(f"the grammar asks for an entity of the unknown label {label!r}")

    def _rule(self, rng: np.random.Generator) -> str:
        if rng.random() < _STATEMENT_RATE:
            return "statement"
        position = np.searchsorted(self.topic_weights, rng.random() * self.topic_weights[-1])
        return f"{self.topics[int(position)]}_sentence"

    def _opening(self, rng: np.random.Generator) -> list[Piece]:
        if rng.random() < self.style.greets:
            return [*phrasebook().grammar.expand("greeting", "present", False, self, rng), (", ", "")]
        if rng.random() < self.style.hedge_rate:
            return [(f"{pick(self.style.hedges, rng)}, ", "")]
        return []

    def _person(self, rng: np.random.Generator) -> Person:
        return _own_or_known(self.contacts, self.world.public_people, 0.88, rng)

    def _called(self, person: Person, rng: np.random.Generator) -> str:
        return person.first_name if person in self.contacts and rng.random() < 0.3 else person.name

    def _place(self, rng: np.random.Generator) -> str:
        if rng.random() < 0.18:
            return pick_by_rank(self.world.countries, rng)
        return _own_or_known(self.towns, self.world.towns, 0.6, rng)

    def _address(self, rng: np.random.Generator) -> str:
        if rng.random() < 0.6:
            return pick_by_rank(self.addresses, rng)
        return house(pick_by_rank(self.world.streets, rng), rng)

    def _reachable(self, rng: np.random.Generator) -> Person | Firm:
        return pick(self.contacts, rng) if rng.random() < 0.6 else pick(self.firms, rng)

    def _date(self, tense: str, rng: np.random.Generator) -> str:
        """Return a day that fits the tense, before or after the user's today; sometimes one of the user's own dates."""
        past = tense in ("past", "perfect") or (tense == "present" and rng.random() < 0.3)
        fitting = [date for date in self.own_dates if (date <= self.today) == past]
        if fitting and rng.random() < 0.3:
            return self.style.date(pick(fitting, rng), rng)
        distance = datetime.timedelta(days=1 + draw_rank(700 if past else 300, rng, offset=30.0))
        return self.style.date(self.today - distance if past else self.today + distance, rng)


def _own_or_known(own: Sequence[T], everyones: Sequence[T], share: float, rng: np.random.Generator) -> T:
    return pick_by_rank(own if rng.random() < share else everyones, rng)


def _amount(rng: np.random.Generator) -> str:
    """Return a sum in pounds: half of them round, the others exact; small ones are more frequent."""
    pounds = float(np.exp(rng.uniform(np.log(4), np.log(9000))))
    if rng.random() < 0.5:
        magnitude = 10 ** (len(str(int(pounds))) - 1)
        return f"£{max(5, round(pounds / magnitude) * magnitude):,}"
    return f"£{pounds:,.2f}" if rng.random() < 0.5 else f"£{int(pounds):,}"
