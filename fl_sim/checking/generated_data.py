"""Stand in for flwr_datasets and Hugging Face's datasets, with generated rows of the shape of well-known data sets.

>>> rows("ylecun/mnist", 3)["label"]
[8, 6, 5]
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_sim.checking.app_folder import CheckError

ROWS = 40
"""Rows of a node."""


Make = Callable[[Any, int], dict[str, list[Any]]]
"""Makes so many rows with a generator, by column."""


def _image(name: str, *shape: int) -> Make:
    def make(generator: Any, number: int) -> dict[str, list[Any]]:
        from PIL import Image

        labels = generator.integers(10, size=number)
        pixels = generator.integers(256, size=(number, *shape), dtype=np.uint8)
        return {name: [Image.fromarray(each) for each in pixels], "label": labels.tolist()}

    return make


def _iris(*columns: str, label: str) -> Make:
    def make(generator: Any, number: int) -> dict[str, list[Any]]:
        found = {name: generator.normal(size=number).tolist() for name in columns}
        return found | {label: generator.integers(3, size=number).tolist()}

    return make


def _reviews(generator: Any, number: int) -> dict[str, list[Any]]:
    words = ["the", "a", "good", "bad", "film", "story", "was", "not", "very", "long", "and", "short"]
    return {
        "text": [" ".join(generator.choice(words, size=12)) for _ in range(number)],
        "label": generator.integers(2, size=number).tolist(),
    }


_SHAPES: dict[str, Make] = {
    "uoft-cs/cifar10": _image("img", 32, 32, 3),
    "cifar10": _image("img", 32, 32, 3),
    "ylecun/mnist": _image("image", 28, 28),
    "mnist": _image("image", 28, 28),
    "zalando-datasets/fashion_mnist": _image("image", 28, 28),
    "scikit-learn/iris": _iris("SepalLengthCm", "SepalWidthCm", "PetalLengthCm", "PetalWidthCm", label="Species"),
    "hitorilabs/iris": _iris("petal_length", "petal_width", "sepal_length", "sepal_width", label="species"),
    "stanfordnlp/imdb": _reviews,
}


def rows(name: str, number: int, seed: int = 0) -> dict[str, list[Any]]:
    """Return generated rows of a data set's columns.

    Raises:
        CheckError: its columns are not known.
    """
    if name not in _SHAPES:
        raise CheckError(f"the columns of {name!r} are not known; allowed: {', '.join(sorted(_SHAPES))}")
    return _SHAPES[name](np.random.default_rng(seed), number)


def _any_class(name: str) -> Callable[..., None]:
    """Return what stands for any partitioner."""
    if name.startswith("_"):  # what others ask of every module
        raise AttributeError(name)
    return lambda *arguments, **named: None


def stand_in() -> None:
    """Put modules in the place of flwr_datasets, and generated rows behind ``datasets.load_dataset``."""
    import datasets

    def made(name: str, seed: int = 0) -> Any:
        return datasets.Dataset.from_dict(rows(name, ROWS, seed))

    class FederatedDataset:
        """Return generated rows for every partition."""

        def __init__(self, *, dataset: str, **named: Any) -> None:
            self._name = dataset

        def load_partition(self, partition_id: int, split: str | None = None) -> Any:
            return made(self._name, partition_id + 1)

        def load_split(self, split: str) -> Any:
            return made(self._name)

    package: Any = types.ModuleType("flwr_datasets")
    partitioner: Any = types.ModuleType("flwr_datasets.partitioner")
    package.FederatedDataset, package.partitioner = FederatedDataset, partitioner
    partitioner.__getattr__ = _any_class
    sys.modules |= {"flwr_datasets": package, "flwr_datasets.partitioner": partitioner}
    datasets.load_dataset = lambda name, *arguments, split=None, **named: made(name) if split else {"train": made(name)}
