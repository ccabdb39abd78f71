"""Draws of held-out users: whole users, each on one side, and nothing of a sentence changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_sim.data_prep.canaries import CanarySettings, draw_canaries
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore, redraw, tagger_of, write_missed
from fl_sim.research.uedp_paper.figures import CorpusSource, HeldOutDraw, Missed
from fl_sim.research.uedp_paper.table_two import PUBLISHED, rows_of

SPLITS = {"train": range(8), "validation": range(6, 10), "test": range(10, 12)}  # users 6 and 7 are in two splits


@pytest.fixture
def two_classes(tmp_path: Path) -> Corpus:
    rows = [
        Sentence(split, f"user {user}", f"Ada saw {user} in {split}, {n}.", (Mention(0, 3, "PERSON"),), target="ab"[n])
        for split, users in SPLITS.items()
        for user in users
        for n in range(2)
    ]
    return write_corpus(rows, tmp_path / "parent", name="parent")


def content(corpus: Corpus, *splits: str) -> list[tuple[str, str, tuple[Mention, ...], str | None]]:
    return sorted((s.user, s.text, s.mentions, s.target) for s in sentences_of(corpus) if s.split in splits)


def users(corpus: Corpus, split: str) -> set[str]:
    return set(corpus.users(split)["user"].tolist())


def test_every_user_is_on_one_side_and_every_sentence_of_the_splits_is_kept(
    two_classes: Corpus, tmp_path: Path
) -> None:
    drawn = redraw(two_classes, tmp_path / "drawn", ["train", "validation"], held_out=3, seed=1)
    assert len(users(drawn, "validation")) == 3
    assert not users(drawn, "validation") & users(drawn, "train")
    assert content(drawn, "train", "validation") == content(two_classes, "train", "validation")
    assert "test" not in drawn.splits


def test_the_seed_decides_who_is_held_out(two_classes: Corpus, tmp_path: Path) -> None:
    drawn = [redraw(two_classes, tmp_path / f"{n}", ["train"], 3, seed) for n, seed in enumerate((1, 1, 2, 3))]
    held_out = [frozenset(users(one, "validation")) for one in drawn]
    assert held_out[0] == held_out[1]
    assert len(set(held_out)) > 1


@pytest.mark.parametrize(
    ("splits", "held_out", "named"),
    [
        (["train", "dev"], 2, "splits is 'dev'; allowed: train, validation, test"),
        (["train"], 7, "users is 7; allowed: at most 6"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    two_classes: Corpus, tmp_path: Path, splits: list[str], held_out: int, named: str
) -> None:
    with pytest.raises(CorpusError, match=named):
        redraw(two_classes, tmp_path / "drawn", splits, held_out, seed=1)
    assert not (tmp_path / "drawn").exists()


def test_a_store_draws_for_the_seeds_that_are_named_alone(two_classes: Corpus, tmp_path: Path) -> None:
    class Store(CorpusStore):
        def _prepare(self, key: str, source: CorpusSource) -> Path:
            return two_classes.path

    source = CorpusSource(
        kind="jsonl", source="x", held_out=HeldOutDraw(splits=("train", "validation"), users=3, seeds=(1, 2))
    )
    store = Store(data=tmp_path, folder=tmp_path / "corpora")
    assert store.prepared("c", source, seed=0) == str(two_classes.path)
    raw, without = (Corpus.open(store.prepared("c", source, deidentified=mode, seed=1)) for mode in (None, "category"))
    assert raw.manifest.settings["held_out_draw"]["seed"] == 1
    assert content(raw, "validation") == content(without, "validation")
    assert raw.users("train")["user"].tolist() == without.users("train")["user"].tolist()
    assert not any(mentions for _, _, mentions, _ in content(without, "train"))
    assert store.prepared("c", source, seed=2) != store.prepared("c", source, seed=1)


@pytest.mark.parametrize("tagger", [{"tagger": "gold"}, {"tagger": "spacy", "pipeline": "gold"}])
def test_a_record_names_the_pipeline_of_a_tagger(tagger: dict[str, str], tmp_path: Path) -> None:
    sentences = [Sentence("train", user, "Ann", (Mention(0, 3, "PERSON"),)) for user in "ab"]
    assert tagger_of(write_corpus(sentences, tmp_path / "own", name="own", tagger=tagger)) == "gold"


def test_table_two_counts_sentences_by_what_their_entities_may_be(tmp_path: Path) -> None:
    sentences = [
        Sentence("train", "a", "Ann saw Bo", (Mention(0, 3, "PERSON"), Mention(8, 10, "PERSON"))),
        Sentence("train", "a", "Oslo again", (Mention(0, 4, "GPE"),)),
        Sentence("train", "b", "the Alps again", (Mention(0, 8, "LOC"),)),
        Sentence("train", "b", "on Monday", (Mention(3, 9, "DATE"),)),
    ]
    corpus = write_corpus(sentences, tmp_path / "own", name="own")
    row, published = rows_of(corpus)
    assert published is None
    assert (row.vocabulary, row.sentences, row.users) == (9, 4, 2)
    assert row.sensitive == {"Org": 0, "Loc": 1, "GPE": 1, "Person": 1, "PII": 3, "Misc": 0, "All": 3}
    paper = write_corpus(sentences, tmp_path / "paper", name="x", settings={"kind": "sec-standin"})
    row, published = rows_of(paper)
    assert published == PUBLISHED["sec-standin"]
    assert row.sensitive == {"Org": 0, "Loc": 1, "GPE": 1, "PII": 3, "All": 3}


def marked(tmp_path: Path) -> Corpus:
    """Return a corpus in which 400 names are mentioned five times each, and a canary's once."""
    rows = [
        Sentence("train", f"user {n}", f"Ada{name} came {n}.", (Mention(0, 3 + len(str(name)), "PERSON"),))
        for n in range(5)
        for name in range(400)
    ]
    held_out = Sentence("validation", "eve", "Ada1 left.", (Mention(0, 4, "PERSON"),))
    planted = draw_canaries(CanarySettings(number=28, seed=1))
    corpus = write_corpus(
        [*rows, held_out, *planted.sentences()], tmp_path / "marked", name="marked",
        beside={CANARIES_FILE: planted.to_json()},
    )  # fmt: skip
    assert any(sentence.mentions for sentence in planted.sentences())
    return corpus


