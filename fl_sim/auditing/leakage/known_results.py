"""Results that several runs share, computed once: what attacks find in the model with which the runs began.

>>> known = KnownResults()
>>> known.get("answer", lambda: 42), known.get("answer", lambda: 43)
(42, 42)
>>> known.within("another model").get("answer", lambda: 43)
43
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class KnownResults:
    """Hold results by key within a scope.

    Attributes:
        results: of all scopes.
        scope: of this view on them.
    """

    results: dict[Hashable, Any] = field(default_factory=dict)
    scope: Hashable = None

    def within(self, scope: Hashable) -> KnownResults:
        """Return a view in which the same keys mean other results, within the scope of this one."""
        return KnownResults(self.results, (self.scope, scope))

    def get(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result under a key, computed where it is not known."""
        whole = (self.scope, key)
        if whole not in self.results:
            self.results[whole] = compute()
        found: Result = self.results[whole]
        return found
