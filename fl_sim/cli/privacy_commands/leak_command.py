"""Attack finished runs: what their models give away of users and sentences, beside what ε allows any attack.

Exit code 1 means that an attack contradicts what a run's ledger proves (docs/leakage.md).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_sim.auditing.leakage.leak import Leakage

EXIT_BEYOND = 1

_OPTIONS = ("seed", "max_users", "sentences_per_user", "secrets", "entities", "candidates", "texts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim leak``."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run folder with a model")
    parser.add_argument(
        "--attacks",
        nargs="+",
        metavar="NAME",
        help="users, sentences, canaries, entities (default: all that make sense for a run)",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the attacked units and intervals (default 0)")
    parser.add_argument("--max-users", type=int, metavar="N", help="attack at most N users of each side (default 500)")
    parser.add_argument(
        "--sentences-per-user", type=int, metavar="N", help="read at most N sentences of a user (default 20)"
    )
    parser.add_argument(
        "--secrets", type=int, metavar="N", help="rank each canary among N secrets of its distribution (default 1000)"
    )
    parser.add_argument("--entities", type=int, metavar="N", help="attack at most N names (default 200)")
    parser.add_argument("--candidates", type=int, metavar="N", help="rank each name among N of its kind (default 50)")
    parser.add_argument("--texts", type=int, metavar="N", help="sample N texts to find names in them (default 1000)")
    parser.add_argument(
        "--reference", action="append", default=[], metavar="RUN",
        help="a run on other users' text, whose model is the reference; may be given several times (default: the model "
        "with which the attacked run began)",
    )  # fmt: skip
    parser.add_argument(
        "--raw", metavar="CORPUS", help="attack with this text: the corpus from which the run's was de-identified"
    )
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="keep results here, and go on from those kept")
    parser.add_argument("--show-names", action="store_true", help="name the most exposed users; the list is private")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with pictures, one file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Attack the runs and print the result; return 1 if an attack contradicts a proof, else 0."""
    from fl_sim.api.leakage import leak
    from fl_sim.cli.counting import counting
    from fl_sim.private_files import owner_only
    from fl_sim.storage.run_folder import encode, replace_file

    if args.html is not None:
        _check_page(args.html)
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    found = leak(
        args.runs,
        attacks=args.attacks,
        raw=args.raw,
        out=args.out,
        progress=lambda words: counting(words, args.quiet),
        references=tuple(args.reference),
        show_names=args.show_names,
        **options,
    )
    print(json.dumps(encode(found.record()), ensure_ascii=False) if args.json else _text(found))
    if args.html is not None:
        with owner_only():
            replace_file(args.html, found.page().encode())
    for attack in found.in_state("beyond"):
        print(
            f"fl-sim leak: {attack} is BEYOND ITS BOUND: what the ledger proves is not so. Either the run was not what "
            "its ledger says, or members and held-out users differ in more than training (docs/leakage.md).",
            file=sys.stderr,
        )
    return 0 if found.holds else EXIT_BEYOND


def _check_page(path: Path) -> None:
    """Raise ConfigError, before the attacks, if no file can be written there."""
    from fl_sim.config import ConfigError

    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"html is {path}; allowed: a file in a folder that exists and can be written")


def _text(found: Leakage) -> str:
    """Return a table per run."""
    from fl_sim.auditing.leakage.leak import PRIVATE

    lines: list[str] = []
    for one in found.runs:
        lines += [*_head(one), "", *_table(one["attacks"]), ""]
    return "\n".join([*lines, *_MEANING, "", PRIVATE])


_MEANING = (
    "TPR: share of members found, at a share of non-members taken for members; – for too few non-members.",
    "≤: what the ledger allows any attack on one unit, in or out. An area of 0.5 is guessing. Intervals: 95 %.",
)
_COLUMNS = (11, 22, 19, 10, 19, 10, 19, 10)


def _head(one: dict[str, Any]) -> list[str]:
    from fl_sim.formats import format_delta, format_epsilon, printable

    figures = one["epsilon"].items()
    epsilon = ", ".join(f"{name.replace('epsilon', 'ε')} {format_epsilon(float(value))}" for name, value in figures)
    guarantee = f"; {epsilon.replace('_', ' ')} at δ = {format_delta(one['delta'])}" if epsilon else ""
    raw = "; attacked with raw text" if one["raw_text"] else ""
    return [f"{printable(one['run'])}: {one['strategy']}, {one['rounds']} rounds{guarantee}{raw}"]


