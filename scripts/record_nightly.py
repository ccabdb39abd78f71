"""Write the outcome of a part of the nightly ring into docs/reliability.md.

python scripts/record_nightly.py PART passed|failed SECONDS
python scripts/record_nightly.py --commit    # print the commit whose mutations were last tried as a whole
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
_TABLE = re.compile(r"(?<=<!-- nightly -->\n)(.*?)(?=<!-- /nightly -->)", re.DOTALL)


def recorded(page: str, row: tuple[str, ...]) -> str:
    """Return the page with ``row`` (part, date, commit, outcome, minutes) in place of the part's former row.

    >>> before = "<!-- nightly -->\\n| part |\\n|---|\\n| a | old |\\n| b | old |\\n<!-- /nightly -->"
    >>> print(recorded(before, ("a", "new")))
    <!-- nightly -->
    | part |
    |---|
    | a | new |
    | b | old |
    <!-- /nightly -->
    """
    table = _TABLE.search(page)
    if table is None:
        raise SystemExit(f"{PAGE}: has no table between <!-- nightly --> and <!-- /nightly -->")
    head, line, rows = table[0].partition("---|\n")
    kept = {old.split("|")[1].strip(): old for old in rows.splitlines()}
    kept[row[0]] = f"| {' | '.join(row)} |"
    return _TABLE.sub(lambda _: head + line + "\n".join(kept[part] for part in sorted(kept)) + "\n", page)


def last_commit(page: str) -> str | None:
    """Return the commit of which the mutation gate was last run as a whole; None if there was none."""
    found = re.search(r"^\| mutations \| [^|]* \| `?([0-9a-f]{7,40})", page, re.MULTILINE)
    return found[1] if found else None


def main() -> None:
    if sys.argv[1:] == ["--commit"]:
        print(last_commit(PAGE.read_text(encoding="utf-8")) or "HEAD")
        return
    part, outcome, seconds = sys.argv[1:]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    row = (part, f"{datetime.date.today()}", f"`{commit.stdout.strip()}`", outcome, f"{int(seconds) / 60:.0f}")
    PAGE.write_text(recorded(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")


if __name__ == "__main__":
    main()
