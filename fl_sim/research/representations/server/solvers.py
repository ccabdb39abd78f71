"""scikit-learn's solvers where a good answer will do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unfinished_is_fine() -> Iterator[None]:
    """No word of a classifier that has not converged: online coding asks for some that saw a handful of examples, and a
    null space needs a direction and no optimum."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
