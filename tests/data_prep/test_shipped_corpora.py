"""The corpora that ship: where they lie, sizes, splits, long tails; of irc the attribution, nicks that are users."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fl_sim import data_prep
from fl_sim.config import RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA, shipped_path
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import NOBODY, entities_of_users
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.tagger_registry import make_marking
from fl_sim.experiments.run_inputs import with_absolute_paths
from tests.conftest import REPOSITORY
from tests.tiny import tiny_corpus
from tools import pack_irc

MARK = '{"start": 0, "end": 2, "label": "NICK"}'


@pytest.fixture(scope="module")
def irc() -> Corpus:
    return Corpus.open("irc", verify=True)


def test_the_bundled_corpus_is_large_enough_small_and_names_no_place() -> None:
    bundled = Corpus.open("bundled", verify=True)
    train = bundled.ownership("train")
    assert (train.num_users, train.num_sentences) == (1_179, 17_553)
    assert bundled.splits == ("train", "validation", "public")
    assert sum(path.stat().st_size for path in bundled.path.iterdir()) < 2_000_000
    contributions = train.entity_contributions()
    assert contributions.quantile(0.5)[0] == 1  # a long tail: most entities are one user's, some are of many
    assert contributions.quantile(1.0)[0] >= 100
    assert bundled.manifest.sources == {}
    assert "/" not in (bundled.path / "manifest.json").read_text(encoding="utf-8")


def test_all_users_are_there_in_one_split_each(irc: Corpus) -> None:
    users = {split: irc.users(split)["user"].tolist() for split in irc.splits}
    assert {split: len(names) for split, names in users.items()} == {"train": 15_768, "validation": 898, "test": 857}
    assert sum(counts.sentences for counts in irc.manifest.splits.values()) == 221_047
    assert len(set().union(*users.values())) == 17_523
    assert {name for split, names in users.items() for name in names if pack_irc.split_of(name) != split} == set()
    assert irc.held_out_split == "validation"


def test_the_attribution_ships_with_the_data_and_the_licences(irc: Corpus) -> None:
    attribution = (irc.path / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for part in (
        "Kummerfeld",
        "creativecommons.org/licenses/by/4.0",
        "nicks, e-mail addresses and public IP addresses",
    ):
        assert part in attribution
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert 'license = "Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"' in settings
    assert '"data_prep/irc/ATTRIBUTION.md"]' in settings
    assert "data_prep/irc/ATTRIBUTION.md" in (REPOSITORY / "THIRD_PARTY.md").read_text(encoding="utf-8")


def test_every_nick_is_a_user(irc: Corpus) -> None:
    """An entity under a name that no user has would be somebody whom ε covers as an entity alone."""
    names = {split: irc.users(split)["user"].tolist() for split in irc.splits}
    linked = {split: set(entities_of_users(irc, split).tolist()) - {NOBODY} for split in irc.splits}
    entities = irc.entities("train")
    nicks = entities.index[[("NICK" in labels) for labels in entities["labels"]]]
    elsewhere = set(nicks) - linked["train"]
    assert len(linked["train"]) == 9_555
    held_out = {name.casefold().strip("_") for split in ("validation", "test") for name in names[split]}
    assert {entities["entity"][nick] for nick in elsewhere} <= held_out


def test_a_mention_is_of_the_user_of_that_name(irc: Corpus) -> None:
    texts, users = irc.texts("train").to_pylist(), irc.users("train")["user"].tolist()
    ownership, entity_of_user = irc.ownership("train"), entities_of_users(irc, "train")
    user_of_entity = {int(entity): user for user, entity in enumerate(entity_of_user)}
    checked = 0
    for sentence in np.flatnonzero(ownership.entities_per_sentence == 1)[:2000]:
        user = user_of_entity.get(int(ownership.entity_ids[ownership.entity_offsets[sentence]]))
        if user is not None:
            assert users[user].casefold().strip("_") in texts[sentence].casefold()
            checked += 1
    assert checked > 1000


def messages_of_users(sentences: Iterable[Sentence]) -> dict[tuple[str, str], list[Sentence]]:
    messages: dict[tuple[str, str], list[Sentence]] = {}
    for sentence in sentences:
        messages.setdefault((sentence.split, sentence.user), []).append(sentence)
    return messages


@pytest.mark.nightly
def test_the_script_makes_it_from_its_source(irc: Corpus, shared_data: Path) -> None:
    source = shared_data / "irc" / "irc.jsonl.xz"
    if not source.is_file():
        pytest.skip("the source of the corpus is not on this machine")
    made = make_marking(has_gold=True).mark(pack_irc.raw_corpus(source).sentences())
    assert messages_of_users(made) == messages_of_users(sentences_of(irc))


def test_what_the_script_writes_is_a_corpus_of_the_same_content(tmp_path: Path) -> None:
    rows = [f'{{"id": {n}, "user": "u{n % 9}", "text": "u{(n + 1) % 9}: hi", "marks": [{MARK}]}}' for n in range(40)]
    source = tmp_path / "irc.jsonl"
    source.write_text("\n".join(rows) + "\n", encoding="utf-8")
    corpus = pack_irc.pack(source, tmp_path / "packed")
    assert set(corpus.texts("train").to_pylist()) <= {f"u{n}: hi" for n in range(9)}
    assert (entities_of_users(corpus, "train") != NOBODY).any()
    assert corpus.manifest.settings["validation_fraction"] == corpus.manifest.settings["test_fraction"] == 0.05


def test_a_name_is_a_text_and_a_path_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Corpus.open("irc").path == shipped_path("irc")
    for folder in ("./irc", Path("irc")):
        with pytest.raises(CorpusError, match="irc: no such folder"):
            Corpus.open(folder)
    config = RunConfig.from_mapping({"corpus.path": "irc"})
    assert with_absolute_paths(config).corpus.path == "irc"
    assert with_absolute_paths(config.changed({"corpus.path": "./irc"})).corpus.path == str(tmp_path / "irc")


def test_no_corpus_is_made_under_the_name_of_one_that_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="irc: the name of a corpus that ships; choose another output folder"):
        write_corpus([], Path("irc"), name="mine")
    assert list(tmp_path.iterdir()) == []
    assert tiny_corpus(tmp_path / "irc").is_dir()


@pytest.mark.parametrize("name", SHIPPED_CORPORA)
def test_they_lie_beside_the_code_or_nowhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_path(name) == Path(data_prep.__file__).parent / name
    monkeypatch.setattr(data_prep, "__file__", str(tmp_path / "data_prep" / "__init__.py"))
    with pytest.raises(CorpusError, match=rf"the corpus {name} is not installed \(looked in "):
        shipped_path(name)
