"""Fill the templates of pages: every text is escaped, control characters are shown, and nothing is fetched.

>>> page = render("page.html", title="<b>\\x1b[31m")
>>> "<h1>&lt;b&gt;\\\\u001b[31m</h1>" in page, "<script" in page, "default-src 'none'" in page
(True, False, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fl_sim.formats import format_delta, printable


def whole_delta(delta: float | None) -> str:
    """Return "δ = 1e-5" so that no line ends within it."""
    return f"δ = {format_delta(delta)}".replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


class Shown(NamedTuple):
    """A large figure of a card, with what it is."""

    figure: str
    words: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a page says of a run first: ε, utility and time, and what comes with them."""

    label: str
    run: str
    figures: tuple[Shown, ...]
    notes: tuple[str, ...]


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "pages"),
    autoescape=True,
    finalize=lambda value: value if isinstance(value, Markup) else printable(value),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, *, refresh: int | None = None, **values: Any) -> str:
    """Return a page of one HTML file.

    Args:
        template: a file of ``pages`` beside this module.
        refresh: seconds after which a browser loads the page again.
        values: by the names in the template; only what is :class:`~markupsafe.Markup` is not escaped.
    """
    return _ENVIRONMENT.get_template(template).render(refresh=refresh, **values)


def render_markdown(template: str, **values: Any) -> str:
    """Return a Markdown document from a template in ``pages``; nothing is escaped."""
    environment = _ENVIRONMENT.overlay(autoescape=False, finalize=str, keep_trailing_newline=True)
    return environment.get_template(template).render(**values)
