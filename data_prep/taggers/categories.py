"""Categories of sensitive entities: the 20 of the UeDP paper's Table I, and the labels of taggers that mean them.

A prepared corpus keeps each mention's own label; its category is a function of the label, so taggers with different
labels can be compared. Neither is part of an entity's identity (:func:`fl_sim.data_prep.identity.entity_key`): the same
name under two labels is one entity.

A label may be coarser than the categories. "LOC" of CoNLL-2003 covers countries, which the paper calls GPE; "NAME" of
our rules covers every proper name. A selection by category must not lose these: a mention counts as sensitive if *any*
category that its label may mean is selected, and an unknown label may mean all.

>>> category_of("PER"), category_of("facility")
(<Category.PERSON: 'PERSON'>, <Category.FAC: 'FAC'>)
>>> sorted(possible_categories("LOC"))
[<Category.GPE: 'GPE'>, <Category.LOC: 'LOC'>]
>>> Selection.parse("org,gpe").keeps("LOC"), Selection.parse("org,gpe").keeps("PER")
(True, False)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fl_sim.data_prep.records import CorpusError


class Category(StrEnum):
    """The rows of Table I, in its order; the values replace mentions in de-identified text."""

    PERSON = "PERSON"  # people, made-up ones too
    LOC = "LOC"  # places other than states and towns: mountains, seas, regions
    ORG = "ORG"  # companies, authorities, clubs, schools and other bodies
    MISC = "MISC"  # names of other things than persons, places and organisations, and names of unknown kind
    GPE = "GPE"  # countries, states, cities: places with a government
    PII = "PII"  # identifiers and addresses of persons: e-mail, phone, card, account and social security numbers
    DATE = "DATE"  # calendar dates and periods, absolute or relative
    NORP = "NORP"  # nationalities, religions, political groups
    FAC = "FAC"  # buildings, airports, roads, bridges
    PRODUCT = "PRODUCT"  # things that are made and sold: vehicles, devices, food; no services
    EVENT = "EVENT"  # battles, storms, matches and other happenings with a name
    LAW = "LAW"  # documents that became law and have a name
    LANGUAGE = "LANGUAGE"  # languages
    WORK_OF_ART = "WORK_OF_ART"  # titles of books, songs, films
    TIME = "TIME"  # times and durations within a day
    PERCENT = "PERCENT"  # shares in per cent
    MONEY = "MONEY"  # sums of money with their currency
    QUANTITY = "QUANTITY"  # measured weights, lengths and the like
    ORDINAL = "ORDINAL"  # first, second, third
    CARDINAL = "CARDINAL"  # other numbers


_OF_NAMES = "PERSON LOC ORG MISC GPE NORP FAC PRODUCT EVENT LAW LANGUAGE WORK_OF_ART"
NAMES = frozenset(map(Category, _OF_NAMES.split()))
"""The categories that a proper name of unknown kind may have."""

GROUPS: Mapping[str, frozenset[Category]] = {
    "org": frozenset({Category.ORG}),
    "loc": frozenset({Category.LOC}),
    "gpe": frozenset({Category.GPE}),
    "pii": frozenset({Category.PII, Category.PERSON, Category.LOC, Category.GPE}),
    "person": frozenset({Category.PERSON}),
    "misc": NAMES - {Category.PERSON, Category.LOC, Category.ORG, Category.GPE},
    "all": frozenset(Category),
}
"""The groups that ``--entities`` takes, as in the paper. Every category has its own name, too (``date``, ``norp``)."""

IDENTIFIER_KINDS: Mapping[str, frozenset[str]] = {
    "e-mail addresses": frozenset({"EMAIL", "EMAIL_ADDRESS"}),
    "phone numbers": frozenset({"PHONE", "PHONE_NUMBER"}),
    "card numbers": frozenset({"CARD", "CREDIT_CARD"}),
    "IBANs": frozenset({"IBAN", "IBAN_CODE"}),
    "IP addresses": frozenset({"IP", "IP_ADDRESS"}),
    "URLs": frozenset({"URL", "DOMAIN_NAME"}),
    "social security numbers": frozenset({"SSN", "US_SSN"}),
    "other addresses": frozenset({"MAC_ADDRESS", "CRYPTO"}),
}
"""Kinds of identifiers and addresses that are recognised by their form alone, with their labels."""

IDENTIFIERS = frozenset[str]().union(*IDENTIFIER_KINDS.values())

_SPELLINGS: Mapping[Category, str] = {
    Category.PERSON: "PER PEOPLE",
    Category.LOC: "LOCATION",
    Category.ORG: "ORGANIZATION ORGANISATION CORPORATION GROUP COMPANY",
    Category.MISC: "MISCELLANEOUS OTHER",
    Category.PII: f"""{" ".join(sorted(IDENTIFIERS))}
        ID ADDRESS US_BANK_NUMBER US_DRIVER_LICENSE US_ITIN US_PASSPORT MEDICAL_LICENSE UK_NHS""",
    Category.DATE: "DATE_TIME",
    Category.NORP: "NRP",
    Category.FAC: "FACILITY",
    Category.WORK_OF_ART: "CREATIVE_WORK",
    Category.PERCENT: "PERCENTAGE",
}
"""Labels of CoNLL-2003, OntoNotes, WNUT-17, UNER, the Broad Twitter Corpus, Presidio, our rules and our own
corpus that differ from the category's name, as :func:`_plain` writes them."""

