"""Build an HTML page of one file, in light and dark, for a screen of any width.

Every text is escaped here, so callers pass plain text; what is built already is marked by :class:`Markup`.

>>> page = Page("What leaks").heading("Runs").paragraph("a < b").table(["run", "ε"], [["first", "8"]])
>>> "<p>a &lt; b</p>" in page.html() and "<td>8</td>" in page.html()
True
>>> [word in page.html() for word in ("<script", "http://", "https://")]
[False, False, False]
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from typing import Self

from fl_sim.formats import printable

_LIGHT = """color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #ffffff; --card: #f6f8fa;
  --c0: #0072b2; --c1: #d55e00; --c2: #00875a; --c3: #a04a82; --c4: #8a6d00; --c5: #4d5bce; --bound: #b3261e;"""
_DARK = """color-scheme: dark; --ink: #e6edf3; --soft: #9aa4ae; --line: #3a424c; --paper: #0d1117; --card: #161b22;
  --c0: #58b4ea; --c1: #ff9a57; --c2: #3fc79a; --c3: #e08cc4; --c4: #d9b53f; --c5: #98a4ff; --bound: #ff8a80;"""
_COLOURS = f"""
:root {{ {_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
@media screen {{ :root[data-theme="light"] {{ {_LIGHT} }} :root[data-theme="dark"] {{ {_DARK} }} }}
"""
_STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p { margin: .5rem 0; max-width: 46rem; }
.soft { color: var(--soft); font-size: .9rem; }
.note { background: var(--card); border-left: 4px solid var(--c1); padding: .6rem .9rem; border-radius: 4px; }
.alarm { border-left-color: var(--bound); font-weight: 600; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
figure { margin: .75rem 0; overflow-x: auto; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 46rem; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .soft { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .guess { stroke: var(--soft); stroke-dasharray: 2 3; }
svg .bound { stroke: var(--bound); stroke-width: 3; } svg .mark { stroke-width: 2; }
svg .hit:hover { opacity: .65; }
"""


_THEME_BUTTON = '<button type="button" class="theme" aria-pressed="false">dark / light</button>'


def _policy(script: str) -> str:
    """Return what makes a browser run this script alone and fetch nothing, whatever else the page holds."""
    if not script:
        return ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n<link rel="icon" href="data:,">\n'


class Markup(str):
    """HTML that is built already and not escaped again."""

    __slots__ = ()


def markup(text: str) -> Markup:
    """Return a text as HTML: control characters shown, everything else escaped; markup as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(printable(text)))


class Page:
    """A page that is written from top to bottom; every method returns the page.

    Args:
        title: of the page and of its first heading.
        script: makes charts live; empty for a page without scripts and without a button for dark and light.
        style: rules of the style besides those of all pages.
    """

    def __init__(self, title: str, script: str = "", style: str = "") -> None:
        self._title = markup(title)
        self._script, self._own_style = script, style
        self._parts = [*([_THEME_BUTTON] if script else []), f"<h1>{self._title}</h1>"]

    def heading(self, words: str, level: int = 2) -> Self:
        """Add a heading of level 2 or 3."""
        return self._add(f"<h{level}>{markup(words)}</h{level}>")

    def paragraph(self, words: str, kind: str = "") -> Self:
        """Add a paragraph; ``kind`` is ``soft``, ``note``, ``note alarm`` or nothing."""
        return self._add(f'<p class="{kind}">{markup(words)}</p>' if kind else f"<p>{markup(words)}</p>")

    def points(self, texts: Sequence[str]) -> Self:
        """Add a list."""
        return self._add(f"<ul>{''.join(f'<li>{markup(text)}</li>' for text in texts)}</ul>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Self:
        """Add a table, which scrolls by itself where the screen is narrow; ``kind`` is a class of the style."""
        head = "".join(f"<th>{markup(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        opened = f'<table class="{kind}">' if kind else "<table>"
        return self._add(f'<div class="wide">{opened}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')

    def grid(self, parts: Sequence[Markup], kind: str) -> Self:
        """Add parts side by side, below each other where the screen is narrow; ``kind`` is ``cards`` or ``charts``."""
        return self._add(f'<div class="{kind}">{"".join(parts)}</div>' if parts else "")

    def figure(self, picture: Markup, caption: str) -> Self:
        """Add a picture with its caption."""
        return self._add(f"<figure>{picture}<figcaption>{markup(caption)}</figcaption></figure>")

    def html(self) -> str:
        """Return the page as one HTML file."""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"{_policy(self._script)}<title>{self._title}</title>\n"
            f"<style>{_COLOURS}{_STYLE}{self._own_style}</style>\n</head>\n<body>\n"
            + "\n".join(self._parts)
            + (f"\n<script>{self._script}</script>" if self._script else "")
            + "\n</body>\n</html>\n"
        )

    def _add(self, part: str) -> Self:
        self._parts.append(part)
        return self
