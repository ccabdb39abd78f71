"""The study's three attacks on word vectors (section 1.2) again, on corpora that can be had.

Its corpora (Anki's sentences, Quora's questions, tweets) are replaced: both parties draw half of the same AG News
texts; they have disjoint halves of it; the attacker has SST-2 instead. Its figures are of one run each.

>>> {name: figure for name, (_, figure) in SITUATIONS.items()}
{'samples': '33 (English), 41 (French)', 'halves': '18', 'another corpus': '0.7'}
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from fl_sim.research.representations.corpora.labelled import TRAIN
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, draw_panels
from fl_sim.research.representations.studies.study_tables import Log, Options, heading
from fl_sim.research.representations.studies.words.word_recovery import (
    Texts,
    WordAttack,
    attack_over_seeds,
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
    situations = {}
    for name in SITUATIONS:
        log(f"{name}:")
        rows = []
        for attack in ATTACKS if name == "samples" else (WordAttack(),):
            rows += attack_over_seeds(partial(_texts, name, options), attack, options.seeds, log)
        situations[name] = over_seeds(list({_key(row): row for row in rows}.values()))
    title = "Study of DPNR (Zouhri and Abecidan 2021), section 1.2"
    return {**heading("words", title, replace(options, full=True)), "texts": TEXTS, "situations": situations}


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


def _texts(name: str, options: Options, seed: int) -> tuple[Texts, Texts]:
    news = TEXT_READERS["ag-news"](options.source / "ag_news", seed, TEXTS).splits[TRAIN].texts
    user, attacker = part_texts(news, "samples" if name == "samples" else "halves", seed)
    if name == "another corpus":
        attacker = list(TEXT_READERS["sst2"](options.source / "sst2", seed, None).splits[TRAIN].texts)
    return user, attacker
