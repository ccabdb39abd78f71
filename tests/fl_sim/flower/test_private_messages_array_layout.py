"""Arrays in the order of their numbers, whatever the order in which their bytes are sent."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fl_sim.flower.private_messages import ArrayLayout


def model(scale: float) -> ArrayRecord:
    by_columns = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3) * scale)
    return ArrayRecord({"weight": Array(by_columns), "bias": Array(np.array(scale))})


def test_an_array_that_is_stored_by_columns_is_read_by_rows() -> None:
    layout = ArrayLayout.of(model(1.0))
    assert layout.vector(model(1.0)).tolist() == [0, 1, 2, 3, 4, 5, 1]
    back = layout.arrays(layout.vector(model(1.0)))
    assert np.array_equal(back["weight"].numpy(), model(1.0)["weight"].numpy())


def test_a_difference_is_taken_in_doubles() -> None:
    layout = ArrayLayout.of(model(1.0))
    apart = layout.difference(model(1.0), model(np.float32(0.1)))
    assert apart.dtype == np.float64
    assert apart[1] == 1.0 - np.float64(np.float32(0.1))  # in float32 it would be another number
    assert apart[1] != np.float32(1.0) - np.float32(0.1)


def test_a_model_of_another_layout_is_refused() -> None:
    layout = ArrayLayout.of(model(1.0))
    other = ArrayRecord({"weight": Array(np.zeros((3, 2), np.float32)), "bias": Array(np.array(1.0))})
    for refused in (lambda: layout.vector(other), lambda: layout.difference(other, model(1.0))):
        with pytest.raises(ValueError, match=r"array 'weight' of float32 \(3, 2\) in place of \(2, 3\)"):
            refused()
