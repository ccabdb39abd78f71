"""``fl-sim check``: run somebody's Flower app with neighbouring users, and say what its ε is worth (docs/check.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fl_sim.api import checks
from fl_sim.cli.flags import check_writable, print_json
from fl_sim.cli.from_signature import FILE, FOLDER, options_of
from fl_sim.cli.progress_bar import say
from fl_sim.cli.verbs import Verb, as_json, quiet

EXIT_FOUND = 3


@click.command(cls=Verb)
@click.argument("folder", type=FOLDER, metavar="DIR")
@options_of(checks.check, but=("folder", "say"))
@click.option("--fix", is_flag=True, help="Also print the patch that puts fl_sim.flower in, and check the result.")
@click.option(
    "--picture", type=FILE, metavar="FILE", help="Also draw a user's effect beside what ε allows: .svg, .png."
)
@as_json
@quiet
def check(folder: Path, fix: bool, picture: Path | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Run the Flower app in DIR with neighbouring users, and compare what it releases with the ε that it states.

    DIR is not changed, and the app has no network. Exit code 3 means that an ε does not hold, or that something leaves
    beside it; 2 that the app cannot be checked; 0 that nothing was found.
    """
    check_writable("--picture", picture)

    def tell(words: str) -> None:
        say(words, quiet)

    found = checks.check(folder, say=tell, **options)
    fixed = checks.repaired(folder, found, say=tell, **options) if fix else None
    if as_json:
        print_json(found.record() | ({} if fixed is None else {"fix": fixed.record()}))
    else:
        print("\n\n".join([found.text(), *([] if fixed is None else [fixed.text()])]))
    if picture is not None:
        from fl_sim.reporting.plots import save

        save(found.picture(), picture)
    return 0 if found.holds else EXIT_FOUND
