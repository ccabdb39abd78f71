"""Finish a trained pipeline: drop the words of its training data, measure it, and write its model card.

This is the last step of ``project.yml``.

>>> training = {"seed": 0, "sentences": 1, "teacher": None, "sets": {"wikigold": 1}}
>>> meta = {"lang": "en", **described(training, scores={})}
>>> model_card(meta, sha256="0" * 64).splitlines()[0]
'# en_fl_sim_ner 2.0.0'
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.util import load_model, load_model_from_config

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.manifest import fingerprint_of, record_of
from fl_sim.data_prep.tagger_evaluation import evaluate
from fl_sim.data_prep.taggers.spacy_tagger import SpacyTagger
from tools.ner.distillation import hashed_vectors
from tools.ner.open_sets import LABELS, OPEN_SETS, TRAIN, NamedPart, read_open_sets, synthetic_parts
from tools.ner.training_data import RECORD

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

Scores = dict[str, dict[str, dict[str, float | None]]]
"""Set → part → figure → value; ``mentions`` is the number of gold mentions."""


def finish(trained: Path, record: Mapping[str, Any], parts: Iterable[NamedPart], out: Path) -> str:
    """Write the pipeline that ships to the new folder ``out``; return the checksum of its weights.

    ``record`` says how it was trained, ``parts`` are of the sets that it is measured on.
    """
    with folder_appearing_at(out) as folder:
        pipeline = without_words(load_model(trained))
        pipeline.to_disk(folder)
        pipeline.meta.update(described(record, measure(folder, parts)))
        pipeline.to_disk(folder)
        checksum = weights_checksum(folder)
        (folder / "README.md").write_text(model_card(pipeline.meta, checksum), encoding="utf-8")
    return checksum


def without_words(trained: Language) -> Language:
    """Return the pipeline without the words in its vocabulary and the paths in its configuration."""
    config = trained.config.copy()
    config["paths"] = dict.fromkeys(config["paths"])
    slim = load_model_from_config(config)
    slim.vocab.vectors = hashed_vectors(trained.vocab.vectors.data, slim.vocab.strings)
    empty, learnt = slim.get_pipe("ner"), trained.get_pipe("ner")
    empty.from_bytes(learnt.to_bytes(exclude=["vocab"]), exclude=["vocab"])
    return slim


def measure(folder: Path, parts: Iterable[NamedPart]) -> Scores:
    """Return precision, recall and F1 (exact place and label), F1 per label, and the share of sensitive sentences that
    are flagged, for every part that is not for training."""
    scores: Scores = {}
    for part in parts:
        if part.part == TRAIN:
            continue
        evaluation = evaluate(SpacyTagger(str(folder)), part.gold(), resamples=1)
        exact = evaluation.matching["exact"]
        scores.setdefault(part.name, {})[part.part] = {
            **{name: exact["any"][name].value for name in ("precision", "recall", "f1")},
            **{f"f1_{label}": exact[label]["f1"].value for label in part.labels if label in exact},
            "sensitive_sentences": evaluation.hiding["sensitive_sentences"].value,
            "mentions": float(evaluation.gold.mentions),
        }
    return scores


def weights_checksum(folder: Path) -> str:
    """Return a SHA-256 over names and checksums of the two files with weights in the pipeline ``folder``."""
    return fingerprint_of({name: record_of(folder / name) for name in ("ner/model", "vocab/vectors")})


def described(training: Mapping[str, Any], scores: Scores) -> dict[str, Any]:
    """Return the pipeline's meta data: terms, sources, how it was trained (with the sizes of its sets), and scores."""
    return {
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
            if each.name in training["sets"]
        ],
        "training": dict(training),
        "performance": scores,
    }


def model_card(meta: Mapping[str, Any], sha256: str) -> str:
    """Return the card as Markdown, from the meta data of :func:`described` and the checksum of the weights."""
    sources = "\n".join(f"- **{each['name']}** ({each['license']}): {each['author']}" for each in meta["sources"])
    sets = ", ".join(f"{name} {count:,}" for name, count in meta["training"]["sets"].items())
    return f"""# {meta["lang"]}_{meta["name"]} {meta["version"]}

A spaCy pipeline that marks names in English sentences as {", ".join(LABELS)} (the scheme of CoNLL-2003). It is what
`fl-sim prepare` takes when nothing better is installed, so that a tagger is there without a download.

- **Use**: `fl-sim prepare ... --tagger spacy:{meta["lang"]}_{meta["name"]}`, or `spacy.load` on this folder. With
  `--high-recall` it is united with the rules on capital letters, which is what we recommend for
  privacy: what a tagger misses is protected by the robust ε alone (docs/privacy.md).
- **Not for**: other languages, text without any capital letter (recall falls), or deciding that a text names nobody.
- **Made by**: the steps of tools/ner/project.yml with tools/ner/ner.cfg, seed {meta["training"]["seed"]}. Training
  sentences of each set: {sets}; {meta["training"]["sentences"]:,} are learnt from, after selection and augmentation.
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

More, with intervals and beside other taggers, on sets that it never saw (CoNLL-2003, SEC filings): docs/taggers.md.
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Finish the trained named-entity pipeline.")
    parser.add_argument("--trained", type=Path, required=True, help="folder of the trained pipeline")
    parser.add_argument("--data", type=Path, required=True, help="folder that training_data made")
    parser.add_argument("--source", type=Path, required=True, help="folder with wikigold, wnut17, btc and uner")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    args = parser.parse_args(argv)
    record = json.loads((args.data / RECORD).read_text(encoding="utf-8"))
    try:
        checksum = finish(args.trained, record, [*read_open_sets(args.source)[0], *synthetic_parts()], args.out)
    except CorpusError as error:
        parser.error(str(error))
    print(f"{args.out}: weights {checksum}")


if __name__ == "__main__":
    main()
