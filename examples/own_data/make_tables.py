"""Write made-up tables, one per user: python make_tables.py FOLDER [USERS]."""

import sys
from pathlib import Path

import numpy as np

ROWS, WEIGHTS = 40, np.array([1.0, -2.0, 0.5, 0.0])


def main(folder: Path, users: int) -> None:
    """Write ``user0.csv`` … with features in the first columns and a label, 0 or 1, in the last."""
    folder.mkdir(parents=True, exist_ok=True)
    for user in range(users):
        draws = np.random.default_rng(user)
        features = draws.normal(size=(ROWS, len(WEIGHTS)))
        labels = draws.random(ROWS) < 1 / (1 + np.exp(-features @ WEIGHTS))
        np.savetxt(folder / f"user{user}.csv", np.column_stack([features, labels]), delimiter=",", fmt="%.6f")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