_NAME = "NAME"
_BY_LABEL: Mapping[str, Category] = {
    **{category.value: category for category in Category},
    **{label: category for category, labels in _SPELLINGS.items() for label in labels.split()},
    _NAME: Category.MISC,
}


def category_of(label: str) -> Category:
    """Return the category that a label of any tagger means first; MISC for an unknown label."""
    return _BY_LABEL.get(_plain(label), Category.MISC)


def possible_categories(label: str, labels: Collection[str] = ()) -> frozenset[Category]:
    """Return every category that ``label`` may mean.

    A source without a label for GPE, or an unknown source, puts countries and cities under LOC. One label for dates and
    times (Presidio's) may mean both. An unknown label may mean any category.

    Args:
        labels: all that its source can give; empty if unknown.
    """
    plain = _plain(label)
    if plain == _NAME:
        return NAMES
    if plain not in _BY_LABEL:
        return frozenset(Category)
    category = _BY_LABEL[plain]
    if category is Category.LOC and not any(_plain(other) == Category.GPE for other in labels):
        return frozenset({Category.LOC, Category.GPE})
    if category is Category.MISC:
        return GROUPS["misc"]
    if plain == "DATE_TIME":
        return frozenset({Category.DATE, Category.TIME})
    return frozenset({category})


def is_known(label: str) -> bool:
    """Return whether :func:`category_of` knows what ``label`` means."""
    return _plain(label) in _BY_LABEL


@dataclass(frozen=True)
class Selection:
    """Selects the mentions that count as sensitive.

    Attributes:
        names: groups and categories as they were named.
        categories: a mention counts if its label may mean one of these.
    """

    names: tuple[str, ...]
    categories: frozenset[Category]

    @classmethod
    def parse(cls, names: Iterable[str] | str) -> Selection:
        """Return the union of groups and categories; a text is split at commas.

        Raises:
            CorpusError: a name is neither a group nor a category, or there is none.
        """
        listed = names.split(",") if isinstance(names, str) else names
        cleaned = tuple(dict.fromkeys(name.strip().lower() for name in listed if name.strip()))
        if not cleaned:
            raise CorpusError(f"entities must name at least one of {', '.join(selectable())}")
        for name in cleaned:
            if name not in selectable():
                raise CorpusError(f"entities: {name!r} is unknown, it must be one of {', '.join(selectable())}")
        categories = frozenset().union(*(GROUPS.get(name) or {Category(name.upper())} for name in cleaned))
        return cls(cleaned, categories)

    @property
    def everything(self) -> bool:
        """Whether every mention counts."""
        return self.categories == frozenset(Category)

    def keeps(self, label: str, labels: Collection[str] = ()) -> bool:
        """Return whether a mention with ``label`` counts, from a source that can give ``labels`` (empty: unknown)."""
        return not self.categories.isdisjoint(possible_categories(label, labels))


def selectable() -> tuple[str, ...]:
    """Return every name that a selection may list: the paper's groups, then the categories without a group."""
    return (*GROUPS, *(category.value.lower() for category in Category if category.value.lower() not in GROUPS))


def _plain(label: str) -> str:
    return label.strip().upper().replace("-", "_").replace(" ", "_")
