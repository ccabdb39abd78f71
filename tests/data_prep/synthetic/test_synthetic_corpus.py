"""The synthetic corpus and the one that ships: size, long tail, exact spans, and the same again from its seed."""

from __future__ import annotations

import re
from collections import Counter
from importlib import metadata

import numpy as np
import pytest

from fl_sim.data_prep.corpus_writer import Corpus
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.synthetic.chance import draw_rank
from fl_sim.data_prep.synthetic.synthetic_corpus import DEFAULT_SEED, DEFAULT_USERS, synthetic_sentences

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def small() -> list[Sentence]:
    return list(synthetic_sentences(140, seed=0))


@pytest.fixture(scope="module")
def bundled() -> Corpus:
    return Corpus.open("bundled", verify=True)


@pytest.mark.nightly
def test_the_seed_decides_everything(small: list[Sentence]) -> None:
    assert list(synthetic_sentences(140, seed=0)) == small
    assert list(synthetic_sentences(140, seed=1)) != small


@pytest.mark.nightly
def test_splits_are_by_user(small: list[Sentence]) -> None:
    users = {split: {s.user for s in small if s.split == split} for split in ("train", "validation", "public")}
    assert {split: len(keys) for split, keys in users.items()} == {"train": 110, "validation": 10, "public": 20}
    assert len(set.union(*users.values())) == 140
    assert all(5 <= count <= 40 for count in Counter(s.user for s in small).values())


@pytest.mark.nightly
def test_text_is_clean(small: list[Sentence]) -> None:
    for sentence in small:
        assert not re.search(r"  | [,.?!]|[<>{}\[\]|^_%]|\ba_|^\s|\s$", sentence.text), sentence.text
        assert sentence.text[0].isupper() or sentence.text.islower() or not sentence.text[0].isalpha()


def test_spans_are_what_their_labels_say(small: list[Sentence]) -> None:
    shapes = {
        "EMAIL": r"[a-z0-9.-]+@[a-z0-9-]+\.example",
        "PHONE": r"[+()\d ]{9,}",
        "MONEY": r"£[\d,]+(\.\d\d)?",
        "DATE": r".*\d{4}.*",
        "LOC": r"\d+ [A-Za-z ]+",
        "PERSON": r"\D+",
    }
    seen = set()
    for sentence in small:
        for mention in sentence.mentions:
            surface = sentence.surface(mention)
            assert surface == surface.strip()
            assert re.fullmatch(shapes.get(mention.label, ".+"), surface), (mention.label, surface)
            seen.add(mention.label)
    assert seen == {"PERSON", "ORG", "GPE", "LOC", "DATE", "EMAIL", "PHONE", "MONEY", "PRODUCT"}


def test_fame_is_zipf_like() -> None:
    rng = np.random.default_rng(0)
    ranks = np.bincount([draw_rank(100, rng) for _ in range(20_000)], minlength=100)
    assert ranks[0] / 20_000 == pytest.approx(np.log(3 / 2) / np.log(102 / 2), abs=0.01)
    assert ranks[0] > 2 * ranks[5] > 4 * ranks[40] > 0


@pytest.mark.parametrize(("users", "seed", "message"), [(19, 0, "users 19 must be at least 20"), (50, -1, "seed -1")])
def test_impossible_settings_are_refused(users: int, seed: int, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        next(synthetic_sentences(users, seed))


def test_the_bundled_corpus_is_large_enough_and_small(bundled: Corpus) -> None:
    train = bundled.ownership("train")
    assert train.num_users >= 1000
    assert train.num_sentences >= 15_000
    assert bundled.splits == ("train", "validation", "public")
    assert bundled.ownership("validation").num_users >= 100
    assert bundled.ownership("public").num_users >= 200
    assert sum(path.stat().st_size for path in bundled.path.iterdir()) < 2 * MEGABYTE


def test_the_bundled_reach_has_a_long_tail(bundled: Corpus) -> None:
    ownership = bundled.ownership("train")
    entity_bound = ownership.entity_contributions()
    assert entity_bound.quantile(0.5)[0] == 1
    assert 2 <= entity_bound.quantile(0.95)[0] <= 20
    assert entity_bound.quantile(1.0)[0] >= 100
    assert 0.6 <= (ownership.entities_per_sentence > 0).mean() <= 0.75


@pytest.mark.nightly
def test_the_bundled_language_is_varied(bundled: Corpus) -> None:
    texts = bundled.texts("train").to_pylist()
    words = [text.split() for text in texts]
    assert 12 <= np.mean([len(sentence) for sentence in words]) <= 16
    assert len({word for text in texts for word in re.findall(r"[a-z']+", text)}) > 3000
    assert len(set(texts)) / len(texts) > 0.97


def test_the_bundled_manifest_names_no_place(bundled: Corpus) -> None:
    manifest = bundled.manifest
    assert manifest.sources == {}
    assert manifest.settings | {"users": DEFAULT_USERS, "seed": DEFAULT_SEED} == manifest.settings
    assert "faker" in manifest.tools
    text = (bundled.path / "manifest.json").read_text(encoding="utf-8")
    assert "/" not in text


@pytest.mark.nightly
def test_the_bundled_corpus_comes_again_from_its_seed(bundled: Corpus) -> None:
    recorded = bundled.manifest.tools["faker"]
    if metadata.version("faker") != recorded:
        pytest.skip(f"the bundled corpus was made with Faker {recorded}, another version is installed")
    sentences = list(synthetic_sentences(DEFAULT_USERS, DEFAULT_SEED))
    for split in bundled.splits:
        made = [s for s in sentences if s.split == split]
        assert bundled.texts(split).to_pylist() == [s.text for s in made]
        mentions = bundled.mentions(split).to_pylist()
        assert [(m["sentence"], m["start"], m["end"], m["label"]) for m in mentions] == [
            (n, m.start, m.end, m.label) for n, s in enumerate(made) for m in s.mentions
        ]
