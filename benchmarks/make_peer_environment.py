"""Make a separate environment for a library that a benchmark compares with.

    python benchmarks/make_peer_environment.py pfl DIR       # for benchmarks/engine_comparison.py
    python benchmarks/make_peer_environment.py opacus DIR    # for benchmarks/clipped_gradients.py

pfl 0.6 pins an older dp-accounting than fl_sim uses. The environment in DIR therefore has its own copy of every package
that the library needs in another version. It takes the rest, torch above all, from the environment that runs this
script, so that both sides of the comparison use the same torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PEERS = {
    "pfl": ("pfl[pytorch]==0.6.0", "from pfl.algorithm import FederatedAveraging"),
    "opacus": ("opacus==1.6.0", "from opacus.grad_sample import GradSampleModuleFastGradientClipping"),
}
"""What pip installs, and what must be importable then."""
BORROWED = "borrowed.pth"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder for the environment")
    args = parser.parse_args()
    if args.folder.exists():
        sys.exit(f"{args.folder}: exists; choose another folder")
    venv.create(args.folder, with_pip=True)
    python = str(args.folder / "bin" / "python")
    site_packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    borrowed = [sysconfig.get_path("purelib"), str(Path(__file__).resolve().parents[1])]
    (Path(site_packages) / BORROWED).write_text("".join(f"{place}\n" for place in borrowed))  # searched after DIR
    package, check = PEERS[args.peer]
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    check += "; from importlib.metadata import version; "
    check += f"print(*(f'{{name}} {{version(name)}}' for name in ('{args.peer}', 'torch')), sep=', ')"
    subprocess.run([python, "-c", check], check=True)


if __name__ == "__main__":
    main()
