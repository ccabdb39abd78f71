"""Write the model card of a trained pipeline: its use, training data, terms and evaluation.

>>> from spacy.lang.en import English
>>> from fl_sim.data_prep.taggers.spacy_tagger import without_plugins
>>> with without_plugins():
...     pipeline = English()
>>> training = {"command": "make", "seed": 0, "sentences": 1, "teacher": None}
>>> describe(pipeline, [], training, scores={})
>>> model_card(pipeline.meta, sha256="0" * 64).splitlines()[0]
'# en_fl_sim_ner 2.0.0'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spacy.language import Language

from fl_sim.data_prep.ner.open_sets import LABELS, OPEN_SETS, TRAIN, NamedPart

NAME = "fl_sim_ner"
"""The pipeline's name; with its language it is ``en_fl_sim_ner``, the folder that ships."""

VERSION = "2.0.0"
LICENCE = "CC BY-SA 4.0"

_DOMAINS = {
    ("wikigold", "test"): "Wikipedia, documents held out",
    ("wnut17", "test"): "web forums and comments, held out; rare names only",
    ("btc", "test"): "tweets of another region and year (file h)",
    ("uner_ewt", "test"): "web text: blogs, reviews, mail; held out",
    ("uner_pud", "test"): "news and Wikipedia, out of domain: nothing of PUD is trained on",
    ("synthetic", "validation"): "our generator's text about people it never trained on",
}
_FIGURES = ("precision", "recall", "f1", "sensitive_sentences")


def describe(
    pipeline: Language,
    parts: Iterable[NamedPart],
    training: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]],
) -> None:
    """Fill in the pipeline's meta data.

    Args:
        pipeline: trained.
        parts: of the sets.
        training: how it was trained.
        scores: set → part → metric → value.
    """
    used = [part for part in parts if part.part == TRAIN]
    named = {part.name for part in used}
    pipeline.meta.update(
        {
            "name": NAME,
            "version": VERSION,
            "description": "Names of people, places, organisations and others in English; small, trained on open sets.",
            "author": "fl_sim maintainers",
            "email": "",
            "url": "",
            "license": LICENCE,
            "sources": [
                {"name": each.name, "author": each.source, "license": each.licence}
                for each in OPEN_SETS
                if each.name in named
            ],
            "training": {**training, "sets": {part.name: len(part.sentences) for part in used}},
            "performance": {name: dict(figures) for name, figures in scores.items()},
        }
    )


def model_card(meta: Mapping[str, Any], sha256: str) -> str:
    """Return the card as Markdown, from the meta data of :func:`describe` and the checksum of the weights."""
    sources = "\n".join(f"- **{each['name']}** ({each['license']}): {each['author']}" for each in meta["sources"])
    sets = ", ".join(f"{name} {count:,}" for name, count in meta["training"]["sets"].items())
    return f"""# {meta["lang"]}_{meta["name"]} {meta["version"]}

A spaCy pipeline that marks names in English sentences as {", ".join(LABELS)} (the scheme of CoNLL-2003). It is what
`fl-sim prepare` takes when nothing better is installed, so that a tagger is there without a download.

- **Use**: `fl-sim prepare ... --tagger spacy:{meta["lang"]}_{meta["name"]}`, or `spacy.load` on this folder. With
  `--high-recall` it is united with the rules on capital letters and the patterns, which is what we recommend for
  privacy: what a tagger misses is protected by the robust ε alone (docs/privacy.md).
- **Not for**: other languages, text without any capital letter (recall falls), or deciding that a text names nobody.
- **Made by**: `{meta["training"]["command"]}` with conf/ner.cfg, seed {meta["training"]["seed"]}. Training sentences
  of each set: {sets}; {meta["training"]["sentences"]:,} are learnt from, after selection, repetition and augmentation.
- **Checksum** of the weights (`ner/model` and `vocab/vectors`): `{sha256}`.
  No sentence, no list of words and no code is in this folder.

## Terms

**The weights, `ner/model` and `vocab/vectors`, are under {LICENCE}**
(https://creativecommons.org/licenses/by-sa/4.0/). Whether weights are an adaptation of the text that they were trained
on is unsettled; one of the sets is under share-alike, so we take the careful view. The sets, changed by us (labels
mapped to four, parts held out, names exchanged and case dropped in copies), with thanks to their authors:

{sources}
- **synthetic**, the corpus that ships with fl_sim (Apache-2.0); its names are Faker's (MIT licence)
{_teacher_terms(meta["training"]["teacher"])}
Everything else in this folder is under Apache-2.0, as the project.

## How good it is

Exact match of place and label, on what was held out; a set without MISC is scored without MISC. *Flagged* is the share
of the sentences with a gold name in which anything was found.

{_score_table(meta["performance"])}

More, with intervals and beside other taggers, on sets that it never saw (CoNLL-2003, SEC filings): docs/ner.md.
"""


def _teacher_terms(teacher: Mapping[str, Any] | None) -> str:
    if not teacher:
        return ""
    return f"""
**`vocab/vectors`** is a table of {teacher["rows"]:,} rows and {teacher["columns"]} columns that we fitted, from
nothing, to resemble what our training made of {teacher["words"]:,} word embeddings of
sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0; SHA-256 of its weights `{teacher["sha256"][:16]}…`). That teacher
was trained by others, on public text of many origins; none of its weights is here.
"""


def _score_table(performance: Mapping[str, Any]) -> str:
    rows = ["| set, part | what | names | precision | recall | F1 | flagged |", "|---|---|---|---|---|---|---|"]
    for (name, part), domain in _DOMAINS.items():
        figures = performance.get(name, {}).get(part)
        if figures:
            shown = " | ".join(_share(figures[figure]) for figure in _FIGURES)
            rows.append(f"| {name}, {part} | {domain} | {int(figures['mentions']):,} | {shown} |")
    return "\n".join(rows)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
