"""``fl-sim audit`` and ``leak``: attack a mechanism or finished runs, beside their ε.

Exit code 1 means that an attack refuted an ε that our accountant proves (docs/audit.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from fl_sim.api import audits
from fl_sim.api.runs import open_run
from fl_sim.cli.flags import PAGE, check_writable, entity_bound, print_json
from fl_sim.cli.flags import mechanism as mechanism_flags
from fl_sim.cli.from_signature import FILE, options_of
from fl_sim.cli.verbs import Verb, VerbGroup, as_json, quiet
from fl_sim.files import replace_private_file
from fl_sim.formats import format_figure
from fl_sim.strategies.accounting.paper_model import PublishedSettings

if TYPE_CHECKING:
    from fl_sim.auditing.cases import Finding

EXIT_REFUTED = 1
_VERDICT = {True: "holds", False: "REFUTED"}


@click.group(cls=VerbGroup)
def audit() -> None:
    """Attack a mechanism: a lower bound on ε, beside the claimed and the proven ε.

    Exit code 1 means that an attack refuted a proven ε (docs/audit.md).
    """


@audit.command()
@mechanism_flags
@options_of(audits.audit, but=("strategy", "noise_multiplier", "entity", "progress"))
@entity_bound()
@as_json
def mechanism(as_json: bool, **settings: Any) -> int:
    """Attack user-entity or user-level privacy on its worst-case corpora."""
    findings = audits.audit(progress=_progress, **settings)
    attacked = {name: settings[name] for name in ("strategy", "seed")}
    return _show_findings(attacked, findings, as_json)


@audit.command()
@options_of(PublishedSettings)
@options_of(audits.audit_published, but=("settings", "progress"))
@as_json
def published(as_json: bool, **settings: Any) -> int:
    """Attack the UeDP paper's algorithm, as stated or as its code ran."""
    of_paper = {name: settings.pop(name) for name in PublishedSettings.__dataclass_fields__}
    findings = audits.audit_published(PublishedSettings(**of_paper), progress=_progress, **settings)
    strategy = "published-as-coded" if settings["as_coded"] else "published"
    return _show_findings({"strategy": strategy, "seed": settings["seed"]}, findings, as_json)


@audit.command()
@options_of(audits.audit_table, but=("progress",))
@as_json
def table(as_json: bool, **settings: Any) -> int:
    """Attack every mechanism with an entity that 1, 15 or all users mention."""
    from fl_sim.auditing.cases import table_of

    found = audits.audit_table(progress=lambda name: print(name, file=sys.stderr), **settings)
    report = {"seed": settings["seed"], "audits": [finding.record() for finding in found]}
    return _show(report, as_json, table_of(found), all(finding.holds for finding in found))


@audit.command("one-run")
@options_of(audits.audit_one_run, but=("folder",))
@as_json
def one_run(as_json: bool, **settings: Any) -> int:
    """Plant canary users in one real training."""
    with TemporaryDirectory() as folder:
        found = audits.audit_one_run(folder, **settings)
    return _show(found.record(), as_json, _lines(found.record()), found.holds)


@audit.command()
@options_of(audits.audit_real_rounds, but=("progress",))
@as_json
def rounds(as_json: bool, **settings: Any) -> int:
    """Train real models with units of random gradients."""
    from fl_sim.auditing.real_rounds.canary_cases import table_of

    found = audits.audit_real_rounds(progress=_progress, **settings)
    report = {"seed": settings["seed"], "audits": [audit.record() for audit in found]}
    return _show(report, as_json, table_of(found), all(audit.holds for audit in found))


@audit.command()
@options_of(audits.audit_sensitivity, but=("progress",))
@as_json
def sensitivity(as_json: bool, **settings: Any) -> int:
    """Compare real rounds on adjacent corpora with their bound."""
    found = audits.audit_sensitivity(progress=_progress, **settings)
    text = "".join(f"{one.name:<34}{one.length:<12.6g}of {one.bound:<12.6g}{_VERDICT[one.holds]}\n" for one in found)
    report = settings | {"rounds": [one.record() for one in found]}
    return _show(report, as_json, text, all(one.holds for one in found))


@audit.command()
@options_of(audits.audit_ledgers, but=("progress",))
@as_json
def ledger(runs: tuple[Path, ...], seed: int, as_json: bool) -> int:
    """Check the ledgers of runs against their records and metrics."""
    found = audits.audit_ledgers(runs, seed=seed, progress=_progress)
    lines = []
    for audit in found:
        lines.append(f"{audit.folder}\n")
        lines += [f"  {check.name:<34}{_VERDICT[check.holds]:<9}{check.detail}\n" for check in audit.checks]
    report = {"seed": seed, "ledgers": [audit.record() for audit in found]}
    return _show(report, as_json, "".join(lines), all(audit.holds for audit in found))


def _show_findings(attacked: dict[str, object], findings: list[Finding], as_json: bool) -> int:
    """Print the findings with what was attacked; return the exit code."""
    records = [finding.record() for finding in findings]
    text = "".join(f"{_lines(record)}\n" for record in records)
    return _show(attacked | {"audits": records}, as_json, text, all(finding.holds for finding in findings))


def _show(record: Mapping[str, object], as_json: bool, text: str, holds: bool) -> int:
    """Print the record as JSON or the text; return the exit code."""
    print_json(record) if as_json else print(text, end="")
    return 0 if holds else EXIT_REFUTED


def _progress(name: str) -> None:
    print(f"auditing {name}", file=sys.stderr)


def _lines(record: Mapping[str, object]) -> str:
    return "".join(f"{name:<24}{format_figure(name, value)}\n" for name, value in record.items() if value is not None)


@click.command(cls=Verb)
@options_of(audits.leak, but=("progress", "say"))
@click.option("--html", type=FILE, metavar="FILE", help="Also write a page with pictures, one file.")
@as_json
@quiet
def leak(runs: tuple[Path, ...], html: Path | None, as_json: bool, quiet: bool, **options: Any) -> int:
    """Attack finished runs: what their models give away of users and names, beside what ε allows any attack.

    Exit code 1 means that an attack reached more than a run's ledger allows (docs/audit.md).
    """
    from fl_sim.cli.progress_bar import counting, say

    check_writable("--html", html, begins=PAGE)
    for path in runs:
        open_run(path)  # a folder that is none is refused before libraries are imported for seconds
    from fl_sim.auditing.leakage.leak_words import leak_text

    found = audits.leak(
        runs, progress=lambda words: counting(words, quiet), say=lambda words: say(words, quiet), **options
    )
    print_json(found.record()) if as_json else print(leak_text(found))
    if html is not None:
        replace_private_file(html, found.page().encode())
    for state, words in _FAILS.items():
        for attack in found.in_state(state):
            print(f"fl-sim leak: {attack} is {words} (docs/audit.md).", file=sys.stderr)
    return 0 if found.holds else EXIT_REFUTED


_FAILS = {
    "beyond": "BEYOND ITS BOUND: what the ledger proves is not so. Either the run was not what its ledger says, or "
    "members and held-out users differ in more than training",
    "above": "ABOVE ITS BOUND at the lower end of its interval: what the ledger proves is not so, if the scores of one "
    "model are independent of each other. Train again with another seed, and attack that run",
}
