"""Measure taggers on every labelled set that is present and print a Markdown table.

    python -m tools.ner.compare_taggers --data DIR

The sets are the held-out parts of the open sets, CoNLL-2003's testb, both SEC files, and the bundled validation split.
They are read from --data; a set that is absent is skipped with a message.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.tagger_evaluation import GoldCorpus, evaluate, gold_corpus
from fl_sim.data_prep.tagger_scores import Estimate
from fl_sim.data_prep.taggers.spacy_tagger import ON_PYPI, PREFERRED
from fl_sim.data_prep.taggers.tagger_registry import make_tagger, with_high_recall
from tools.ner.open_sets import read_open_sets

OURS = "spacy:en_fl_sim_ner"
TAGGERS = {"rules": ("rules",), "ours": (OURS,), "ours, high recall": with_high_recall(OURS)}
FILES = {
    "conll2003": "conll2003/eng.testb.xz",
    "FIN3": "sec_filings_ner/FIN3.txt.xz",
    "FIN5": "sec_filings_ner/FIN5.txt.xz",
}
COLUMNS = {
    "P": lambda evaluation: evaluation.matching["exact"]["any"]["precision"],
    "R": lambda evaluation: evaluation.matching["exact"]["any"]["recall"],
    "F1": lambda evaluation: evaluation.matching["exact"]["any"]["f1"],
    "F1, any label": lambda evaluation: evaluation.matching["exact_any_label"]["any"]["f1"],
    "sentences flagged": lambda evaluation: evaluation.hiding["sensitive_sentences"],
    "mentions hidden": lambda evaluation: evaluation.hiding["mentions_hidden"],
    "with coin": lambda evaluation: evaluation.hiding["mentions_with_coin"],
    "entities covered": lambda evaluation: evaluation.hiding["entities_covered"],
    "flag precision": lambda evaluation: evaluation.flag_precision,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder with ner_open, conll2003, ..."
    )
    parser.add_argument("--pipeline", default=OURS, help=f"pipeline in the rows of ours (default {OURS})")
    parser.add_argument("--resamples", type=int, default=200, help="bootstrap resamples for the intervals in the table")
    parser.add_argument("--out", type=Path, help="write all figures as JSON lines")
    args = parser.parse_args()
    taggers = {name: tuple(args.pipeline if one == OURS else one for one in names) for name, names in TAGGERS.items()}
    taggers |= {
        name: (f"spacy:{name}",)
        for name in (*PREFERRED, *ON_PYPI)
        if name.startswith("en_core_web") and _installed(name)
    }
    evaluations = []
    print("| set | tagger | " + " | ".join(COLUMNS) + " |", *["|" + "---|" * (len(COLUMNS) + 2)], sep="\n")
    for gold in _golds(args.data):
        for name, names in taggers.items():
            evaluation = evaluate(make_tagger(names), gold, resamples=args.resamples)
            evaluations.append(evaluation)
            cells = " | ".join(_cell(read(evaluation), column) for column, read in COLUMNS.items())
            print(f"| {gold.name}, {gold.split} | {name} | {cells} |", flush=True)
    if args.out:
        lines = (json.dumps(each.model_dump()) + "\n" for each in evaluations)
        args.out.write_text("".join(lines), encoding="utf-8")


def _golds(data: Path) -> Iterator[GoldCorpus]:
    if (data / "ner_open").is_dir():
        yield from (part.gold() for part in read_open_sets(data / "ner_open")[0] if part.part == "test")
    else:
        print(f"left out: {data / 'ner_open'} is missing", file=sys.stderr)
    for name, file in FILES.items():
        try:
            gold = gold_corpus(data / file)
        except CorpusError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        yield GoldCorpus(name, Path(file).stem.removesuffix(".txt"), gold.fingerprint, gold.sentences)
    yield gold_corpus("bundled", "validation")


def _installed(name: str) -> bool:
    try:
        make_tagger(f"spacy:{name}")
    except CorpusError:
        print(f"left out: {name} is not installed", file=sys.stderr)
        return False
    return True


def _cell(figure: Estimate, column: str) -> str:
    if figure.value is None:
        return "–"
    if column == "sentences flagged" and figure.low is not None:
        return f"{figure.value:.3f} ({figure.low:.3f}–{figure.high:.3f})"
    return f"{figure.value:.3f}"


if __name__ == "__main__":
    main()
