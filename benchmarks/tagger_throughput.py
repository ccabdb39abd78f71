"""Measure how fast the taggers are, alone and combined, on one core.

    python benchmarks/tagger_throughput.py --corpus bundled --texts 5000
    python benchmarks/tagger_throughput.py --corpus corpora/conll2003 --pipeline en_core_web_sm

Figures are texts per second of processor time (wall-clock time is unreliable on a busy machine), the median of several
turns in which every candidate runs once. Imports, loading and a first run are excluded. Rows named "bare" are spaCy
without our code.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import spacy

from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.tagger_registry import default_tagger, make_tagger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default="bundled")
    parser.add_argument("--split", default="train")
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--pipeline", help="a spaCy package or folder (default: the default tagger's)")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    texts = Corpus.open(args.corpus).texts(args.split)[: args.texts].to_pylist()
    pipeline = args.pipeline or default_tagger().removeprefix("spacy:")
    runs = candidates(None if pipeline == "rules" else pipeline)
    for run in runs.values():
        deque(run(texts[:500]), maxlen=0)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.turns):
        for name, run in runs.items():
            started = time.process_time()
            deque(run(texts), maxlen=0)
            seconds[name].append(time.process_time() - started)
    characters = sum(map(len, texts)) / len(texts)
    print(f"{len(texts):,} texts of {characters:.0f} characters on average, {args.turns} turns")
    for name, turns in seconds.items():
        rates = len(texts) / np.array(turns)
        print(f"{name:34} {np.median(rates):8,.0f} texts a second ({rates.min():,.0f} to {rates.max():,.0f})")


def candidates(pipeline: str | None) -> dict[str, Callable[[list[str]], Iterable[object]]]:
    """Return, by name, a function that tags texts lazily."""
    blank = spacy.blank("en")
    ruler = spacy.blank("en")
    ruler.add_pipe("entity_ruler").add_patterns([{"label": "EMAIL", "pattern": [{"LIKE_EMAIL": True}]}])
    runs: dict[str, Callable[[list[str]], Iterable[object]]] = {
        "bare tokenizer": blank.pipe,
        "bare entity_ruler, one pattern": ruler.pipe,
        "rules": make_tagger("rules").tag,
        "presidio": make_tagger("presidio").tag,
    }
    if pipeline is not None:
        runs |= {
            f"bare {pipeline}": spacy.load(pipeline).pipe,
            f"spacy:{pipeline}": make_tagger(f"spacy:{pipeline}").tag,
            f"spacy:{pipeline}+rules": make_tagger(f"spacy:{pipeline}+rules").tag,
        }
    return runs


if __name__ == "__main__":
    main()