@pytest.mark.parametrize("missed", ["mentions", "names"])
def test_a_tagger_misses_six_per_cent_of_mentions_or_of_names_with_all_of_theirs(
    tmp_path: Path, missed: Missed
) -> None:
    corpus = marked(tmp_path)
    made = write_missed(corpus, tmp_path / missed, missed)
    pairs = list(zip(sentences_of(corpus), sentences_of(made), strict=True))
    assert all((a.split, a.user, a.text) == (b.split, b.user, b.text) for a, b in pairs)
    assert all(a.mentions == b.mentions for a, b in pairs if a.split != "train")
    of_names = [(a, b) for a, b in pairs if a.split == "train" and a.mentions and a.text.startswith("Ada")]
    lost = [a.text.split()[0] for a, b in of_names if not b.mentions]
    assert 0.03 < len(lost) / len(of_names) < 0.09
    whole = [name for name in set(lost) if lost.count(name) == 5]
    assert len(whole) == (len(set(lost)) if missed == "names" else 0)
    canaries = [bool(b.mentions) for a, b in pairs if a.mentions and a.text.startswith("the secret words of")]
    assert canaries
    assert (not any(canaries)) if missed == "names" else any(canaries)


@pytest.mark.parametrize("missed", ["mentions", "names"])
def test_a_user_with_names_of_its_own_changes_nothing_of_what_is_missed_of_others(
    tmp_path: Path, missed: Missed
) -> None:
    corpus = marked(tmp_path)
    rows = [s for s in sentences_of(corpus) if s.user.startswith("user")]
    new = [Sentence("train", "a new user", f"Aaron{n} saw Ada1.", (Mention(0, 6, "PERSON"),)) for n in range(9)]
    left = []
    for name, sentences in {"with": [*new, *rows], "without": rows}.items():
        written = write_corpus(sentences, tmp_path / name, name=name)
        left.append(content(write_missed(written, tmp_path / f"{name}-{missed}", missed), "train"))
    assert [row for row in left[0] if row[0] != "a new user"] == left[1]
