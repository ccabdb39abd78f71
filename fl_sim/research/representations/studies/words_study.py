"""The study's attack on word vectors: its three situations (section 1.2) again.

The study's corpora (Anki's sentences, Quora's questions, tweets) are replaced: both parties draw half of the same AG
News texts; they have disjoint halves of it; the attacker has SST-2 instead. Its figures are of one run each.

>>> {name: figure for name, (_, figure) in SITUATIONS.items()}
{'samples': '33 (English), 41 (French)', 'halves': '18', 'another corpus': '0.7'}
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.corpora.labelled import TRAIN
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS
from fl_sim.research.representations.evaluation.word_attack import (
    Setting,
    Texts,
    WordAttack,
    attack_words,
    part_texts,
)
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import estimate, spread
from fl_sim.research.representations.studies.study_pictures import Panel, Picture, curves_of, draw_panels
from fl_sim.research.representations.studies.study_runs import Log, Options, Record, collect, heading, task_file
from fl_sim.research.study_files import markdown_table

SHARES = ("known", "first", "nearest")
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


def reproduce(options: Options, log: Log = lambda line: None) -> Record:
    """Return the three situations as a JSON-ready mapping; layers are measured in the first, the strongest attack."""
    tasks = [
        json.dumps(
            {"situation": name, "attack": asdict(attack), "seed": seed, "source": str(options.source), "texts": TEXTS}
        )
        for name in SITUATIONS
        for attack in (ATTACKS if name == "samples" else (WordAttack(),))
        for seed in options.seeds
    ]
    rows: dict[str, list[Record]] = {name: [] for name in SITUATIONS}
    records = collect(
        _attack, {f"words-{task_file(task)}": task for task in tasks}, options,
        lambda record: f"{record['situation']}, seed {record['seed']}:", log,
    )  # fmt: skip
    for record in records.values():
        rows[record["situation"]] += record["rows"]
    # Both attacks measure vectors without a layer.
    condition = operator.itemgetter("seed", *Setting._fields)
    situations = {name: over_seeds(list({condition(row): row for row in of}.values())) for name, of in rows.items()}
    title = "Study of DPNR (Zouhri and Abecidan 2021), section 1.2"
    return {**heading("words", title, replace(options, full=True)), "texts": TEXTS, "situations": situations}


def _attack(task: str) -> Record:
    """Return the rows of one seed of an attack in a situation."""
    asked = json.loads(task)
    name, seed = asked["situation"], asked["seed"]
    values: Record = {key: tuple(value) if isinstance(value, list) else value for key, value in asked["attack"].items()}
    attack = WordAttack(**values)
    rows = attack_words(*_texts_of(name, Path(asked["source"]), asked["texts"], seed), attack, seed)
    return {"format": RECORD_FORMAT, "situation": name, "seed": seed, "rows": [row.record() for row in rows]}


def as_markdown(table: Record) -> str:
    """Return the situations in Markdown, proven ε first, the study's figure above each table."""
    lines = ["Shares of the user's words that the attacker recovers, in percent. ε is of one word's vector."]
    for name, rows in table["situations"].items():
        parties, published = SITUATIONS[name]
        lines += ["", f"{name}: {parties}. The study, on other corpora, among the 5 nearest: {published}.", ""]
        lines += _share_table(rows, len(table["seeds"]))
    return "\n".join(lines) + "\n"


def draw(table: Record) -> list[Picture]:
    """Return a picture of the share among the 5 nearest against proven ε, one curve per layer."""
    rows = [
        {**row, "label": f"no layer, initial vectors: {row['initial']}" if row["layer"] == "none" else row["layer"]}
        for row in table["situations"]["samples"]
    ]
    panel = Panel("Two draws of half of AG News", curves_of(rows, "label", "epsilon_proven", "nearest"))
    figure = draw_panels([panel], "ε of one word's vector, proven", "words among the 5 nearest, percent")
    words = "Share of words recovered against proven ε, with 95 % intervals; lines: without a layer"
    return [Picture("recovered", words, figure)]


def _texts_of(name: str, source: Path, size: int, seed: int) -> tuple[Texts, Texts]:
    news = TEXT_READERS["ag-news"](source / "ag_news", seed, size).splits[TRAIN].texts
    user, attacker = part_texts(news, "samples" if name == "samples" else "halves", seed)
    if name == "another corpus":
        attacker = list(TEXT_READERS["sst2"](source / "sst2", seed, None).splits[TRAIN].texts)
    return user, attacker


def over_seeds(rows: Sequence[Record]) -> list[Record]:
    """Return a row for each condition: the shares in percent over the seeds, with their intervals."""
    conditions: dict[Setting, list[Record]] = {}
    for row in rows:
        conditions.setdefault(Setting(*(row[name] for name in Setting._fields)), []).append(row)
    summaries = []
    for setting, of_setting in conditions.items():
        summary = {**setting._asdict(), **{name: of_setting[0][name] for name in ("epsilon_proven", "epsilon_claimed")}}
        for share in SHARES:
            errors = [100 * share_error(row[share], row["words"]) for row in of_setting]
            summary[share] = estimate([100 * row[share] for row in of_setting], errors)
        summaries.append(summary | {"words": [row["words"] for row in of_setting]})
    return summaries


def _share_table(rows: Sequence[Record], seeds: int) -> list[str]:
    """Return a row of Markdown for each condition, proven ε of a word's vector first."""
    names = ["ε proven", "ε claimed", "layer", "width", "initial vectors", "known", "first", "among 5 nearest"]
    cells = (
        [
            *(format_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed")),
            *(str(row[name]) for name in ("layer", "width", "initial")),
            *(spread(row[share], seeds, 2) for share in SHARES),
        ]
        for row in rows
    )
    return markdown_table(names, cells)
