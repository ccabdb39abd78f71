"""Measure taggers on every labelled set that is there, and print one Markdown table: python scripts/compare_taggers.py

Sets are the held-out parts of the open sets, CoNLL-2003's testb, both SEC files, and the bundled validation split.
Folders are looked for in --data; what is absent is left out and named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from fl_sim.data_prep.ner.coverage import Estimate, Evaluation
from fl_sim.data_prep.ner.open_sets import read_open_sets
from fl_sim.data_prep.ner.tagger_evaluation import GoldCorpus, evaluate, gold_corpus
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.manifest import fingerprint_of
from fl_sim.data_prep.taggers.spacy_tagger import PREFERRED
from fl_sim.data_prep.taggers.tagger_registry import make_tagger, with_high_recall

OURS = "spacy:en_fl_sim_ner"
TAGGERS = {"patterns": ("patterns",), "rules": ("rules",), "ours": (OURS,), "ours, high recall": with_high_recall(OURS)}
FILES = {
    "conll2003": "conll2003/eng.testb.xz",
    "FIN3": "sec_filings_ner/FIN3.txt.xz",
    "FIN5": "sec_filings_ner/FIN5.txt.xz",
}
COLUMNS = {
    "P": lambda made: made.matching["exact"]["any"]["precision"],
    "R": lambda made: made.matching["exact"]["any"]["recall"],
    "F1": lambda made: made.matching["exact"]["any"]["f1"],
    "F1, any label": lambda made: made.matching["exact_any_label"]["any"]["f1"],
    "sentences flagged": lambda made: made.hiding["sensitive_sentences"],
    "mentions hidden": lambda made: made.hiding["mentions_hidden"],
    "with coin": lambda made: made.hiding["mentions_with_coin"],
    "entities covered": lambda made: made.hiding["entities_covered"],
    "flag precision": lambda made: made.flag_precision,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="with ner_open, conll2003, ...")
    parser.add_argument("--pipeline", default=OURS, help=f"what stands as ours (default {OURS})")
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap; the table shows some intervals")
    parser.add_argument("--out", type=Path, help="all figures as JSON lines")
    args = parser.parse_args()
    taggers = {name: tuple(args.pipeline if one == OURS else one for one in names) for name, names in TAGGERS.items()}
    taggers |= {name: (f"spacy:{name}",) for name in PREFERRED if name.startswith("en_core_web") and _installed(name)}
    made = []
    print("| set | tagger | " + " | ".join(COLUMNS) + " |", *["|" + "---|" * (len(COLUMNS) + 2)], sep="\n")
    for gold in _golds(args.data):
        for name, names in taggers.items():
            evaluation = evaluate(make_tagger(names), gold, resamples=args.resamples)
            made.append(evaluation)
            cells = " | ".join(_cell(read(evaluation), column) for column, read in COLUMNS.items())
            print(f"| {gold.name}, {gold.split} | {name} | {cells} |", flush=True)
    if args.out:
        _write(args.out, made)
    return 0


def _golds(data: Path) -> Iterator[GoldCorpus]:
    if (data / "ner_open").is_dir():
        parts, records = read_open_sets(data / "ner_open")
        fingerprint = fingerprint_of(records)
        for part in parts:
            if part.part == "test":
                yield GoldCorpus(part.name, part.part, fingerprint, lambda part=part: iter(part.sentences))
    else:
        print(f"left out: {data / 'ner_open'} is not there", file=sys.stderr)
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


def _write(path: Path, made: list[Evaluation]) -> None:
    path.write_text("".join(json.dumps(each.model_dump()) + "\n" for each in made), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
