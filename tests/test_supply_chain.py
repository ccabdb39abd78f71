"""The lock of CI, the licences of what fl_sim needs, and what SECURITY.md and THIRD_PARTY.md say of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import check_licences, update_lock

ROOT = Path(__file__).resolve().parents[1]
_LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def requirements() -> list[Requirement]:
    """Return the direct dependencies of fl_sim and of its development extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["test"], *extras["dev"]]
    named += [text for extra in ("text", "lora", "hf", "pii", "spacy-en", "representations") for text in extras[extra]]
    return [Requirement(text) for text in named if not text.startswith("fl-sim")]


def locked() -> dict[str, str]:
    """Return the locked versions by package."""
    lines = [line for line in update_lock.LOCK.read_text().splitlines() if not line.startswith("#")]
    found = [_LINE.fullmatch(line) for line in lines]
    assert all(found), "every line has a version and a hash, and none names an index"
    return {match[1]: match[2] for match in found if match}


def test_the_lock_has_every_dependency_within_its_range() -> None:
    versions = locked()
    for requirement in requirements():
        if requirement.name in update_lock.NOT_LOCKED:
            assert requirement.name not in versions
        else:
            assert requirement.specifier.contains(versions[requirement.name]), requirement


def test_the_lock_names_no_index() -> None:
    text = update_lock.LOCK.read_text()
    assert "://" not in text
    assert "--index-url" not in text


@pytest.mark.system
def test_every_installed_dependency_is_under_an_allowed_licence(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_licences.main([]) == 0
    assert int(capsys.readouterr().out.split()[0]) > 100


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": ["MIT"], "License": ["GPL"]}, "MIT"),
        ({"License": ["UNKNOWN"], "Classifier": ["License :: OSI Approved :: MIT License"]}, "MIT"),
        ({"License": ["Copyright (c) 2015 somebody"], "Classifier": []}, "unknown"),
        ({"License": ["GPL-3.0-only"]}, "GPL-3.0-only"),
        ({"Classifier": ["License :: OSI Approved :: GNU Affero General Public License v3"]}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_licence_is_what_is_declared(fields: dict[str, list[str]], licence: str) -> None:
    assert check_licences.licence_of(fields) == licence
    assert bool(check_licences.problems({"package": licence})) == (licence != "MIT")


def test_an_exception_holds_for_one_package_and_one_licence() -> None:
    licence = check_licences.EXCEPTIONS["gensim"][0]
    assert not check_licences.problems({"gensim": licence})
    assert check_licences.problems({"another": licence})
    assert check_licences.problems({"gensim": "GPL-3.0-only"})


def test_packages_that_are_not_installed_are_compared_with_what_pip_resolves() -> None:
    install = [
        {"metadata": {"name": name, "license_expression": licence}}
        for name, licence in check_licences.NOT_INSTALLED.items()
    ]
    assert check_licences.differences({"install": install}) == []
    install[0]["metadata"]["license_expression"] = "MIT"
    (line,) = check_licences.differences({"install": install})
    assert line.startswith("click-default-group: licence is MIT; NOT_INSTALLED has Public-Domain")
    assert len(check_licences.differences({"install": install[1:-1]})) == 2


def test_the_notice_names_every_dependency_and_every_folder_that_ships_data() -> None:
    notice = check_licences.NOTICE.read_text()
    listed = notice.split(check_licences.BEGIN)[1].split(check_licences.END)[0]
    named = {name for line in listed.splitlines() for name in line.split("|")[2:3] for name in name.strip().split(", ")}
    assert check_licences.licences().keys() <= named
    for requirement in requirements():
        assert re.search(rf"[ |]{re.escape(requirement.name)}[, |]", listed), requirement.name
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert data.keys() == {
        *("fl_sim", "fl_sim.clients", "fl_sim.data_prep"),
        *("fl_sim.cli", "fl_sim.reporting"),  # templates, script and style of our own
    }
    shipped = ["data_prep/bundled", "data_prep/names", "data_prep/models/en_fl_sim_ner"]
    shipped += [f"clients/assets/{name}" for name in ("tokenizer", "small-gpt2-public", "small-awd-lstm-public")]
    assert all(folder in notice and (ROOT / folder).exists() for folder in shipped)
