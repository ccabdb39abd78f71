"""``fl-sim leak``: attack finished runs, beside what ε allows any attack.

Exit code 1 means that an attack reached more than a run's ledger allows (docs/audit.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fl_sim.api import audits
from fl_sim.api.runs import open_run
from fl_sim.cli.flags import print_json
from fl_sim.cli.from_signature import FILE, options_of
from fl_sim.cli.progress_bar import counting, say
from fl_sim.cli.verbs import Verb, as_json, quiet
from fl_sim.cli.written_files import check_writable
from fl_sim.files import replace_private_file
from fl_sim.reporting.leak_words import leak_text

EXIT_BEYOND = 1


@click.command(cls=Verb)
@options_of(audits.leak, but=("progress", "say"))
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page with pictures, one file.")
@as_json
@quiet
def leak(runs: tuple[Path, ...], html: Path | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Attack finished runs: what their models give away of users and names, beside what ε allows any attack.

    Exit code 1 means that an attack reached more than a run's ledger allows (docs/audit.md).
    """
    check_writable("--html", html)
    for path in runs:
        open_run(path)  # a folder that is none is told before libraries are imported for seconds
    found = audits.leak(
        runs, progress=lambda words: counting(words, quiet), say=lambda words: say(words, quiet), **options
    )
    print_json(found.record()) if as_json else print(leak_text(found.record()))
    if html is not None:
        replace_private_file(html, found.page().encode())
    for state, words in _FAILS.items():
        for attack in found.in_state(state):
            print(f"fl-sim leak: {attack} is {words} (docs/audit.md).", file=sys.stderr)
    return 0 if found.holds else EXIT_BEYOND


_FAILS = {
    "beyond": "BEYOND ITS BOUND: what the ledger proves is not so. Either the run was not what its ledger says, or "
    "members and held-out users differ in more than training",
    "above": "ABOVE ITS BOUND at the lower end of its interval: what the ledger proves is not so, if the scores of one "
    "model are independent of each other. Train again with another seed, and attack that run",
}
