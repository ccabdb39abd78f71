"""Measure the time to open a large corpus, its memory, and the time to sample a round from it.

    python benchmarks/index_scale.py --users 1000000 --sentences 10000000 --folder DIR

makes a synthetic corpus in DIR unless one exists (0 to 3 entities per sentence, of Zipf popularity; placeholders for
texts) and measures in a separate process, in wall-clock and processor time (the latter is more reliable on a busy
machine). The arrays are drawn at once, unlike real text, but written by the code that prepares every corpus.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fl_sim.clients.selection import select
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.index import write_index, write_profiles
from fl_sim.data_prep.store.layout import TABLES, part_folder, table_file
from fl_sim.data_prep.store.manifest import Manifest, SplitCounts, fingerprint_of, record_of
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.messages import runs_of
from fl_sim.strategies.primitives import sampling

Ints = NDArray[np.int64]

SPLIT = "train"
ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--sentences", type=int, default=10_000_000)
    parser.add_argument("--entities", type=int, default=10_000_000, help="entities that exist; fewer are mentioned")
    parser.add_argument("--cohort", type=int, default=1_000, help="users expected in a round")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--append", type=int, default=0, metavar="N", help="append N sentences to the corpus first")
    parser.add_argument("--measure", action="store_true", help="measure in this process")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.folder, args.cohort), indent=2))
        return
    if not args.folder.exists():
        made = timed(lambda: make(args.folder, args.users, args.sentences, args.entities))[1]
        print(f"made in {made:.0f} s, {sum(p.stat().st_size for p in args.folder.iterdir()) / 2**20:,.0f} MiB")
    if args.append:
        print(f"appended in {timed(lambda: append(args.folder, args.append))[1]:.0f} s")
    subprocess.run([sys.executable, __file__, "--measure", *sys.argv[1:]], check=True)


def measure(folder: Path, cohort: int) -> dict[str, Any]:
    """Open the corpus and sample rounds in this process; return the figures."""
    before = memory()
    used = time.process_time()
    ownership, opening = timed(lambda: Corpus.open(folder).ownership(SPLIT))
    used = time.process_time() - used
    opened = memory()
    figures: dict[str, Any] = {
        "parts": len(Corpus.open(folder).parts),
        "users": ownership.num_users,
        "sentences": ownership.num_sentences,
        "entities": ownership.num_entities,
        "open_seconds": round(opening, 3),
        "open_processor_seconds": round(used, 3),
        "mib_before": before,
        "mib_opened": opened,
    }
    q_u = cohort / ownership.num_users
    for q_e, q_s in ((0.5, 0.1), (0.5, 1.0)):
        figures[f"round_ms_q_s_{q_s:g}"] = time_rounds(ownership, q_u, q_e, q_s)
    figures["mib_after_rounds"] = memory()
    contributions, seconds = timed(ownership.entity_contributions)
    figures |= {"reach_seconds": round(seconds, 3), "reach_quantiles_95": contributions.quantile(0.95)}
    figures["mib_after_reach"] = memory()
    return figures


def time_rounds(ownership: Ownership, q_u: float, q_e: float, q_s: float) -> dict[str, float]:
    """Return the milliseconds to sample users and to select their eligible sentences, over :data:`ROUNDS` rounds."""
    users_ms, select_ms, used_ms, eligible = [], [], [], []
    for number in range(1, ROUNDS + 1):
        used = time.process_time()
        users, seconds = timed(lambda number=number: sampling.sample_users(0, number, ownership.num_users, q_u))
        users_ms.append(1000 * seconds)
        seed, runs = sampling.round_seed(0, number), runs_of(users)
        selection, seconds = timed(lambda seed=seed, runs=runs: select(ownership, runs, seed, q_e, q_s))
        select_ms.append(1000 * seconds)
        used_ms.append(1000 * (time.process_time() - used))
        eligible.append(len(selection.sentences))
    both = np.add(users_ms, select_ms)
    return {
        "median": round(float(np.median(both)), 1),
        "max": round(float(both.max()), 1),
        "median_of_processor": round(float(np.median(used_ms)), 1),
        "median_of_users": round(float(np.median(users_ms)), 1),
        "mean_eligible_sentences": float(np.mean(eligible)),
    }


class Incidence(NamedTuple):
    """The incidence of users, sentences and entities in a split.

    Attributes:
        sentences_per_user: int64 ``(num_users,)``.
        mentions: entities per sentence, with repetitions, int64 ``(num_sentences,)``.
        entities: the mentioned entities, sentence by sentence, int64 ``(num_mentions,)``.
        num_entities: entities of the corpus.
    """

    sentences_per_user: Ints
    mentions: Ints
    entities: Ints
    num_entities: int


def make(folder: Path, num_users: int, num_sentences: int, world: int) -> None:
    """Draw a corpus's incidence and write the corpus."""
    write_drawn_corpus(folder, {SPLIT: draw_split(np.random.default_rng(0), num_users, num_sentences, world)})


