"""Read Adult (Becker and Kohavi 1996), or a generated table of its format, and compute a person's gradient.

Columns and their scales are fixed here, not computed from the rows: a mean over persons would be one more release.
"""

import lzma
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

from fl_sim.research.representations.corpora.labelled_tables import write_toy_adult

GENERATED_ROWS = 6000
_NUMBERS = {0: 100.0, 4: 16.0, 12: 100.0}  # age, years of education, hours per week: a column and its scale
_TEXTS = {
    5: ("Married-civ-spouse", "Never-married", "Divorced", "Separated", "Widowed", "Married-spouse-absent"),
    6: ("Exec-managerial", "Prof-specialty", "Sales", "Craft-repair", "Tech-support", "Protective-serv"),
    7: ("Husband", "Wife", "Own-child", "Not-in-family", "Unmarried"),
}
FEATURES = 1 + len(_NUMBERS) + sum(map(len, _TEXTS.values()))


@cache
def persons(data: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features, float64 (n, FEATURES), and whether the income is above 50,000 dollars, float64 (n,).

    Args:
        data: the folder with the files; empty for the generated table.
        part: ``data``, which the nodes hold, or ``test``, which the server measures on.
    """
    if data:
        return _parsed(_text(Path(data), f"adult.{part}"))
    with tempfile.TemporaryDirectory() as folder:
        return _parsed(_text(write_toy_adult(Path(folder), rows=GENERATED_ROWS), f"adult.{part}"))


def numbers_of(data: str, partition: int, num_partitions: int) -> range:
    """Return the numbers of the persons that a node holds."""
    return range(partition, len(persons(data, "data")[1]), num_partitions)


def initial_model() -> ArrayRecord:
    """Return weights of zero."""
    return ArrayRecord({"weights": Array(np.zeros(FEATURES))})


def stepped(arrays: ArrayRecord, features: np.ndarray, rich: np.ndarray) -> ArrayRecord:
    """Return the model after one step of gradient descent on the log-loss of some persons."""
    weights = arrays["weights"].numpy()
    chances = 1 / (1 + np.exp(-features @ weights))
    return ArrayRecord({"weights": Array(weights - features.T @ (chances - rich) / len(rich))})


def accuracy(arrays: ArrayRecord, data: str) -> float:
    """Return the accuracy on the persons of ``adult.test``."""
    features, rich = persons(data, "test")
    return float(((features @ arrays["weights"].numpy() > 0) == (rich == 1)).mean())


def _text(folder: Path, name: str) -> str:
    plain, packed = folder / name, folder / f"{name}.xz"
    return plain.read_text() if plain.is_file() else lzma.decompress(packed.read_bytes()).decode()


def _parsed(text: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [row for row in (line.split(", ") for line in text.splitlines()) if len(row) == 15]
    columns = [np.ones(len(rows))]
    columns += [np.array([float(row[column]) / scale for row in rows]) for column, scale in _NUMBERS.items()]
    for column, values in _TEXTS.items():
        columns += [np.array([row[column] == value for row in rows], dtype=float) for value in values]
    return np.stack(columns, axis=1), np.array([row[14].startswith(">50K") for row in rows], dtype=float)
