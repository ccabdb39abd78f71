"""What a reader of the repository finds at its root says what pyproject.toml says."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_file_has_what_its_format_asks_for() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"].split(" AND ")
    assert not citation.keys() & {"version", "doi", "date-released"}, (
        "pyproject.toml has the version; nothing is released"
    )


def test_the_classifiers_are_the_versions_of_python_that_are_allowed() -> None:
    lowest, beyond = (int(bound.rpartition(".")[2]) for bound in PROJECT["requires-python"].split(","))
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert named == [f"3.{minor}" for minor in range(lowest, beyond)]


def test_the_page_for_contributors_leads_on() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert "docs/development.md" in links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
