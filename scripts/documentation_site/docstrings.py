"""Fit the docstrings to the site: a Griffe extension (mkdocs.yml).

>>> as_markdown("See :func:`~fl_sim.api.runs.run`.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").splitlines()
['See `run`.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
>>> as_markdown(":mod:`fl_sim.formats`")
'`fl_sim.formats`'
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Alias, Extension, Object

_ROLE = re.compile(r":(?:func|meth|class|mod|data|attr|exc|obj):`(~?)([\w.]+)`")
_DOCTEST = re.compile(r"(?ms)^( *)(>>> .*?)(?=\n *\n|\Z)")
_CLASS_ATTRIBUTES = re.compile(r"(?ms)^ *Class attributes:\n(.*?)(?=\n *\n|\Z)")
_ITEM = re.compile(r"(?m)^ {4,8}(?=[A-Za-z_]+: )")


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
