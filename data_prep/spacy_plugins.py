"""spaCy's pipelines without the components that other packages plug into it.

>>> from spacy.util import registry
>>> with without_plugins():
...     registry._entry_point_factories.get_all()
{}
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace


@contextmanager
def without_plugins() -> Iterator[None]:
    """Hide the components of other packages from spaCy while the block runs.

    Otherwise spaCy imports every component that an installed package registers, for any pipeline. Presidio's imports
    transformers, which takes seconds.
    """
    from spacy.util import registry

    before = registry._entry_point_factories  # spaCy has no setting for it; `Language` asks it for all
    registry._entry_point_factories = SimpleNamespace(get_all=dict)
    try:
        yield
    finally:
        registry._entry_point_factories = before
