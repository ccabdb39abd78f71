"""Write requirements/ci.txt: the versions that CI installs on Linux x86-64 with Python 3.11, each with its hash.

    python scripts/update_lock.py

pip resolves the development extra in a fresh environment, from whatever index it is set up with, and reports what it
would install. The file names versions and hashes and no index, so any index that has these files will do. torch is left
out: its builds differ from index to index (docs/development.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "ci.txt"
NOT_LOCKED = frozenset({"fl-sim", "torch"})
_HEAD = """\
# What CI installs on Linux x86-64 with Python 3.11, besides torch. Made by scripts/update_lock.py; pip checks hashes:
#   pip install --no-deps --require-hashes -r requirements/ci.txt
"""


def lock_of(report: dict[str, Any]) -> str:
    """Return the lock file of a report of ``pip install --report``.

    >>> archive = {"archive_info": {"hashes": {"sha256": "ab12"}}}
    >>> item = {"metadata": {"name": "Six_Pack", "version": "1.0"}, "download_info": archive}
    >>> lock_of({"install": [item]}).splitlines()[-1]
    'six-pack==1.0 --hash=sha256:ab12'
    """
    lines = []
    for item in report["install"]:
        name = item["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        if name not in NOT_LOCKED:
            sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name}=={item['metadata']['version']} --hash=sha256:{sha256}\n")
    return _HEAD + "".join(sorted(lines))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        environment, report = Path(folder) / "venv", Path(folder) / "report.json"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "pip"), "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip>=25,<27"], check=True)
        resolve = ["--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([*pip, *resolve, "pip>=25,<27", "-e", ".[dev]"], cwd=ROOT, check=True)
        LOCK.parent.mkdir(exist_ok=True)
        LOCK.write_text(lock_of(json.loads(report.read_bytes())), encoding="utf-8")
    print(f"wrote {LOCK.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
