"""The people, organisations and places of the synthetic corpus.

All are drawn from one Faker pass at the start (British locale: its phone numbers come from the ranges reserved for
fiction; e-mail addresses end in .example, which is reserved, too). Their popularity is long-tailed: many users mention
a few towns and firms, one or two users most people.

>>> len(build_world(num_users=20, seed=1).firms)
60
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from faker import Faker

from tools.synthetic_corpus.chance import draw_rank, pick, pick_by_rank

LOCALE = "en_GB"
FIRST_DAY = datetime.date(2021, 1, 4)
LAST_DAY = datetime.date(2026, 12, 18)

_TOWNS_PER_USER = 0.5
_FIRMS_PER_USER = 0.9
_PEOPLE_PER_USER = 5
_PUBLIC_PEOPLE = 120
_MAKER_NAMES = """
Novara Kestrel Lumo Aster Brio Quanta Solis Vanta Pico Zephyr Orbit Delphi Tarn Vireo Maxwell Halo Cobalt
Fjord Onyx Rivo Sable Tempo Ember Nimbus Altair Corvo Juno Mistral Polaris Verve Bramble Castor Dory Echo
Fable Garnet
"""
_MAKERS = _MAKER_NAMES.split()
_LINES = ("", "X", "Mini", "Pro", "Plus", "Max", "S", "Air", "Go", "Duo")


@dataclass(frozen=True)
class Person:
    """A person with an e-mail address, a phone number and an address."""

    first_name: str
    name: str
    pronoun: str
    email: str
    phone: str
    address: str


@dataclass(frozen=True)
class Firm:
    """An organisation with its e-mail address and phone number."""

    name: str
    email: str
    phone: str


@dataclass(frozen=True)
class World:
    """Pools to draw from; towns, firms, countries, products and public people are sorted by popularity."""

    towns: tuple[str, ...]
    countries: tuple[str, ...]
    firms: tuple[Firm, ...]
    public_people: tuple[Person, ...]
    people: tuple[Person, ...]
    products: tuple[str, ...]
    streets: tuple[str, ...]
    jobs: tuple[str, ...]


def build_world(num_users: int, seed: int) -> World:
    """Return a world large enough for ``num_users`` users; determined by the arguments and the Faker version."""
    faker = Faker(LOCALE)
    faker.seed_instance(seed)
    rng = np.random.default_rng([seed, 0])
    towns = _unique(faker.city, max(40, int(_TOWNS_PER_USER * num_users)))
    firms = tuple(_firm(name, faker) for name in _unique(faker.company, max(60, int(_FIRMS_PER_USER * num_users))))
    streets = _unique(faker.street_name, max(40, num_users // 2))
    public_people = tuple(_person(faker, firms, streets, rng) for _ in range(_PUBLIC_PEOPLE))
    people = tuple(_person(faker, firms, streets, rng) for _ in range(max(50, _PEOPLE_PER_USER * num_users)))
    products = _unique(lambda: _product(rng), 240)
    countries = tuple(name for name in _unique(faker.country, 120) if "(" not in name and len(name) < 16)
    jobs = tuple(job.split(",")[0].lower() for job in _unique(faker.job, 300))
    return World(towns, countries, firms, public_people, people, products, streets, jobs)


def house(street: str, rng: np.random.Generator) -> str:
    """Return a numbered address in ``street``."""
    return f"{1 + draw_rank(180, rng)} {street}"


def _unique(draw: Callable[[], str], count: int) -> tuple[str, ...]:
    """Return up to ``count`` distinct values in the order of their first draw."""
    values: dict[str, None] = {}
    for _ in range(3 * count):
        if len(values) == count:
            break
        values.setdefault(draw(), None)
    return tuple(values)


def _person(faker: Faker, firms: tuple[Firm, ...], streets: tuple[str, ...], rng: np.random.Generator) -> Person:
    woman = rng.random() < 0.5
    first = faker.first_name_female() if woman else faker.first_name_male()
    last = faker.last_name()
    domain = pick_by_rank(firms, rng).email.partition("@")[2]
    phone = faker.phone_number() if rng.random() < 0.4 else faker.cellphone_number()
    return Person(
        first_name=first,
        name=f"{first} {last}",
        pronoun="she" if woman else "he",
        email=f"{_slug(first)}.{_slug(last)}@{domain}",
        phone=phone,
        address=house(pick(streets, rng), rng),
    )


def _firm(name: str, faker: Faker) -> Firm:
    box = ("info", "office", "service", "contact", "bookings", "accounts", "hello", "support")[faker.random_int(0, 7)]
    return Firm(name=name, email=f"{box}@{_slug(name)}.example", phone=faker.phone_number())


def _product(rng: np.random.Generator) -> str:
    line = pick(_LINES, rng)
    number = str(10 * rng.integers(1, 90)) if rng.random() < 0.6 or not line else ""
    return " ".join(part for part in (pick(_MAKERS, rng), line, number) if part)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
