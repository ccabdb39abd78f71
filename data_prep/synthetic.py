"""The synthetic corpus: users who write about their own lives, each in a way of their own.

Every choice comes from generators derived from one seed and the user's number, so a corpus of more users begins
with different people but any one corpus is the same everywhere, given the recorded Faker version.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from data_prep.grammar import Grammar, Piece
from data_prep.inflection import TENSES, Agreement
from data_prep.language import COMMON_RULES, TOPICS
from data_prep.language.common import NAMELESS_FIRMS, PLURAL_SUBJECTS, RELATIVES
from data_prep.records import CorpusError, Mention, Sentence
from data_prep.world import FIRST_DAY, LAST_DAY, Firm, Person, World, build_world, famous, house

DEFAULT_USERS = 1500
DEFAULT_SEED = 20240312
VALIDATION_SHARE = 1 / 14
PUBLIC_SHARE = 1 / 7
"""Shares of the users; the public split is for tokenizers, and no run trains on it."""

_TENSE_WEIGHTS = (0.46, 0.14, 0.15, 0.1, 0.06, 0.09)
_CONTRACTIONS = (
    (
        r"\b([Dd]o|[Dd]oes|[Dd]id|[Ii]s|[Ww]as|[Ww]ere|[Aa]re|[Hh]as|[Hh]ave|[Cc]ould|[Ss]hould|[Ww]ould) not\b",
        r"\1n't",
    ),
    (r"\b([Ww])ill not\b", r"\1on't"),
    (r"\b([Cc])annot\b", r"\1an't"),
    (r"\b(I|we|We|you|they|They) (?:have)\b(?= \w+(?:ed|en|ne)\b)", r"\1've"),
    (r"\bI am\b", "I'm"),
    (r"\b(we|We|you|they|They) are\b", r"\1're"),
    (r"\b(it|It|that|That|there|There|what|What) is\b", r"\1's"),
    (r"\b(I|we|We|they|They|he|He|she|She|it|It) will\b", r"\1'll"),
)
_DATE_STYLES = (
    "{d.day} {month} {d.year}",
    "{d.day} {month} {d.year}",
    "{month} {d.day}, {d.year}",
    "{d:%d/%m/%Y}",
    "{d:%Y-%m-%d}",
)
_MONTHS = "January February March April May June July August September October November December".split()


def synthetic_sentences(num_users: int = DEFAULT_USERS, seed: int = DEFAULT_SEED) -> Iterator[Sentence]:
    """All sentences of ``num_users`` users, user by user: train, then validation, then public.

    Raises :class:`CorpusError` for fewer than 20 users or a negative seed.
    """
    if num_users < 20:
        raise CorpusError(f"users {num_users} must be at least 20, for train, validation and public splits")
    if seed < 0:
        raise CorpusError(f"seed {seed} must not be negative")
    world = build_world(num_users, seed)
    held_out = round(num_users * VALIDATION_SHARE)
    public = round(num_users * PUBLIC_SHARE)
    sizes = {"train": num_users - held_out - public, "validation": held_out, "public": public}
    number = 0
    for split, size in sizes.items():
        for index in range(size):
            number += 1
            yield from user_sentences(
                world, split, f"{split}-{index + 1:05d}", np.random.default_rng([seed, number])
            )


def user_sentences(world: World, split: str, key: str, rng: np.random.Generator) -> Iterator[Sentence]:
    """The sentences of one user; how many is log-normal, from 5 to 40 and about 15 in the mean."""
    user = _User.of(world, rng)
    count = int(np.clip(round(rng.lognormal(2.55, 0.5)), 5, 40))
    for _ in range(count):
        pieces = user.style.applied(user.pieces(rng), rng)
        yield _sentence(pieces, split, key)


@cache
def corpus_grammar() -> Grammar:
    """The rules of all topics; a topic's own rules are prefixed by its name."""
    rules = {name: _productions(text) for name, text in COMMON_RULES.items()}
    for topic, own in TOPICS.items():
        for name, text in own.items():
            qualified = re.sub(
                r"<([a-z_]+)>",
                lambda m, own=own, topic=topic: f"<{topic}_{m[1]}>" if m[1] in own else m[0],
                text,
            )
            rules[f"{topic}_{name}"] = _productions(qualified)
    return Grammar(rules)


