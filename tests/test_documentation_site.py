"""The documentation site is built without a warning or a network, holds what is public, and has no dead link."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fl_sim
from fl_sim.cli.verbs import VERBS
from tests.conftest import REPOSITORY
from tests.extra_environments import python_with

sys.path.insert(0, str(REPOSITORY / "scripts" / "documentation_site"))
from api_pages import public_paths

pytestmark = pytest.mark.system

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser fetches by itself, and the attribute that names it."""


class Document(HTMLParser):
    """The addresses that a page loads and links to, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := named.get(name))}
        if (address := named.get(LOADED.get(tag, ""))) and named.get("rel") != "canonical":
            self.loaded.append(address)
        if tag == "a" and (address := named.get("href")):
            self.linked.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site that one strict build made."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    build(REPOSITORY / "mkdocs.yml", folder, python_with("docs", folder.parent / "environment"))
    return folder


def build(configuration: Path, folder: Path, python: Path = Path(sys.executable)) -> None:
    command = [python, "-m", "mkdocs", "build", "--strict", "-f", str(configuration), "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"mkdocs build --strict:\n{done.stderr}"
    assert "WARNING" not in done.stderr


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Document]:
    return {path: Document(path) for path in site.rglob("*.html") if path.name != "404.html"}


def dead_links(pages: dict[Path, Document]) -> Iterator[str]:
    """Yield the links to a file of the site, or a place in it, that does not exist."""
    for path, page in pages.items():
        for address in [*page.linked, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or address == "javascript:void(0)":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path not in ("", ".") else path
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(parts.fragment)
            if not target.is_file():
                yield f"{path.name}: {address}: no such file"
            elif fragment and target in pages and fragment not in pages[target].anchors:
                yield f"{path.name}: {address}: no such place"


def test_no_link_of_the_site_is_dead(pages: dict[Path, Document]) -> None:
    assert len(pages) > 70
    assert list(dead_links(pages)) == []


def test_a_reader_needs_no_network(site: Path, pages: dict[Path, Document]) -> None:
    fetched = {address for page in pages.values() for address in page.loaded if urlsplit(address).netloc}
    assert fetched == set()
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not any("url(http" in sheet or "url(//" in sheet for sheet in sheets)


def test_every_verb_public_name_and_notebook_is_on_the_site(site: Path, pages: dict[Path, Document]) -> None:
    for group in VERBS.values():
        for name in group:
            assert (site / "commands" / f"{name}.html").is_file()
    anchors = set().union(*(page.anchors for page in pages.values()))
    assert [path for path in public_paths() if path not in anchors] == []
    for notebook in (REPOSITORY / "notebooks").glob("*.ipynb"):
        assert (site / "notebooks" / f"{notebook.stem}.html").is_file()


def test_the_search_knows_pages_commands_and_names(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    for location in ("privacy.html", "commands/run.html", "api/runs.html#fl_sim.api.runs.run", "notebooks/audit.html"):
        assert f'"location":"{location}"' in index


def test_every_name_of_the_package_is_on_an_api_page() -> None:
    named = {path.rpartition(".")[2] for path in public_paths()}
    assert set(fl_sim.__all__) - named == {"__version__"}


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "index.md"
    page.parent.mkdir()
    page.write_text("# Page\n\n[gone](index.md#nowhere)\n", encoding="utf-8")
    whole = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    validation = whole[whole.index("validation:") : whole.index("nav:\n  - Start")]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: small\nstrict: true\n{validation}", encoding="utf-8")
    with pytest.raises(AssertionError, match="nowhere"):
        build(tmp_path / "mkdocs.yml", tmp_path / "site")
