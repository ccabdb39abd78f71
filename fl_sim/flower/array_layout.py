"""View the arrays of a Flower model as one vector, over which norms, sums and noise are computed.

>>> layout = ArrayLayout.of(ArrayRecord({"weight": Array(np.ones((2, 3), np.float32)), "bias": Array(np.zeros(3))}))
>>> layout.size, layout.names
(9, ('weight', 'bias'))
>>> [array.numpy().dtype.name for array in layout.arrays(np.arange(9.0)).values()]
['float32', 'float64']
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from fl_sim.formats import printable
from fl_sim.strategies.messages import array_view
from fl_sim.strategies.primitives.limits import PrivacyError

_TYPES = ("float32", "float64")
_BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Hold names, shapes and types of a model's arrays, in order.

    Attributes:
        names: of the arrays.
        shapes: of each.
        dtypes: of each, ``float32`` or ``float64``.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> ArrayLayout:
        """Return the layout of a model.

        Raises:
            PrivacyError: an array cannot be averaged with noise: it is not of floats, or holds statistics of batches.
        """
        for name, array in arrays.items():
            if name.rpartition(".")[2] in _BATCH_STATISTICS:
                raise PrivacyError(
                    f"the model's array '{printable(name)}' holds statistics of batches; allowed: layers that keep "
                    "none of the data they see, such as GroupNorm or LayerNorm"
                )
            if array.dtype not in _TYPES:
                raise PrivacyError(
                    f"the model's array '{printable(name)}' is of {printable(array.dtype)}; allowed: "
                    f"{', '.join(_TYPES)}"
                )
        if not sum(math.prod(array.shape) for array in arrays.values()):
            raise PrivacyError("the model has no parameters; allowed: at least one array with a number")
        values = list(arrays.values())
        return cls(tuple(arrays), tuple(tuple(a.shape) for a in values), tuple(a.dtype for a in values))

    @property
    def size(self) -> int:
        """Return d, the number of parameters."""
        return sum(map(math.prod, self.shapes))

    def vector(self, arrays: Mapping[str, Array], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
        """Return the parameters as one vector, (d,) of a type of floats.

        Args:
            arrays: the model.
            dtype: of the vector, by default float64.

        Raises:
            ValueError: names or shapes differ from those of the layout.
        """
        vector = np.empty(self.size, dtype)
        for place, value in self._placed(arrays):  # converted where it shall be: no second copy
            vector[place] = value
        return vector

    def difference(self, arrays: Mapping[str, Array], others: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        """Return the parameters of one model minus those of another, float64 (d,).

        Raises:
            ValueError: names or shapes of either differ from those of the layout.
        """
        vector = np.empty(self.size)
        for (place, value), (_, other) in zip(self._placed(arrays), self._placed(others), strict=True):
            np.subtract(value, other, out=vector[place], dtype=np.float64)
        return vector

    def _placed(self, arrays: Mapping[str, Array]) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield the place of each array in the vector, and the array, flat; ValueError if one is of another layout."""
        if tuple(arrays) != self.names:
            raise ValueError(f"arrays {_shown(tuple(arrays))} in place of {_shown(self.names)}")
        start = 0
        for name, shape, array in zip(self.names, self.shapes, arrays.values(), strict=True):
            value = array_view(array)
            if value.shape != shape or value.dtype.kind != "f":
                raise ValueError(f"array '{printable(name)}' of {value.dtype} {value.shape} in place of {shape}")
            yield slice(start, start + value.size), value.ravel()
            start += value.size

    def arrays(self, vector: npt.NDArray[np.floating]) -> ArrayRecord:
        """Return the arrays, of their own types, whose parameters are ``vector``, floats (d,)."""
        record, start = dict[str, Array](), 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            stop = start + math.prod(shape)
            record[name] = Array(np.asarray(vector[start:stop].reshape(shape), dtype=dtype))
            start = stop
        return ArrayRecord(record)


def _shown(names: tuple[str, ...]) -> str:
    return printable(", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "none")