def _productions(text: str) -> list[str]:
    """One production a line where the text has lines, else comma-separated."""
    return text.strip().splitlines() if text.startswith("\n") else text.split(", ")


@dataclass(frozen=True)
class _Style:
    """How somebody writes, whatever it is about."""

    verbosity: float
    contractions: bool
    lower_case: bool
    greets: float
    hedges: tuple[str, ...]
    hedge_rate: float
    tail_rate: float
    negation_rate: float
    endings: tuple[str, ...]
    date_style: str

    @staticmethod
    def of(rng: np.random.Generator) -> _Style:
        hedges = _productions(COMMON_RULES["hedge"])
        lower_case = rng.random() < 0.06
        endings = (".", ".", ".", "!" if rng.random() < 0.25 else ".", "..." if rng.random() < 0.15 else ".")
        return _Style(
            verbosity=rng.uniform(0.25, 0.75),
            contractions=rng.random() < 0.6,
            lower_case=lower_case,
            greets=rng.uniform(0, 0.12) if rng.random() < 0.5 else 0.0,
            hedges=tuple(hedges[i] for i in rng.choice(len(hedges), size=4, replace=False)),
            hedge_rate=rng.uniform(0, 0.2),
            tail_rate=rng.uniform(0.2, 0.65),
            negation_rate=rng.uniform(0, 0.12),
            endings=("", "", ".") if lower_case and rng.random() < 0.5 else endings,
            date_style=_DATE_STYLES[rng.integers(len(_DATE_STYLES))],
        )

    def applied(self, pieces: list[Piece], rng: np.random.Generator) -> list[Piece]:
        """Articles, contractions, capitals and the full stop."""
        pieces = _with_articles(pieces)
        if self.contractions:
            pieces = [(text if label else _contracted(text), label) for text, label in pieces]
        if not pieces[-1][0].endswith("?"):
            pieces.append((self.endings[rng.integers(len(self.endings))], ""))
        if self.lower_case:
            return [(text.lower(), label) for text, label in pieces]
        first, label = pieces[0]
        return [(first[:1].upper() + first[1:], label), *pieces[1:]]


