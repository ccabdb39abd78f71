"""Kinds of sensitive entities: the 20 categories of the UeDP paper's Table I, and which of them a tagger's label means.

A prepared corpus keeps each mention's own label; its category is a function of the label, so nothing is lost and
every tagger can be compared with every other. Neither is part of an entity's identity
(:func:`fl_sim.data_prep.identity.entity_key`): the same name under two labels is one entity with one coin.

A label may be coarser than the categories. "LOC" of CoNLL-2003 covers countries, which the paper calls GPE; "NAME" of
our rules covers every proper name. Whoever selects entities by category must not lose those: a mention counts as
sensitive if *any* category that its label may mean is selected, and a label that we have never seen may mean all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fl_sim.data_prep.records import CorpusError


class Category(StrEnum):
    """The rows of Table I, in its order; the values are what stands for a mention when text is de-identified."""

    PERSON = "PERSON"
    LOC = "LOC"
    ORG = "ORG"
    MISC = "MISC"
    GPE = "GPE"
    PII = "PII"
    DATE = "DATE"
    NORP = "NORP"
    FAC = "FAC"
    PRODUCT = "PRODUCT"
    EVENT = "EVENT"
    LAW = "LAW"
    LANGUAGE = "LANGUAGE"
    WORK_OF_ART = "WORK_OF_ART"
    TIME = "TIME"
    PERCENT = "PERCENT"
    MONEY = "MONEY"
    QUANTITY = "QUANTITY"
    ORDINAL = "ORDINAL"
    CARDINAL = "CARDINAL"


DESCRIPTIONS: Mapping[Category, str] = {
    Category.PERSON: "people, made-up ones too",
    Category.LOC: "places that no state or town is: mountains, seas, regions",
    Category.ORG: "companies, authorities, clubs, schools and other bodies",
    Category.MISC: "names that are none of a person's, a place's or an organisation's, and names of unknown kind",
    Category.GPE: "countries, states, cities: places with a government",
    Category.PII: "what identifies or reaches a person: e-mail, phone, card, account and social security numbers",
    Category.DATE: "calendar dates and periods, absolute or relative",
    Category.NORP: "nationalities, religions, political groups",
    Category.FAC: "buildings, airports, roads, bridges",
    Category.PRODUCT: "things that are made and sold: vehicles, devices, food; no services",
    Category.EVENT: "battles, storms, matches and other happenings with a name",
    Category.LAW: "documents that became law and have a name",
    Category.LANGUAGE: "languages",
    Category.WORK_OF_ART: "titles of books, songs, films",
    Category.TIME: "times and durations within a day",
    Category.PERCENT: "shares in per cent",
    Category.MONEY: "sums of money with their currency",
    Category.QUANTITY: "measured weights, lengths and the like",
    Category.ORDINAL: "first, second, third",
    Category.CARDINAL: "other numbers",
}
"""What each category holds, in our words."""

NAMES = frozenset(
    {
        Category.PERSON,
        Category.LOC,
        Category.ORG,
        Category.MISC,
        Category.GPE,
        Category.NORP,
        Category.FAC,
        Category.PRODUCT,
        Category.EVENT,
        Category.LAW,
        Category.LANGUAGE,
        Category.WORK_OF_ART,
    }
)
"""What a proper name of unknown kind may be."""

GROUPS: Mapping[str, frozenset[Category]] = {
    "org": frozenset({Category.ORG}),
    "loc": frozenset({Category.LOC}),
    "gpe": frozenset({Category.GPE}),
    "pii": frozenset({Category.PII, Category.PERSON, Category.LOC, Category.GPE}),
    "person": frozenset({Category.PERSON}),
    "misc": NAMES - {Category.PERSON, Category.LOC, Category.ORG, Category.GPE},
    "all": frozenset(Category),
}
"""What ``--entities`` can name: the paper's choices. Every other category goes by its own name (``date``, ``norp``)."""