def _table(attacks: dict[str, Any]) -> list[str]:
    """Return a line per attack, with others for what needs words."""
    lines = [_cells("attack", "area under curve", "TPR at 0.1 %", "", "TPR at 1 %", "", "advantage", "", "verdict")]
    for name, record in attacks.items():
        if "left_out" in record:
            lines.append(_cells(name, f"left out: {record['left_out']}"))
        elif "auc" in record:
            lines.append(_row(name, record))
        else:
            words = _canary_words(record) if name == "canaries" else _entity_words(record)
            lines += [_cells(name if number == 0 else "", line) for number, line in enumerate(words)]
        lines += [_cells("", remark) for remark in _remarks(record)]
    return lines


def _cells(*cells: str) -> str:
    widths = (*_COLUMNS, 0)
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)).rstrip()


def _row(name: str, record: dict[str, Any]) -> str:
    bound, area = record["bound"], record["auc"]
    cells = [f"{area['value']:.3f} ({area['low']:.3f}–{area['high']:.3f})"]
    for rate in ("0.001", "0.01"):
        cells += [_percent(record["tpr_at_fpr"][rate]), _at_most(bound["largest_tpr_at_fpr"][rate])]
    cells += [_percent(record["advantage"]), _at_most(bound["largest_advantage"])]
    return _cells(name, *cells, record["verdict"]["state"])


def _canary_words(record: dict[str, Any]) -> list[str]:
    """Return the exposure of canaries by owner, in lines."""
    lines = []
    for group in record["groups"]:
        if group["repetitions"] is None and group["owner"] is not None:
            which = "included" if group["included"] else "left out"
            whose = "a user's" if group["owner"] == "user" else "an entity's"
            lines.append(f"exposure {_bits(group['exposure'])} of {group['canaries']} canaries {which}, {whose}")
    state = record["verdict"]["state"]
    return [*lines, f"{record['exposure_of_left_out']:.2f} bits are chance; verdict: {state}"]


def _bits(figure: dict[str, float | None]) -> str:
    if figure["value"] is None:
        return "–"
    return f"{figure['value']:.2f} bits ({figure['low']:.2f}–{figure['high']:.2f})"


def _entity_words(record: dict[str, Any]) -> list[str]:
    """Return the three attacks on names, a line each, and the names where they were asked for."""
    from fl_sim.formats import printable

    written, completed, told = record["extraction"], record["reconstruction"], record["inference"]
    ahead, guessed = told["groups"][0], completed["groups"][0]
    lines = [
        f"{written['model']['private_names']:,} of {record['private_entities']:,} private names in "
        f"{written['samples']:,} texts, {written['initial_model']['private_names']:,} in as many at the start",
        f"{_percent(guessed['ranked'])} of masked names completed, {_percent(guessed['initial_ranked'])} at the start",
        f"true name before {_percent(ahead['ahead'])} of {told['candidates']} candidates, "
        f"{_percent(ahead['initial_ahead'])} at the start; 50 % is chance",
    ]
    shown = [*written.get("extracted_names", ()), *completed.get("reconstructed_names", ())]
    return [*lines, *([f"names: {printable(', '.join(shown))}"] if shown else [])]


def _remarks(record: dict[str, Any]) -> list[str]:
    """Return what a reader of the row must know, a line each."""
    from fl_sim.formats import printable

    remarks = []
    if "members" in record:
        count = f"{record['members']:,} members, {record['non_members']:,} non-members"
        remarks.append(f"{count}; bound of {record['bound']['unit']}")
    verdict = record.get("verdict") or {}
    if verdict.get("reason"):
        remarks.append(f"not tested: {verdict['reason']}")
    if verdict.get("state") == "above":
        remarks.append("above its bound if one model's scores are independent of each other, which is not proven")
    exposed = record.get("most_exposed", ())
    return [*remarks, *(f"{printable(row['user'])}: {row['score']:.3f}" for row in exposed)]


def _percent(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "–"
    return f"{100 * figure['value']:.1f} % ({100 * figure['low']:.0f}–{100 * figure['high']:.0f})"


def _at_most(bound: float) -> str:
    from fl_sim.formats import round_up

    return "no bound" if bound >= 1 else f"≤ {round_up(100 * bound, 3)} %"
