"""Fit the docstrings to the site: a Griffe extension (mkdocs.yml), which also reports public names without one.

>>> as_markdown("See :func:`~fl_sim.api.runs.run`.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").splitlines()
['See `run`.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
>>> as_markdown(":mod:`fl_sim.formats`")
'`fl_sim.formats`'
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from griffe import Alias, Extension, GriffeLoader, Module, Object
from mkdocs.plugins import get_plugin_logger

sys.path.insert(0, str(Path(__file__).parent))
from api_pages import public_paths

_ROLE = re.compile(r":(?:func|meth|class|mod|data|attr|exc|obj):`(~?)([\w.]+)`")
_DOCTEST = re.compile(r"(?ms)^( *)(>>> .*?)(?=\n *\n|\Z)")
_CLASS_ATTRIBUTES = re.compile(r"(?ms)^ *Class attributes:\n(.*?)(?=\n *\n|\Z)")
_ITEM = re.compile(r"(?m)^ {4,8}(?=[A-Za-z_]+: )")
_log = get_plugin_logger(__name__)


def as_markdown(docstring: str) -> str:
    """Return a docstring whose roles are code and whose doctests are blocks of Python."""
    plain = _ROLE.sub(lambda role: f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`", docstring)
    plain = _CLASS_ATTRIBUTES.sub(lambda block: "**Class attributes**\n\n" + _ITEM.sub("* ", block[1]), plain)
    return _DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", plain)


class Docstrings(Extension):
    """Rewrite every docstring when its object is loaded."""

    def on_instance(self, *, obj: Object | Alias, **settings: Any) -> None:
        """Rewrite the docstring of ``obj``."""
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **settings: Any) -> None:
        """Warn, which ends a strict build, of every public name without a docstring."""
        for path in public_paths():
            package, _, name = path.partition(".")
            if package == pkg.name:
                for missing in undocumented(pkg[name]):
                    _log.warning("%s has no docstring", missing)


def undocumented(documented: Object | Alias) -> list[str]:
    """Return the paths of the public classes, functions and methods of a module or class that have no docstring."""
    missing = [] if documented.docstring else [documented.path]
    for member in documented.members.values():
        if member.is_alias or not (member.is_class or member.is_function) or member.name.startswith("_"):
            continue
        if not (member.is_function and "overload" in member.labels):
            missing += undocumented(member)
    return missing
