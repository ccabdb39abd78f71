"""Measure how fast text becomes a prepared corpus, and how much of a tagger's own throughput is left.

    python benchmarks/prepare_throughput.py plain --sentences 500000
    python benchmarks/prepare_throughput.py tagged --sentences 10000 --processes 1 2

``plain``: prepare a JSON-lines file with gold entities, first with one sentence per row, then split into sentences.
``tagged``: the same texts without entities, tagged by a spaCy pipeline within prepare, and by ``nlp.pipe`` alone with
the same batch size and number of processes. The two take turns; both load the pipeline. The default pipeline is spaCy's
NER component with random weights, which takes as long as a trained one of that size.

Wall-clock and processor seconds (of all processes) are printed. On a busy machine only the latter measure the work.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import spacy
from spacy.training import Example

from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.tables import JsonlReader
from fl_sim.data_prep.taggers.tagger import Marking
from fl_sim.data_prep.taggers.tagger_registry import make_marking

_SENTENCE = """
the town hall was closed when we came back from our walk along the river and nobody could say whether it would open
again before the end of the week so we went home and asked them to call us later
"""
WORDS = _SENTENCE.split()
LABELS = ("PERSON", "ORG", "GPE", "DATE", "MONEY", "LOC")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("plain", "tagged"))
    parser.add_argument("--sentences", type=int, default=500_000)
    parser.add_argument("--pipeline", help="a spaCy package or folder")
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = write_messages(work / "messages.jsonl", args.sentences)
        if args.what == "plain":
            measure_plain(source, work / "out", args.sentences)
        else:
            pipeline = args.pipeline or str(random_ner(work / "pipeline"))
            for processes in args.processes:
                measure_tagged(source, work / "out", pipeline, processes, args.batch_size, args.turns)


def measure_plain(source: Path, out: Path, sentences: int) -> None:
    """Print the throughput of prepare with gold entities, that is without a tagger."""
    for name, cut in (("a row a sentence", False), ("cut into sentences", True)):
        reader = JsonlReader(
            source=source, text_column="text", user_column="user", entities_column="ents", split_sentences=cut
        )
        clock, processor = seconds(lambda reader=reader: prepare(reader.read(), out))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{name}: {clock:.1f} s of the clock, {processor:.1f} s of a processor: "
            f"{60 * sentences / processor:,.0f} sentences a minute of one core; at most {peak:,} MiB"
        )
        again = seconds(lambda reader=reader: prepare(reader.read(), out))
        print(f"  the same again: {again[0]:.2f} s of the clock, {again[1]:.2f} s of a processor (imports left out)")
        shutil.rmtree(out)


def measure_tagged(source: Path, out: Path, pipeline: str, processes: int, batch_size: int, turns: int) -> None:
    """Print the throughput of a tagger within prepare relative to the tagger alone.

    Args:
        source: the JSON-lines file.
        out: folder for the prepared corpus; removed after each turn.
        pipeline: a spaCy package or folder.
        processes: tagging processes.
        batch_size: texts per batch of the tagger.
        turns: how often both are measured.
    """
    texts = [json.loads(line)["text"] for line in source.open(encoding="utf-8")]
    options = {"batch_size": batch_size, "n_process": processes}
    marking = partial(make_marking, f"spacy:{pipeline}", has_gold=False, processes=processes, batch_size=batch_size)
    figures = []
    for _ in range(turns):
        whole = seconds(lambda: prepare_once(source, out, marking()))
        shutil.rmtree(out)
        bare = seconds(lambda: deque(spacy.load(pipeline).pipe(texts, **options), maxlen=0))
        figures.append((*whole, *bare))
        print(f"  prepare {whole[0]:.1f} s ({whole[1]:.1f}), nlp.pipe {bare[0]:.1f} s ({bare[1]:.1f})", flush=True)
    clock, processor, bare_clock, bare_processor = np.median(figures, axis=0)
    print(
        f"{processes} processes: prepare keeps {bare_clock / clock:.0%} of nlp.pipe's throughput by the clock and "
        f"{bare_processor / processor:.0%} by the processors ({len(texts) / bare_clock:,.0f} sentences a second bare)"
    )


def prepare_once(source: Path, out: Path, marking: Marking) -> None:
    """Prepare the corpus with a tagger that nothing else holds, so that its processes end."""
    reader = JsonlReader(source=source, text_column="text", user_column="user", split_sentences=False)
    prepare(reader.read(), out, marking=marking)


def write_messages(path: Path, sentences: int) -> Path:
    """Write rows of one sentence with about fifteen words and 0 to 2 names each, ten rows per user; return the path."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(sentences):
            entities: list[dict[str, object]] = []
            text = ""
            for place, word in enumerate(rng.choice(WORDS, 12)):
                if place in (3, 8) and rng.random() < 0.5:
                    rank = int(sentences ** rng.random())
                    name = f"Bo{rank % 997} Zed{rank}"
                    entities.append({"start": len(text), "end": len(text) + len(name), "label": "PERSON"})
                    text += f"{name} "
                text += f"{word} "
            user = int(rng.integers(max(sentences // 10, 2)))
            file.write(json.dumps({"text": f"{text.strip()}.", "user": f"u{user}", "ents": entities}) + "\n")
    old = time.time() - 10
    os.utime(path, (old, old))
    return path


def random_ner(folder: Path) -> Path:
    """Write a pipeline with spaCy's default NER component and random weights; return its folder."""
    nlp = spacy.blank("en")
    component = nlp.add_pipe("ner")
    for label in LABELS:
        component.add_label(label)
    example = Example.from_dict(nlp.make_doc("Bo went to Oslo."), {"entities": [(0, 2, "PERSON")]})
    nlp.initialize(lambda: [example])
    nlp.to_disk(folder)
    return folder


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock seconds of ``work``, and the processor seconds of this process and its ended children."""
    clock, processor = time.perf_counter(), processor_seconds()
    work()
    return time.perf_counter() - clock, processor_seconds() - processor


def processor_seconds() -> float:
    """Return the processor seconds of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
