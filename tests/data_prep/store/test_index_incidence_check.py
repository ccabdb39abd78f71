"""What ε depends on is recomputed: profiles, tables and counts that contradict the incidence are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import TABLES
from fl_sim.data_prep.store.manifest import MANIFEST_FILE, FileRecord, fingerprint_of, record_of

NAMES = ("Ada", "Bo", "Cy")


def sentences(first: int = 0) -> list[Sentence]:
    """Sentences of four users; Ada is mentioned by all of them, Bo by two and Cy by one."""
    texts = [(user, name) for user in range(first, first + 4) for name in NAMES[: 3 - user % 3]]
    spoken = [Sentence("train", f"u{user}", f"{name} left.", (Mention(0, len(name), "PER"),)) for user, name in texts]
    return [*spoken, Sentence("train", f"u{first}", "It rained.", ()), Sentence("train", f"u{first}", "Ada!", ())]


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write_corpus(sentences(), tmp_path / "corpus", name="small").path


def adapted(folder: Path, counts: dict[str, int] | None = None) -> None:
    """Make the manifest fit the files as they are, as an editor of both would."""
    path = folder / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["files"] = {name: record_of(folder / name).model_dump() for name in manifest["files"]}
    manifest["splits"]["train"] |= counts or {}
    records = {name: FileRecord(**values) for name, values in manifest["files"].items()}
    manifest["fingerprint"] = fingerprint_of(records, manifest["follows"])
    path.write_text(json.dumps(manifest))


def array(folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = folder / f"train.{name}.npy"
    np.save(path, change(np.load(path)))


def column(folder: Path, table: str, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    path = folder / f"train.{table}.parquet"
    content = pq.read_table(path)
    position = content.column_names.index(name)
    field = TABLES[table].field(name)
    values = pa.array(change(content.column(name).to_pylist()), field.type)
    pq.write_table(content.set_column(position, field, values), path)


def swapped(values: list[Any]) -> list[Any]:
    return [values[1], values[0], *values[2:]]


def increased(values: list[Any]) -> list[Any]:
    return [values[0] + 1, *values[1:]]


TAMPERED = {
    "profiles": (lambda folder: array(folder, "profile_sentences", lambda old: old + 1), "profile_sentences.npy"),
    "fewer users": (lambda folder: array(folder, "profile_offsets", lambda old: np.minimum(old, 3)), "profile"),
    "owner of a sentence": (lambda folder: column(folder, "sentences", "user_id", increased), "sentences.parquet"),
    "entity of a sentence": (lambda folder: column(folder, "sentences", "entity_ids", swapped), "sentences.parquet"),
    "sentences of a user": (lambda folder: column(folder, "users", "sentences", increased), "users.parquet"),
    "users of an entity": (lambda folder: column(folder, "entities", "users", increased), "entities.parquet"),
    "most of a user": (lambda folder: column(folder, "entities", "max_per_user", increased), "entities.parquet"),
    "mentions in the incidence": (lambda folder: array(folder, "entity_ids", lambda old: old[::-1] * 0), "train"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_what_contradicts_the_incidence_is_refused(sound: Path, kind: str) -> None:
    change, where = TAMPERED[kind]
    assert Corpus.open(sound, verify=True).ownership("train").num_entities == 3
    change(sound)
    adapted(sound)
    with pytest.raises(CorpusError, match=where) as caught:
        Corpus.open(sound, verify=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("offsets", "counts", "who"), [("profile", {"entities": 4}, "entity 3"), ("user", {"users": 5}, "user 4")]
)
def test_who_is_only_counted_is_refused(sound: Path, offsets: str, counts: dict[str, int], who: str) -> None:
    """Counted entities without sentences would lower what entities contribute at a percentile; users would raise N."""
    array(sound, f"{offsets}_offsets", lambda old: np.append(old, old[-1]))
    adapted(sound, counts)
    with pytest.raises(CorpusError, match=f"{who} of split train has no sentence"):
        Corpus.open(sound, verify=True)


def test_appended_parts_are_checked_each_by_itself(sound: Path) -> None:
    append_corpus(Corpus.open(sound), sentences(2), joined_at=5, name="later")
    assert len(Corpus.open(sound, verify=True).parts) == 2
    later = sound / "append-0001"
    column(later, "entities", "sentences", increased)
    adapted(later)
    with pytest.raises(CorpusError, match=r"append-0001/train\.entities\.parquet: contradicts"):
        Corpus.open(sound, verify=True)
