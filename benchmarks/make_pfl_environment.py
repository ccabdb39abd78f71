"""Make a separate environment for pfl, the simulator that benchmarks/engine_comparison.py compares with.

    python benchmarks/make_pfl_environment.py DIR

pfl 0.6 pins an older dp-accounting than fl_sim uses. The environment in DIR therefore has its own copy of every package
that pfl needs in another version. It takes the rest, torch above all, from the environment that runs this script, so
that both sides of the comparison use the same torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PFL = "pfl[pytorch]==0.6.0"
BORROWED = "borrowed.pth"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder for the environment")
    folder = parser.parse_args().folder
    if folder.exists():
        sys.exit(f"{folder}: exists; choose another folder")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    site_packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    (Path(site_packages) / BORROWED).write_text(sysconfig.get_path("purelib") + "\n")  # searched after DIR itself
    subprocess.run([python, "-m", "pip", "install", "--quiet", PFL], check=True)
    check = "from importlib.metadata import version; from pfl.algorithm import FederatedAveraging; "
    check += "print(*(f'{name} {version(name)}' for name in ('pfl', 'dp-accounting', 'torch')), sep=', ')"
    subprocess.run([python, "-c", check], check=True)


if __name__ == "__main__":
    main()
