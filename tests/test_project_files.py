"""What a reader of the repository finds at its root says what pyproject.toml says."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from fl_sim.cli.verbs import fl_sim as cli
from tests.conftest import REPOSITORY

TEMPLATE = REPOSITORY / "fl_sim" / "cli" / "template"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked_texts(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files of these kinds that git tracks, links left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        path = REPOSITORY / name
        if path.suffix in suffixes and path.is_file() and not path.is_symlink():
            yield name, path.read_text(encoding="utf-8")


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
    assert [link for link in links if not (REPOSITORY / link.partition("#")[0]).exists()] == []


def test_cited_pages_and_sections_exist() -> None:
    """Code, tests, configurations and pages name pages of docs/, numbered sections of those on privacy, programs."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").glob("*.md")}
    wrong, cited = [], 0
    for name, text in tracked_texts(".py", ".md", ".toml", ".ipynb", ".json"):
        named = re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", text)
        if name.endswith(".md"):
            named += re.findall(r"(?<![\w/.])(?:tests|scripts|benchmarks)/[\w/]+\.py", text)
        wrong += [f"{name}: {page}" for page in named if not (REPOSITORY / page).is_file()]
        for page, number in re.findall(r"(privacy[\w-]*\.md)\)?,?[\s#(]+sections?[\s#]+(\d+)", text):
            cited += 1
            if f"\n## {number}. " not in pages.get(page, ""):
                wrong.append(f"{name}: {page}, section {number}")
    assert wrong == []
    assert cited > 60


def test_every_record_was_made_from_clean_commits_of_the_history_and_its_page_says_so() -> None:
    if not (REPOSITORY / ".git").exists() or (REPOSITORY / ".git" / "shallow").exists():
        pytest.skip("no clone with its whole history")
    listed = subprocess.run(["git", "rev-list", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    history = {*listed.stdout.split()}
    files = sorted((REPOSITORY / "results").rglob("*.json"))
    assert len(files) > 20
    commits = {file: json.loads(file.read_bytes())["commit"].split(", ") for file in files}
    wrong = {file.name: stray for file, named in commits.items() if (stray := {*named} - history)}  # also "… dirty"
    assert wrong == {}, "fl-sim reproduce make NAME --record results makes one of a clean commit"
    for file, named in commits.items():
        pages = (page.read_text(encoding="utf-8") for page in file.parent.glob("*.md"))
        lines = (line for page in pages for line in page.splitlines())
        line = next(line for line in lines if line.startswith(f"*[{file.name}]({file.name});"))
        assert line.endswith(f" from {', '.join(commit[:12] for commit in named)}, clean.*")


def test_readme_is_short() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def test_commands_that_are_named_exist() -> None:
    """Code, configurations and pages name verbs of the command line, sub-verbs of those that have some, and flags."""
    wrong, named = [], set()
    for name, text in tracked_texts(".py", ".md", ".toml", ".ipynb"):
        joined = re.sub(r"\s+", " ", re.sub(r'"\n\s*f?"', "", text))  # over several lines
        for verb, sub, rest in re.findall(r"`fl-sim ([a-z][a-z-]+)(?: ([a-z][a-z0-9-]+)(?![\w.]))?([^`]*)", joined):
            command = cli.get_command(click.Context(cli), verb)
            if sub and isinstance(command, click.Group):
                command = command.get_command(click.Context(command), sub)
            named.add(verb)
            flags = set() if verb == "prepare" else set(re.findall(r" (--[a-z-]+)", rest))  # its readers have their own
            known = {flag for parameter in command.params for flag in parameter.opts} if command else set()
            if command is None or flags - known - {"--help"}:
                wrong.append(f"{name}: fl-sim {verb} {sub}{rest}")
    assert wrong == []
    assert len(named) > 12


def modules_of_the_product() -> list[Path]:
    folders = (REPOSITORY / name for name in ("clients", "data_prep", "fl_sim", "strategies"))
    return [path for folder in folders for path in folder.rglob("*.py") if not path.is_relative_to(TEMPLATE)]


def names_defined_in(body: list[ast.stmt]) -> Iterator[str]:
    """Functions, classes and constants of a module or a class, without those that a decorator may register."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_what_is_defined_is_used() -> None:
    """A name that stands nowhere but in its definition and in tests is dead."""
    users = [*modules_of_the_product(), *(REPOSITORY / "notebooks").glob("*.ipynb")]
    users += [path for name in ("benchmarks", "scripts") for path in (REPOSITORY / name).rglob("*.py")]
    users += (REPOSITORY / "fl_sim").rglob("*.html")
    words = Counter(word for path in users for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    dead = []
    for path in modules_of_the_product():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.bases]  # no overrides
        dead += [
            f"{path.relative_to(REPOSITORY)}: {name}"
            for body in (tree.body, *(node.body for node in classes))
            for name in names_defined_in(body)
            if words[name] == 1 and not re.fullmatch(r"__\w+__|_repr_\w+_", name)
        ]
    assert dead == []
