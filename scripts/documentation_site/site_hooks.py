"""Lay out the documentation site of the repository: what ``mkdocs build --strict`` calls (mkdocs.yml).

Every page keeps its path in the repository, so that a link is the same on GitHub and on the site; only the address
drops ``docs/``. The pages of commands, the API and notebooks are made here, from parsers, names and cells.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from api_pages import API_PAGES, api_page
from notebook_pages import notebook_page
from verb_pages import verb_index, verb_pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md", "CHANGELOG.md", "SECURITY.md", "THIRD_PARTY.md", "CONTRIBUTING.md", "docs/**/*.md",
    "results/**/*.md", "conf/**/README.md", "data_prep/**/*.md", "clients/assets/**/README.md", "tools/README.md",
)  # fmt: skip
NOTEBOOKS = "notebooks/*.ipynb"
ASSETS = ("docs/site/site.css", "docs/site/iframe-worker.js")
VERBS = "docs/commands"
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_OTHER_SUFFIX = re.compile(r"(\]\([^)#\s]+)\.ipynb(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the made pages into the navigation, in place of the words COMMANDS, API and the like in mkdocs.yml."""
    made = {
        "COMMANDS": [f"{VERBS}/README.md", *({name: f"{VERBS}/{name}.md"} for name in verb_pages())],
        "API": [{title: f"docs/api/{name}.md"} for name, (title, _, _) in API_PAGES.items()],
    }
    config.nav = _with_made(config.nav, made)
    return config


def _with_made(nav: Any, made: dict[str, list[Any]]) -> Any:
    if isinstance(nav, str):
        return made.get(nav, nav)
    if isinstance(nav, dict):
        return {title: _with_made(below, made) for title, below in nav.items()}
    lists = [_with_made(item, made) for item in nav]
    return [item for below in lists for item in (below if isinstance(below, list) else [below])]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all pages of the repository, what they show and link to, and the made pages."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    pages = [path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)]
    linked = sorted({target for page in pages for target in _linked_files(ROOT / page)}.union(ASSETS) - set(pages))
    written = [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in sorted(pages) + linked]
    return Files([*theme, *(_addressed(file) for file in [*written, *_made_files(config)])])


def _linked_files(page: Path) -> Iterator[str]:
    """Yield the files of the repository that a page shows or links to."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT) and path.suffix != ".ipynb":
            yield path.relative_to(ROOT).as_posix()


def _made_files(config: MkDocsConfig) -> Iterator[File]:
    yield File.generated(config, f"{VERBS}/README.md", content=verb_index())
    for name, text in verb_pages().items():
        yield File.generated(config, f"{VERBS}/{name}.md", content=text)
    for name in API_PAGES:
        yield File.generated(config, f"docs/api/{name}.md", content=api_page(name))
    for path in sorted(ROOT.glob(NOTEBOOKS)):
        text, pictures = notebook_page(path)
        yield File.generated(config, f"notebooks/{path.stem}.md", content=text)
        yield File(f"notebooks/{path.name}", str(ROOT), config.site_dir, False, inclusion=InclusionLevel.NOT_IN_NAV)
        for name, content in pictures.items():
            yield File.generated(config, f"notebooks/{name}", content=content)


def _addressed(file: File) -> File:
    """Drop ``docs/`` from a file's address on the site."""
    file.dest_uri = file.dest_uri.removeprefix("docs/")
    return file


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to notebooks at their pages; a notebook's own download link keeps its suffix."""
    return _OTHER_SUFFIX.sub(r"\1.md", markdown).replace(".ipynb?download", ".ipynb")
