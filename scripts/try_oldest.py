"""Install the project with the lower end of every dependency range and run the quick tests.

    python scripts/try_oldest.py ENVIRONMENT

creates the virtual environment ENVIRONMENT. torch stays at the version that pip chooses, because its older Linux builds
install several GB of CUDA packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"torch"}


def lower_ends(pyproject: Path) -> list[str]:
    """Return ``name==lowest`` for every dependency with a lower bound."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *extras["text"],
        *extras["lora"],
        *extras["hf"],
        *extras["pii"],
        *extras["test"],
    ]
    matches = (re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?>=([^,]+)", requirement) for requirement in requirements)
    return [f"{m[1]}=={m[2]}" for m in matches if m is not None and m[1] not in LEFT_OUT]


def main(environment: str) -> int:
    venv.create(environment, with_pip=True)
    python = str(Path(environment) / "bin" / "python")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(lower_ends(ROOT / "pyproject.toml")) + "\n")
        constraints.flush()
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "-e", ".[test]", "-c", constraints.name], cwd=ROOT, check=True
        )
    return subprocess.run([python, "-m", "pytest"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
