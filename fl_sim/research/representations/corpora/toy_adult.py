"""A synthetic Adult in the format of the original: columns predict income and sex, but not perfectly.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     lines = (write_toy_adult(Path(folder), rows=10) / "adult.data").read_text().splitlines()
>>> len(lines), len(lines[0].split(", "))
(5, 15)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_toy_adult(folder: Path, rows: int = 600, seed: int = 0) -> Path:
    """Write ``adult.data`` and ``adult.test`` with half of the rows each; return the folder.

    60 % are men. Half of the men and 30 % of the women earn more than 50,000. Four of five men are husbands. Higher
    earners mostly have more years of education.

    Args:
        folder: created if needed.
        rows: of both files together.
        seed: of the rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        male = rng.random() < 0.6
        rich = rng.random() < (0.5 if male else 0.3)
        home = "Husband" if male and rng.random() < 0.8 else "Own-child"
        years = int(rng.integers(11, 17) if rich else rng.integers(5, 13))
        cells = [
            int(rng.integers(20, 60)), "Private", 100, "Bachelors", years, "Never-married", "Sales", home, "White",
            "Male" if male else "Female", 0, 0, int(rng.integers(20, 60)), "United-States",
            ">50K" if rich else "<=50K",
        ]  # fmt: skip
        lines.append(", ".join(map(str, cells)))
    half = rows // 2
    (folder / "adult.data").write_text("\n".join(lines[:half]) + "\n")
    (folder / "adult.test").write_text("\n".join(f"{line}." for line in lines[half:]) + "\n")
    return folder
