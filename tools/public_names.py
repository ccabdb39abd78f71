"""Make the list of public names that ships, from the tz database and the classifiers of the Python Package Index.

    pip install tzdata trove-classifiers 'fl-sim[dev]'
    python -m tools.public_names --out data_prep/names/public_names.txt

Places are the countries and cities of the tz database (public domain), software and languages those of
trove-classifiers (Apache-2.0). No corpus is read. A name that is also a person's is left out: names of persons are
those of Faker (MIT).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

CLASSIFIED = ("Framework", "Natural Language", "Operating System", "Programming Language")
_WORDS = """
addon applications assembly basic bottle canary celery center chatham christmas core distribution distros domain easter
exporters extension extensions forth hatch hypothesis idle implementation instrumentations library logo nome only opps
oral other paste pelican pike plugins prebuilt progress provider pyramid recipe resolute scheme theme themes tool trio
twisted wake widgets
"""
WORDS = frozenset({*_WORDS.split(), "free threading", "mime renderers", "other scripting engines", "setuptools plugin"})
"""What the sources list that is no name, or a word besides."""

_PERSONS = """
adelaide beulah chihuahua cuba darwin denver django eiffel euler gambier india indiana ireland israel jamaica jersey
juneau kenya kirov lindeman louisville marengo phoenix pitcairn ruby samara sitka vevay vienna vincennes winamac
"""
PERSONS = frozenset(_PERSONS.split())
"""Names that persons have, too, and that Faker's lists lack."""

LOCALES = ("de_DE", "en_GB", "en_IN", "en_US", "es_ES", "fr_FR", "it_IT", "nl_NL", "pl_PL", "pt_BR", "sv_SE", "tr_TR")
FEWEST_LETTERS = 3


def countries() -> Iterator[str]:
    """Yield the names of countries; "Britain (UK)" and "Korea (South)" are Britain, UK and South Korea."""
    for _, name in _rows("iso3166.tab"):
        base, _, inside = name.rstrip(")").partition(" (")
        if inside in ("North", "South"):
            yield f"{inside} {base}"
            continue
        yield base
        if inside.isupper():
            yield inside


def cities() -> Iterator[str]:
    """Yield the cities after which time zones are named; those of Antarctica are stations with names of persons."""
    for _, _, zone, *_ in _rows("zone.tab"):
        area, *places = zone.split("/")
        if area != "Antarctica":
            yield from (place.replace("_", " ") for place in places)


def classified() -> Iterator[str]:
    """Yield the names of software and languages among the classifiers, without their versions."""
    from trove_classifiers import sorted_classifiers

    for classifier in sorted_classifiers:
        group, *parts = classifier.split(" :: ")
        if group in CLASSIFIED:
            for part in parts:
                name = part.partition(" (")[0]
                if not re.search(r"\d|/", name):
                    yield name


def names_of_persons() -> frozenset[str]:
    """Return given and family names, in lower case."""
    names: set[str] = set()
    for locale in LOCALES:
        provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
        for attribute in dir(provider):
            if re.fullmatch(r"(first|last)_names(_\w+)?", attribute):
                names.update(str(name).lower() for name in getattr(provider, attribute))
    return frozenset(names)


def public_names() -> list[str]:
    """Return all names, sorted, without those of persons and without abbreviations of two letters."""
    left_out = names_of_persons() | PERSONS | WORDS
    names = {*countries(), *cities(), *classified()}
    return sorted(name for name in names if len(name) >= FEWEST_LETTERS and name.lower() not in left_out)


def _rows(table: str) -> Iterable[list[str]]:
    text = (resources.files("tzdata") / "zoneinfo" / table).read_text(encoding="utf-8")
    return (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the list of public names.")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args(argv).out
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tzdata", "trove-classifiers", "faker")]
    head = [
        "# Public names: places, languages and software. Sources and terms: README.md beside this file.",
        f"# {', '.join(versions)}",
    ]
    names = public_names()
    out.write_text("\n".join([*head, *names, ""]), encoding="utf-8")
    print(f"{len(names)} names")


if __name__ == "__main__":
    main()