@dataclass(frozen=True)
class _User:
    """Somebody with topics, contacts and habits; a :class:`data_prep.grammar.Writer`."""

    world: World
    style: _Style
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
    def of(world: World, rng: np.random.Generator) -> _User:
        topics = rng.choice(list(TOPICS), size=rng.integers(2, 6), replace=False)
        contacts = tuple(world.people[rng.integers(len(world.people))] for _ in range(rng.integers(3, 9)))
        days = (LAST_DAY - FIRST_DAY).days
        today = FIRST_DAY + datetime.timedelta(days=int(rng.integers(days // 2, days - 200)))
        street = world.streets[rng.integers(len(world.streets))]
        return _User(
            world=world,
            style=_Style.of(rng),
            topics=tuple(str(topic) for topic in topics),
            topic_weights=tuple(np.cumsum(rng.dirichlet([1.5] * len(topics)))),
            contacts=contacts,
            firms=tuple(world.firms[famous(rng, len(world.firms))] for _ in range(rng.integers(3, 7))),
            towns=tuple(world.towns[famous(rng, len(world.towns))] for _ in range(3)),
            products=tuple(world.products[famous(rng, len(world.products))] for _ in range(3)),
            addresses=(house(rng, street), *(contact.address for contact in contacts[:2])),
            today=today,
            own_dates=tuple(today + datetime.timedelta(days=int(rng.integers(-180, 180))) for _ in range(4)),
        )

    @property
    def verbosity(self) -> float:
        return self.style.verbosity

    def pieces(self, rng: np.random.Generator) -> list[Piece]:
        """One sentence, before spelling and punctuation: opening, clause, tail."""
        grammar, style = corpus_grammar(), self.style
        tense = TENSES[int(np.searchsorted(np.cumsum(_TENSE_WEIGHTS), rng.random()))]
        negated = rng.random() < style.negation_rate
        if rng.random() < 0.08:
            rule = "statement"
        else:
            rule = f"{self.topics[int(np.searchsorted(self.topic_weights, rng.random() * self.topic_weights[-1]))]}_sentence"
        pieces = [*self._opening(rng), *grammar.expand(rule, tense, negated, self, rng)]
        if not pieces[-1][0].endswith("?") and rng.random() < style.tail_rate:
            tail = grammar.expand("tail", tense, False, self, rng)
            comma = (
                ","
                if tail[0][0].split()[0] in ("so", "but", "and", "although", "which", "as", "just")
                else ""
            )
            pieces += [(f"{comma} ", ""), *tail]
        return _tidied(pieces)

    def _opening(self, rng: np.random.Generator) -> list[Piece]:
        if rng.random() < self.style.greets:
            return [*corpus_grammar().expand("greeting", "present", False, self, rng), (", ", "")]
        if rng.random() < self.style.hedge_rate:
            return [(f"{self.style.hedges[rng.integers(len(self.style.hedges))]}, ", "")]
        return []

    def subject(self, rng: np.random.Generator) -> tuple[Piece, Agreement]:
        """Myself most of all, then somebody with a name, relatives, and groups."""
        chance = rng.random()
        if chance < 0.4:
            return ("I", ""), Agreement("I", 1, plural=False)
        if chance < 0.53:
            return ("we", ""), Agreement("we", 1, plural=True)
        if chance < 0.68:
            person = self._person(rng)
            return (self._called(person, rng), "PERSON"), Agreement(person.pronoun, 3, plural=False)
        if chance < 0.9:
            relative = list(RELATIVES)[rng.integers(len(RELATIVES))]
            return (relative, ""), Agreement(RELATIVES[relative], 3, plural=False)
        return (PLURAL_SUBJECTS[rng.integers(len(PLURAL_SUBJECTS))], ""), Agreement("they", 3, plural=True)

    def entity(self, label: str, tense: str, rng: np.random.Generator) -> Piece:
        """Mostly of the user's own small world, else of the wide one by its fame."""
        match label:
            case "PERSON":
                return self._called(self._person(rng), rng), label
            case "SOMEBODY":
                if rng.random() < 0.35:
                    return list(RELATIVES)[rng.integers(len(RELATIVES))], ""
                return self._called(self._person(rng), rng), "PERSON"
            case "FIRM":
                if rng.random() < 0.3:
                    return NAMELESS_FIRMS[rng.integers(len(NAMELESS_FIRMS))], ""
                return self._firm(rng).name, "ORG"
            case "FIRST":
                return self.contacts[rng.integers(len(self.contacts))].first_name, "PERSON"
            case "ORG":
                return self._firm(rng).name, label
            case "GPE":
                return self._place(rng), label
            case "LOC":
                return self._address(rng), label
            case "DATE":
                return self._date(tense, rng), label
            case "EMAIL":
                known = self.contacts if rng.random() < 0.6 else self.firms
                return known[rng.integers(len(known))].email, label
            case "PHONE":
                known = self.contacts if rng.random() < 0.6 else self.firms
                return known[rng.integers(len(known))].phone, label
            case "PRODUCT":
                return _own_or_famous(self.products, self.world.products, rng), label
            case "MONEY":
                return _amount(rng), label
            case "JOB":
                return self.world.jobs[rng.integers(len(self.world.jobs))], ""
        raise CorpusError(f"the grammar asks for an entity of the unknown label {label!r}")

    def _person(self, rng: np.random.Generator) -> Person:
        if rng.random() < 0.12:
            return self.world.public_people[famous(rng, len(self.world.public_people))]
        return self.contacts[famous(rng, len(self.contacts))]

    def _called(self, person: Person, rng: np.random.Generator) -> str:
        return person.first_name if person in self.contacts and rng.random() < 0.3 else person.name

    def _firm(self, rng: np.random.Generator) -> Firm:
        if rng.random() < 0.7:
            return self.firms[famous(rng, len(self.firms))]
        return self.world.firms[famous(rng, len(self.world.firms))]

    def _place(self, rng: np.random.Generator) -> str:
        if rng.random() < 0.18:
            return self.world.countries[famous(rng, len(self.world.countries))]
        return _own_or_famous(self.towns, self.world.towns, rng)

    def _address(self, rng: np.random.Generator) -> str:
        if rng.random() < 0.6:
            return self.addresses[famous(rng, len(self.addresses))]
        return house(rng, self.world.streets[famous(rng, len(self.world.streets))])

    def _date(self, tense: str, rng: np.random.Generator) -> str:
        """A day that fits the tense: behind the user's today, or ahead of it."""
        past = tense in ("past", "perfect") or (tense == "present" and rng.random() < 0.3)
        fitting = [date for date in self.own_dates if (date <= self.today) == past]
        if fitting and rng.random() < 0.3:
            date = fitting[rng.integers(len(fitting))]
        else:
            distance = datetime.timedelta(days=1 + famous(rng, 700 if past else 300, offset=30.0))
            date = self.today - distance if past else self.today + distance
        month = _MONTHS[date.month - 1]
        if rng.random() < 0.12:
            return f"{month} {date.year}"
        return self.style.date_style.format(d=date, month=month)


def _own_or_famous(own: tuple[str, ...], all_names: tuple[str, ...], rng: np.random.Generator) -> str:
    if rng.random() < 0.6:
        return own[famous(rng, len(own))]
    return all_names[famous(rng, len(all_names))]


def _amount(rng: np.random.Generator) -> str:
    """Sterling: half of the sums round, the others to the pound or the penny; small ones more often."""
    pounds = float(np.exp(rng.uniform(np.log(4), np.log(9000))))
    if rng.random() < 0.5:
        magnitude = 10 ** (len(str(int(pounds))) - 1)
        return f"£{max(5, round(pounds / magnitude) * magnitude):,}"
    return f"£{pounds:,.2f}" if rng.random() < 0.5 else f"£{int(pounds):,}"


def _tidied(pieces: list[Piece]) -> list[Piece]:
    """Single spaces, none before punctuation or at the ends: options that were left out leave theirs behind."""
    tidy: list[Piece] = [("", "")]
    for text, label in pieces:
        before, before_label = tidy[-1]
        if not label:
            text = re.sub(r" +(?=[ ,.?!:])", "", text)
            if before.endswith(" ") or not before:
                text = text.lstrip(" ")
        if text[:1] in tuple(",.?!:") and not before_label:
            tidy[-1] = (before.rstrip(" "), "")
        if text:
            tidy.append((text, label))
    last, label = tidy[-1]
    tidy[-1] = (last if label else last.rstrip(" "), label)
    return [piece for piece in tidy if piece[0]]


def _with_articles(pieces: list[Piece]) -> list[Piece]:
    """``a_`` to "a" or "an", by the sound that the next letters stand for."""
    texts = [text for text, _ in pieces]
    for index, text in enumerate(texts):
        if "a_" in text:
            following = "".join(texts[index + 1 : index + 3])
            texts[index] = re.sub(r"\ba_ (?=(.?))", lambda m, rest=following: _article(m, rest), text)
    return [(text, label) for text, (_, label) in zip(texts, pieces, strict=True)]


def _article(found: re.Match[str], following: str) -> str:
    rest = found.string[found.end() :] + following
    vowel = re.match(r"[\"'“‘]?(?:[aeioAEIO]|[uU](?!ni|se|su|k\b)|hour|honest|heir|X-)", rest)
    return "an " if vowel else "a "


def _contracted(text: str) -> str:
    for pattern, replacement in _CONTRACTIONS:
        text = re.sub(pattern, replacement, text)
    return text


def _sentence(pieces: list[Piece], split: str, key: str) -> Sentence:
    mentions = []
    position = 0
    for text, label in pieces:
        if label:
            mentions.append(Mention(position, position + len(text), label))
        position += len(text)
    return Sentence(split, key, "".join(text for text, _ in pieces), tuple(mentions))