def append(folder: Path, num_sentences: int) -> None:
    """Append sentences of known users, and of a hundredth as many new users, to a corpus."""
    corpus = Corpus.open(folder)
    known, rng = corpus.manifest.splits[SPLIT], np.random.default_rng(1)
    newcomers = known.users + np.arange(max(num_sentences // 100, 1))
    writers = np.concatenate((newcomers, rng.integers(0, known.users, num_sentences - len(newcomers))))
    counts, entities = draw_mentions(rng, num_sentences, known.entities)
    entities[:2] = known.entities + np.arange(len(entities[:2]))
    drawn = Incidence(np.bincount(writers), counts, entities, known.entities + 2)
    write_drawn_corpus(folder / part_folder(len(corpus.parts)), {SPLIT: drawn}, follows=corpus.fingerprint)


def draw_split(rng: np.random.Generator, num_users: int, num_sentences: int, world: int) -> Incidence:
    """Draw a split whose users have at least one sentence each and whose entities have Zipf popularity.

    Args:
        rng: the random stream.
        num_users: users of the split.
        num_sentences: sentences of the split.
        world: entities that can be mentioned.
    """
    shares = rng.lognormal(0.0, 1.0, num_users)
    sentences_per_user = 1 + rng.multinomial(num_sentences - num_users, shares / shares.sum())
    counts, ranks = draw_mentions(rng, num_sentences, world)
    _, first, ranks = np.unique(ranks, return_index=True, return_inverse=True)
    number_of = np.empty(len(first), dtype=np.int64)
    number_of[np.argsort(first)] = np.arange(len(first))  # numbered by first mention, as in a corpus that is read
    return Incidence(sentences_per_user, counts, number_of[ranks], len(first))


def draw_mentions(rng: np.random.Generator, num_sentences: int, world: int) -> tuple[Ints, Ints]:
    """Return the mentions of each sentence, int64 ``(num_sentences,)``, and the popularity ranks of the entities."""
    counts = rng.integers(0, 4, num_sentences)
    return counts, np.exp(rng.random(int(counts.sum())) * math.log(world)).astype(np.int64) - 1


def write_drawn_corpus(
    folder: Path, splits: Mapping[str, Incidence], follows: str | None = None, compression: str = "zstd"
) -> None:
    """Write a part of a corpus with the code of ``fl-sim prepare`` and with placeholders for the texts.

    Args:
        folder: the new folder of the part.
        splits: the incidence of each split.
        follows: fingerprint of the part before it, if any.
        compression: of the Parquet tables.
    """
    folder.mkdir(parents=True)
    added = {}
    for split, drawn in splits.items():
        num_entities = drawn.num_entities
        sentences = len(drawn.mentions)
        pairs = np.unique(np.repeat(np.arange(sentences), drawn.mentions) * num_entities + drawn.entities)
        counts = np.bincount(pairs // num_entities, minlength=sentences).astype(np.int32)
        ids = (pairs % num_entities).astype(np.int32)
        before_users, before_entities = _known(folder.parent) if follows else (0, 0)
        ownership = write_index(folder, split, drawn.sentences_per_user, [(counts, ids)], num_entities)
        ownership = replace(ownership, stored_profiles=ownership.entity_profiles())
        if follows is None:
            write_profiles(folder, split, ownership.entity_profiles())
        write_tables(folder, split, ownership, compression)
        added[split] = SplitCounts(
            users=len(drawn.sentences_per_user) - before_users, sentences=sentences,
            entities=num_entities - before_entities, mentions=len(ids),
        )  # fmt: skip
    files = {path.name: record_of(path) for path in sorted(folder.iterdir())}
    Manifest(
        name="scale", sources={}, settings={}, tagger={"tagger": "drawn"}, sought_labels=("X",), tools={},
        splits=added, files=files, fingerprint=fingerprint_of(files, follows), follows=follows,
    ).write(folder)  # fmt: skip


def _known(folder: Path) -> tuple[int, int]:
    counts = Corpus.open(folder).manifest.splits[SPLIT]
    return counts.users, counts.entities


def write_tables(folder: Path, split: str, ownership: Ownership, compression: str) -> None:
    """Write the three tables of a part; a sentence's text is its number, and mentions have no position."""
    sentences, contributions = ownership.num_sentences, ownership.entity_contributions()
    users, entities = np.flatnonzero(ownership.sentences_per_user), np.flatnonzero(contributions.users)
    empty_lists = pa.ListArray.from_arrays(pa.array(np.zeros(sentences + 1, dtype=np.int32)), pa.array([], pa.int32()))
    offsets = pa.array(ownership.entity_offsets.astype(np.int32))
    one_each = pa.array(np.arange(len(entities) + 1), pa.int32())
    columns = {
        "sentences": [
            pa.array(ownership.user_of_sentence, pa.int32()),
            pc.cast(pa.array(np.arange(sentences)), pa.large_string()),
            pa.ListArray.from_arrays(offsets, pa.array(ownership.entity_ids)),
            empty_lists,
            empty_lists,
            empty_lists.cast(pa.list_(pa.string())),
            pa.array(np.full(sentences, -1, dtype=np.int32)),
        ],
        "users": [
            pa.array(users, pa.int32()),
            pc.cast(pa.array(users), pa.string()),
            pa.array(ownership.sentences_per_user[users]),
        ],
        "entities": [
            pa.array(entities, pa.int32()),
            pc.cast(pa.array(entities), pa.string()),
            pa.ListArray.from_arrays(one_each, pa.array(["X"] * len(entities))),
            *(
                pa.array(values[entities])
                for values in (contributions.users, contributions.sentences, contributions.max_per_user)
            ),
        ],
    }
    for table, schema in TABLES.items():
        columns_of_table = pa.Table.from_arrays(columns[table], schema=schema)
        pq.write_table(columns_of_table, folder / table_file(split, table), compression=compression)


def memory() -> dict[str, int]:
    """Return the memory of this process in MiB: resident (Rss), proportional share (Pss), and anonymous."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    return {name: kib[name] // 1024 for name in ("Rss", "Pss", "Anonymous")}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of ``work`` and how many seconds it took."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


if __name__ == "__main__":
    main()