_IDENTIFIERS = """
EMAIL EMAIL_ADDRESS PHONE PHONE_NUMBER CARD CREDIT_CARD IBAN IBAN_CODE SSN US_SSN URL DOMAIN_NAME IP_ADDRESS
MAC_ADDRESS CRYPTO"""
IDENTIFIERS = frozenset(_IDENTIFIERS.split())
"""Labels of what reaches or identifies a person and is told by its form alone."""

_SPELLINGS: Mapping[Category, str] = {
    Category.PERSON: "PER PEOPLE",
    Category.LOC: "LOCATION",
    Category.ORG: "ORGANIZATION ORGANISATION CORPORATION GROUP COMPANY",
    Category.MISC: "MISCELLANEOUS OTHER",
    Category.PII: f"""{_IDENTIFIERS}
        ID ADDRESS US_BANK_NUMBER US_DRIVER_LICENSE US_ITIN US_PASSPORT MEDICAL_LICENSE UK_NHS""",
    Category.DATE: "DATE_TIME",
    Category.NORP: "NRP",
    Category.FAC: "FACILITY",
    Category.WORK_OF_ART: "CREATIVE_WORK",
    Category.PERCENT: "PERCENTAGE",
}
"""Labels of CoNLL-2003, OntoNotes, WNUT-17, UNER, the Broad Twitter Corpus, Presidio, Stanza, our rules and our own
corpus that differ from the category's name; compared as :func:`_plain` writes them."""

_NAME = "NAME"
_BY_LABEL: Mapping[str, Category] = {
    **{category.value: category for category in Category},
    **{label: category for category, labels in _SPELLINGS.items() for label in labels.split()},
    _NAME: Category.MISC,
}


def category_of(label: str) -> Category:
    """The category that ``label``, of whatever tagger, says first; MISC for a label that nobody told us of."""
    return _BY_LABEL.get(_plain(label), Category.MISC)


def possible_categories(label: str, labels: Collection[str] = ()) -> frozenset[Category]:
    """Every category that ``label`` may mean when it comes from a source that can give ``labels``.

    A source that has no label for GPE, or of which nothing is known, puts countries and cities under LOC. One label
    for dates and times (Presidio's) may mean both. An unknown label may mean anything.
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


@dataclass(frozen=True)
class Selection:
    """Which mentions count as sensitive: those that may belong to one of ``categories``."""

    names: tuple[str, ...]
    categories: frozenset[Category]

    @classmethod
    def parse(cls, names: Iterable[str] | str) -> Selection:
        """The union of the groups and categories that ``names`` lists (a text is split at commas).

        Raises :class:`CorpusError` for a name that is neither, and for none at all.
        """
        listed = names.split(",") if isinstance(names, str) else names
        cleaned = tuple(dict.fromkeys(name.strip().lower() for name in listed if name.strip()))
        if not cleaned:
            raise CorpusError(f"entities must name at least one of {', '.join(selectable())}")
        for name in cleaned:
            if name not in selectable():
                raise CorpusError(f"entities: {name!r} is unknown, it must be one of {', '.join(selectable())}")
        chosen = frozenset().union(*(GROUPS.get(name) or {Category(name.upper())} for name in cleaned))
        return cls(cleaned, chosen)

    @property
    def everything(self) -> bool:
        """Whether no mention is ever dropped."""
        return self.categories == frozenset(Category)

    def keeps(self, label: str, labels: Collection[str] = ()) -> bool:
        """Whether a mention with ``label`` counts, from a source that can give ``labels`` (empty: unknown)."""
        return not self.categories.isdisjoint(possible_categories(label, labels))


def selectable() -> tuple[str, ...]:
    """Every name that a selection may list: the paper's groups first, then the categories without a group."""
    return (*GROUPS, *(category.value.lower() for category in Category if category.value.lower() not in GROUPS))


def _plain(label: str) -> str:
    return label.strip().upper().replace("-", "_").replace(" ", "_")
