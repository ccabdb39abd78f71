"""The attack on word vectors, on files of texts: `fl-sim represent words`.

>>> numbers("--seeds", "0,1", int)
(0, 1)
>>> numbers("--seeds", "0,x", int)
Traceback (most recent call last):
fl_sim.config.ConfigError: --seeds is '0,x'; allowed: numbers of at least 0, separated by commas
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from fl_sim.cli.corpus_flags import cleaning_of
from fl_sim.config import ConfigError
from fl_sim.data_prep.readers.cleaning import MEANING, Cleaning, Note, Reading
from fl_sim.data_prep.readers.tables import require_columns
from fl_sim.data_prep.records import CorpusError
from fl_sim.research.representations.client.local_privacy import LayerName
from fl_sim.research.representations.corpora.own_table import read_rows, with_clean_text
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT, describe_environment
from fl_sim.research.representations.studies.words.word_recovery import (
    PARTS,
    Texts,
    WordAttack,
    attack_over_seeds,
    markdown_table,
    over_seeds,
    part_texts,
)

Number = TypeVar("Number", int, float)
_LAYERS = ("none", "dpnr", "l1", "l2")


def attack_files(args: argparse.Namespace) -> dict[str, Any]:
    """Return the record of the attack that the flags describe.

    Raises:
        ConfigError, CorpusError: a flag or a file does not fit; the message names it.
    """
    if args.parts not in PARTS:
        raise ConfigError(f"--parts is {args.parts!r}; allowed: {', '.join(PARTS)}")
    if args.layer not in _LAYERS:
        raise ConfigError(f"--layer is {args.layer!r}; allowed: {', '.join(_LAYERS)}")
    epsilons = () if args.epsilons is None else numbers("--epsilons", args.epsilons, float)
    widths, seeds = numbers("--widths", args.widths, int), numbers("--seeds", args.seeds, int)
    attack = WordAttack(widths, cast(LayerName, args.layer), epsilons, args.least, args.epochs)
    cleaning = cleaning_of(args)
    attacker: dict[str, Any] = {"parts": args.parts}
    own, own_counts = _texts(args.user, args.text, cleaning)
    others = None
    if args.attacker is not None:
        others, other_counts = _texts(args.attacker, args.text, cleaning)
        attacker = {"file": args.attacker.name, "texts": len(others), "counts": other_counts}

    def texts(seed: int) -> tuple[Texts, Texts]:
        return part_texts(own, args.parts, seed) if others is None else (own, others)

    started, cpu = time.perf_counter(), time.process_time()
    rows = attack_over_seeds(texts, attack, seeds, lambda line: print(line, file=sys.stderr, flush=True))
    return {
        "format": RECORD_FORMAT,
        "user": {"file": args.user.name, "texts": len(own), "counts": own_counts},
        "attacker": attacker,
        "seeds": list(seeds),
        "least": args.least,
        "epochs": args.epochs,
        "rows": over_seeds(rows),
        "values": rows,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "environment": describe_environment(),
    }


def summary(record: dict[str, Any]) -> str:
    """Return the record's shares as a Markdown table, and its time."""
    head = "Words recovered, in percent; ε is of one word's vector, a sentence of w words sends w of them."
    table = markdown_table(record["rows"], len(record["seeds"]))
    bad = [
        f"{record[party]['file']}: {meaning}: {count:,}"
        for party in ("user", "attacker")
        for meaning, count in record[party].get("counts", {}).items()
    ]
    time_line = f"Time {record['seconds']:.1f} s, {record['cpu_seconds']:.1f} s of one core"
    return "\n".join([head, "", *table, "", *bad, time_line])


def numbers(flag: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Return the different numbers of a flag, in order; raise ConfigError for another text."""
    try:
        values = tuple(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if not values or any(not (math.isfinite(value) and value >= 0) for value in values):
        raise ConfigError(f"{flag} is {text!r}; allowed: numbers of at least 0, separated by commas")
    return values


def _texts(path: Path, column: str, cleaning: Cleaning) -> tuple[list[str], dict[str, int]]:
    """Return the texts of a file as `fl-sim prepare` cleans them, and how many were bad, by what was done."""
    reading = Reading(cleaning)
    try:
        rows, present = read_rows(path, reading)
        require_columns([column], present, str(path))
        texts = [str(row[column]) for row in with_clean_text(path, rows, column, reading)]
    except CorpusError as error:
        raise CorpusError(str(error).replace("prepare it with", "give")) from error
    return texts, {MEANING[Note(name)]: count for name, count in reading.notes.items()}
