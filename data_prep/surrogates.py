"""Surrogates: made-up names, numbers and dates that replace entities in de-identified text.

Names are composed from lists of our own; numbers and dates keep the shape of the original. A surrogate depends on the
seed and the entity's key, and on other entities only if it would coincide with one of them.

>>> maker = SurrogateMaker(0, str.casefold, {"ada byron"})
>>> maker.surrogate("ada byron", Category.PERSON) == maker.surrogate("ada byron", Category.PERSON)
True
>>> match_case("ADA", "Greta")
'GRETA'
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping

import numpy as np

from fl_sim.data_prep.synthetic.chance import pick
from fl_sim.data_prep.taggers.categories import Category


def _words(text: str) -> list[str]:
    return text.split()


_FIRST_NAMES = _words("""
Adela Aidan Alma Amos Anton Astrid Basil Bella Boris Brenda Bruno Callum Celia Cyril Dalia Damon Delia Doris Edgar Edith
Elias Elsa Enid Ezra Fabian Felix Fiona Flora Gavin Gemma Gideon Greta Hanna Harvey Hazel Hugo Ida Igor Ines Iris Ivan
Jarvis Joan Jonas Judith Karl Kira Lars Lena Leo Lydia Magnus Maia Mara Marcus Mavis Miles Mona Nadia Nigel Nina Nora
Odette Olga Oscar Otto Paula Percy Petra Quentin Ralph Rhea Rita Rowan Rufus Sasha Selma Silas Sonia Stella Tessa Theo
Tilda Tobias Ursula Valerie Vera Victor Viola Wanda Wilma Winston Xavier Yara Yusuf Zara Zelda
""")
_STEMS = _words("""
Ash Bar Bel Brad Bram Cal Car Chad Clay Cor Cran Dal Dar Den Dun Ed El Fair Far Fen Fos Gar Glen Gren Hal Har Haw Hol
Hux Kel Ken Kin Lan Lin Lor Mar Mel Mer Mil Mor Nor Oak Os Pen Pres Rad Ram Red Ros Row Sel Shel Stan Sut Tal Thorn Tre
Wal War Wes Whit Win Wood
""")
_LINKS = _words("a e i o en er in ing ar ber der lin mar nor ral sel ten ver")
_PERSON_ENDS = _words(
    "by croft den don field gate hurst ing land ley low man mer more ner shaw stone ter ward well wood"
)
_PLACE_ENDS = _words("""
borough bridge bury chester dale ford ham haven holm mere minster mouth port stead stow thorpe ton ville wick worth
""")
_PEOPLE_ENDS = _words("ese ian ish ic an")
_THING_ENDS = _words("a ex ia ix o on or um us")
_KINDS: Mapping[Category, list[str]] = {
    Category.ORG: _words(
        "Group Holdings Partners Systems Industries Associates Trust Council Institute Union Club Bank"
    ),
    Category.FAC: _words("Hall Bridge Street Road Square Tower Station House Park Stadium"),
    Category.EVENT: _words("Cup Open Festival Summit Trophy Games Fair Rally"),
    Category.LAW: _words("Act Treaty Directive Code Accord"),
    Category.WORK_OF_ART: _words("Song Story Suite Letters Portrait Chronicle"),
    Category.PRODUCT: _words("Plus Pro Mini Max Classic Duo"),
}
_PLACES = frozenset({Category.GPE, Category.LOC, Category.FAC})
_NUMBERS = frozenset(
    {
        Category.PII,
        Category.DATE,
        Category.TIME,
        Category.PERCENT,
        Category.MONEY,
        Category.QUANTITY,
        Category.ORDINAL,
        Category.CARDINAL,
    }
)
_CYCLES = [
    _words("january february march april may june july august september october november december"),
    _words("jan feb mar apr jun jul aug sep sept oct nov dec"),
    _words("monday tuesday wednesday thursday friday saturday sunday"),
    _words("two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty"),
    _words("first second third fourth fifth sixth seventh eighth ninth tenth"),
]
_CYCLE_OF = {word: cycle for cycle in _CYCLES for word in cycle}
_NUMBER = re.compile(r"\d+")
_YEAR = re.compile(r"(?:1[5-9]|20|21)\d\d")
_LETTER = re.compile(r"[a-z]")
_MOST_WORDS = 4
_ATTEMPTS_PER_LENGTH = 8


class SurrogateMaker:
    """Gives every entity key one surrogate, whose own key is neither a real entity's nor another surrogate's."""

    def __init__(self, seed: int, key_of: Callable[[str], str], taken: Collection[str]) -> None:
        """Start without surrogates.

        Args:
            seed: of the draws.
            key_of: the key of a surface.
            taken: the keys of all real entities.
        """
        self._seed = seed
        self._key_of = key_of
        self._taken = set(taken)
        self._surrogates: dict[str, str] = {}

    def surrogate(self, key: str, category: Category) -> str:
        """Return the surrogate of the entity ``key``; the category of the first call decides."""
        surrogate = self._surrogates.get(key)
        if surrogate is None:
            surrogate = self._surrogates[key] = self._draw(key, category)
            self._taken.add(self._key_of(surrogate))
        return surrogate

    def _draw(self, key: str, category: Category) -> str:
        attempt = 0
        while True:  # ends, because names grow with the attempts
            rng = _generator(self._seed, category, key, attempt)
            surrogate = _candidate(key, category, attempt // _ATTEMPTS_PER_LENGTH, rng)
            if surrogate and self._key_of(surrogate) not in self._taken:
                return surrogate
            attempt += 1


def match_case(surface: str, surrogate: str) -> str:
    """Return ``surrogate`` in upper or lower case if all of ``surface`` is."""
    if surface.isupper() and sum(character.isalpha() for character in surface) > 1:
        return surrogate.upper()
    return surrogate.lower() if surface.islower() else surrogate


def _generator(seed: int, category: Category, key: str, attempt: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\0{category}\0{attempt}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _candidate(key: str, category: Category, length: int, rng: np.random.Generator) -> str:
    """Return a surrogate of the entity ``key``.

    Args:
        key: the entity's key.
        category: of the entity.
        length: how many syllables or digits the surrogate has more than usual.
        rng: draws it.
    """
    if "@" in key:
        return f"{_name(_PERSON_ENDS, length, rng)}@{_name(_PLACE_ENDS, length, rng)}.example".lower()
    if category is Category.PII and ("/" in key or key.startswith("www.")):
        return f"www.{_name(_PLACE_ENDS, length, rng)}.example".lower()
    if category in _NUMBERS:
        if key.count("(") != key.count(")"):  # a key has lost the brackets at its ends
            key = key.replace("(", "").replace(")", " ")
        changed = " ".join(_redraw(word, category, rng) for word in key.split())
        if changed != key and length < 2:
            return changed
        return _plain_number(category, length, rng)
    words = key.split(" ")[:_MOST_WORDS]
    numbers = [_redraw(word, category, rng) for word in words if _NUMBER.search(word)]
    return " ".join([*numbers, *_names(category, max(len(words) - len(numbers), 1), length, rng)])


def _names(category: Category, words: int, length: int, rng: np.random.Generator) -> list[str]:
    if category is Category.PERSON:
        return [*(pick(_FIRST_NAMES, rng) for _ in range(words - 1)), _name(_PERSON_ENDS, length, rng)]
    if category in (Category.NORP, Category.LANGUAGE):
        return [_name(_PEOPLE_ENDS, length, rng) for _ in range(words)]
    ends = _PLACE_ENDS if category in _PLACES else _THING_ENDS
    if words > 1 and category in _KINDS:
        return [*(_name(ends, length, rng) for _ in range(words - 1)), pick(_KINDS[category], rng)]
    return [_name(ends, length, rng) for _ in range(words)]


def _name(ends: list[str], length: int, rng: np.random.Generator) -> str:
    links = [pick(_LINKS, rng) for _ in range(length + int(rng.integers(2)))]
    return "".join([pick(_STEMS, rng), *links, pick(ends, rng)])


def _redraw(word: str, category: Category, rng: np.random.Generator) -> str:
    """Return ``word`` with other digits; months, weekdays and number words become others; codes get other letters."""
    cycle = _CYCLE_OF.get(word.strip(".,"))
    if cycle is not None:
        other = pick([name for name in cycle if name != word.strip(".,")], rng)
        return word.replace(word.strip(".,"), other if category is not Category.DATE else other.capitalize())
    if not _NUMBER.search(word):
        return word
    if category is Category.PII:
        word = _LETTER.sub(lambda _: chr(ord("a") + int(rng.integers(26))), word).upper()
    return _NUMBER.sub(lambda match: _digits_like(match[0], category, rng), word)


def _digits_like(digits: str, category: Category, rng: np.random.Generator) -> str:
    if category in (Category.DATE, Category.TIME):
        if _YEAR.fullmatch(digits):
            return str(rng.integers(1950, 2050))
        if len(digits) <= 2:
            return f"{rng.integers(1, 10 if len(digits) == 1 else 13):0{len(digits)}d}"
    first = digits[0] if digits[0] == "0" else str(rng.integers(1, 10))
    return first + "".join(str(rng.integers(10)) for _ in digits[1:])


def _plain_number(category: Category, length: int, rng: np.random.Generator) -> str:
    if category is Category.DATE:
        return f"{rng.integers(1, 29)} {pick(_CYCLES[0], rng).capitalize()} {rng.integers(1500, 2200) + 1000 * length}"
    number = int(rng.integers(10 ** (length + 1), 10 ** (length + 2)))
    if category is Category.TIME:
        return f"{number} minutes"
    if category is Category.PERCENT:
        return f"{number} percent"
    return f"{number} dollars" if category is Category.MONEY else str(number)
