"""The study's three attacks on word vectors (section 1.2) again, on corpora that can be had.

Its corpora (Anki's sentences, Quora's questions, tweets) are replaced: both parties draw half of the same AG News
texts; they have disjoint halves of it; the attacker has SST-2 instead. Its figures are of one run each.

>>> {name: figure for name, (_, figure) in SITUATIONS.items()}
{'samples': '33 (English), 41 (French)', 'halves': '18', 'another corpus': '0.7'}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fl_sim.research.representations.corpora.labelled import TRAIN
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.studies.experiment_grid import Observer, Record, run_tasks
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, draw_panels
from fl_sim.research.representations.studies.study_tables import Log, Options, collect_stored, digest, heading
from fl_sim.research.representations.studies.words.word_recovery import (
    Texts,
    WordAttack,
    attack_words,
    markdown_table,
    over_seeds,
    part_texts,
)

TEXTS = 20_000
ATTACKS = (
    WordAttack(layer="dpnr", epsilons=(1.0, 10.0, 100.0)),
    WordAttack(layer="l1", epsilons=(10.0, 100.0, 1000.0, 10_000.0)),
)
SITUATIONS = {
    "samples": ("two draws of half of AG News", "33 (English), 41 (French)"),
    "halves": ("disjoint halves of AG News", "18"),
    "another corpus": ("the user has half of AG News, the attacker SST-2", "0.7"),
}
"""What the parties have, and the study's share of words among the 5 nearest, in percent."""


def reproduce(options: Options, log: Log = lambda line: None) -> dict[str, Any]:
    """Return the three situations as a JSON-ready mapping; layers are measured in the first, the strongest attack."""
    tasks = [
        json.dumps(
            {"situation": name, "attack": asdict(attack), "seed": seed, "source": str(options.source), "texts": TEXTS}
        )
        for name in SITUATIONS
        for attack in (ATTACKS if name == "samples" else (WordAttack(),))
        for seed in options.seeds
    ]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SITUATIONS}
    for record in _records(tasks, options, log):
        rows[record["situation"]] += record["rows"]
    situations = {name: over_seeds(list({_key(row): row for row in of_one}.values())) for name, of_one in rows.items()}
    title = "Study of DPNR (Zouhri and Abecidan 2021), section 1.2"
    return {**heading("words", title, replace(options, full=True)), "texts": TEXTS, "situations": situations}


def _records(tasks: Sequence[str], options: Options, log: Log) -> list[Record]:
    """Return the record of each task; those of the work folder are not run again."""

    def run_missing(missing: Sequence[int], observe: Observer) -> None:
        run_tasks(_attack, [tasks[number] for number in missing], options.jobs, observe)

    def words(record: Record) -> str:
        return f"{record['situation']}, seed {record['seed']}:"

    return collect_stored([f"words-{digest(task)}.json" for task in tasks], run_missing, options.work, words, log)


def _attack(task: str) -> Record:
    """Return the rows of one seed of an attack in a situation."""
    asked = json.loads(task)
    name, seed = asked["situation"], asked["seed"]
    attack = WordAttack(**{key: _tuple(value) for key, value in asked["attack"].items()})
    rows = attack_words(*_texts(name, Path(asked["source"]), asked["texts"], seed), attack, seed)
    return {"format": RECORD_FORMAT, "situation": name, "seed": seed, "rows": rows}


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def as_markdown(table: dict[str, Any]) -> str:
    """Return the situations in Markdown, proven ε first, the study's figure above each table."""
    lines = ["Shares of the user's words that the attacker recovers, in percent. ε is of one word's vector."]
    for name, rows in table["situations"].items():
        parties, published = SITUATIONS[name]
        lines += ["", f"{name}: {parties}. The study, on other corpora, among the 5 nearest: {published}.", ""]
        lines += markdown_table(rows, len(table["seeds"]))
    return "\n".join(lines) + "\n"


def draw(table: dict[str, Any]) -> list[Picture]:
    """Return a picture of the share among the 5 nearest against proven ε, one curve per layer."""
    rows = table["situations"]["samples"]
    curves = [
        Curve(f"no layer, initial vectors: {row['initial']}", (), (row["nearest"],))
        for row in rows
        if row["layer"] == "none"
    ]
    for layer in dict.fromkeys(row["layer"] for row in rows if row["layer"] != "none"):
        of_layer = sorted((row for row in rows if row["layer"] == layer), key=lambda row: row["epsilon_proven"])
        x = tuple(row["epsilon_proven"] for row in of_layer)
        curves.append(Curve(layer, x, tuple(row["nearest"] for row in of_layer)))
    panel = Panel("Two draws of half of AG News", tuple(curves))
    figure = draw_panels([panel], "ε of one word's vector, proven", "words among the 5 nearest, percent")
    words = "Share of words recovered against proven ε, with 95 % intervals; lines: without a layer"
    return [Picture("recovered", words, figure)]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a row: both attacks measure vectors without a layer."""
    return tuple(row[name] for name in ("seed", "width", "initial", "layer", "epsilon"))


def _texts(name: str, source: Path, size: int, seed: int) -> tuple[Texts, Texts]:
    news = TEXT_READERS["ag-news"](source / "ag_news", seed, size).splits[TRAIN].texts
    user, attacker = part_texts(news, "samples" if name == "samples" else "halves", seed)
    if name == "another corpus":
        attacker = list(TEXT_READERS["sst2"](source / "sst2", seed, None).splits[TRAIN].texts)
    return user, attacker
