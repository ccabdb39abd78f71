"""Canaries in a corpus: their owners, their coins, their neighbours, and what other commands do to them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fl_sim.cli.main import main
from fl_sim.data_prep.canaries import (
    OWNERS,
    REPETITIONS,
    WORDS,
    CanarySettings,
    PlantedCanaries,
    SecretLaw,
    apart,
    draw_canaries,
    planted,
    read_canaries,
)
from fl_sim.data_prep.corpus_stats import corpus_stats
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.deidentify import MODES, Mode, deidentify
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.prepare import append, prepare
from fl_sim.data_prep.readers.cleaning import Preprocessing
from fl_sim.data_prep.readers.prepared_corpus import PreparedReader, sentences_of
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.contribution_limits import ContributionLimits, DeclaredCounts, count_weights, greedy_weights
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE
from fl_sim.data_prep.taggers.tagger_registry import make_marking
from fl_sim.strategies.primitives import streams
from tests.data_prep.marked import said
from tests.tiny import tiny_corpus

SETTINGS = CanarySettings(number=28, seed=1)
TEXT = [said("Ada left.", "Ada", user=user) for user in ("ann", "bob")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("canaries") / "tiny"))


@pytest.fixture(scope="module")
def with_canaries(base: Corpus) -> Corpus:
    return prepare(PreparedReader(source=str(base.path)).read(), base.path.parent / "planted", canaries=SETTINGS).corpus


def letters(sentences: list[Sentence]) -> RawCorpus:
    return RawCorpus("letters", lambda: iter(sentences), has_gold=True)


# The law of secrets


@pytest.mark.parametrize("law", [SecretLaw(words=("a", "b", "c"), length=2), SecretLaw(words=WORDS[:40], length=1)])
def test_draws_are_uniform_over_what_is_left(law: SecretLaw) -> None:
    counts = np.zeros(law.size)
    for seed in range(2000):
        counts[law.draw(np.random.default_rng(seed), 1, without={0, 4})] += 1
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(np.delete(counts, [0, 4])).pvalue > 1e-3


def test_draws_are_distinct_and_limited() -> None:
    law = SecretLaw(words=("a", "b", "c"), length=2)
    assert sorted(law.draw(np.random.default_rng(0), 7, without={1, 2}).tolist()) == [0, 3, 4, 5, 6, 7, 8]
    assert len(set(SecretLaw().draw(np.random.default_rng(0), 500).tolist())) == 500
    with pytest.raises(CorpusError, match=r"^8 secrets are to be drawn; allowed: at most 7$"):
        law.draw(np.random.default_rng(0), 8, without={1, 2})


def test_the_public_list_has_64_words_that_preprocessing_keeps() -> None:
    assert len(set(WORDS)) == len(WORDS) == 64
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    assert Preprocessing.of_paper().text(" ".join(WORDS)) == " ".join(WORDS)


# Draws


def test_every_kind_has_as_many_canaries_with_users_names_and_secrets_of_their_own() -> None:
    canaries = draw_canaries(CanarySettings(700)).canaries
    cells = Counter((c.owner, c.repetitions) for c in canaries)
    assert cells == {(owner, times): 50 for owner in OWNERS for times in REPETITIONS}
    users = [user for canary in canaries for user in canary.users]
    names = [canary.name for canary in canaries if canary.owner == "entity"]
    assert len(set(users)) == len(users)
    assert len({DEFAULT_IDENTITY.key(name) for name in names if name}) == len(names) == 350
    assert len({canary.secret for canary in canaries}) == 700
    assert all(len(c.users) == (c.repetitions if c.owner == "entity" else 1) for c in canaries)


@pytest.mark.nightly
def test_coins_are_fair_and_independent_of_everything_else() -> None:
    included = np.array([[c.included for c in draw_canaries(CanarySettings(20, seed)).canaries] for seed in range(400)])
    assert abs(included.mean() - 0.5) < 4 * 0.5 / np.sqrt(included.size)
    correlations = np.corrcoef(included, rowvar=False) - np.eye(20)
    assert np.abs(correlations).max() < 5 / np.sqrt(400)
    few, many = (draw_canaries(CanarySettings(number, 3)).canaries for number in (14, 28))
    assert [c.included for c in few] == [c.included for c in many[:14]]


# The two sides of a coin


def side_of(coin: bool, number: int, sentences: list[Sentence], out: Path) -> tuple[Corpus, PlantedCanaries]:
    """Return the corpus in which canary ``number`` is included, or left out."""
    canaries = draw_canaries(SETTINGS)
    rows = list(canaries.canaries)
    rows[number] = rows[number].model_copy(update={"included": coin})
    side = canaries.model_copy(update={"canaries": tuple(rows)})
    beside = {CANARIES_FILE: side.to_json()}
    return write_corpus(planted(sentences, side, DEFAULT_IDENTITY), out, name="x", beside=beside), side


@pytest.mark.parametrize("number", [12, 13], ids=OWNERS)
def test_the_sides_of_a_coin_are_neighbours(number: int, tmp_path: Path) -> None:
    """64 repetitions: of one user, or of 64 users. Only that unit differs, and N does not."""
    canaries = draw_canaries(SETTINGS)
    sides = []
    for coin in (False, True):
        written, _ = side_of(coin, number, TEXT, tmp_path / str(coin))
        sides.append((written, Counter((s.user, s.text, s.mentions) for s in sentences_of(written))))
    (without, fewer), (with_it, more) = sides
    canary = canaries.canaries[number]
    unit = more - fewer
    assert not fewer - more
    assert unit.total() == 64
    assert {user for user, _, _ in unit} == set(canary.users)
    assert not {user for user, _, _ in fewer} & set(canary.users)
    assert set(with_it.entities("train")["entity"]) - set(without.entities("train")["entity"]) == (
        {canary.name} if canary.name else set()
    )
    assert read_canaries(without).population(without) == read_canaries(with_it).population(with_it)
    assert without.users("train")["user"].tolist()[:2] == ["ann", "bob"]


@pytest.mark.parametrize("by_counts", [False, True])
@pytest.mark.parametrize("number", [12, 13], ids=OWNERS)
def test_limits_keep_the_same_of_all_others_on_both_sides_of_a_coin(
    by_counts: bool, number: int, base: Corpus, tmp_path: Path
) -> None:
    limits = ContributionLimits(sentences_per_entity=5, sentences_per_user=3)
    source = [s for s in sentences_of(base) if s.split == "train"]
    kept = []
    for coin in (False, True):
        corpus, canaries = side_of(coin, number, source, tmp_path / str(coin))
        ownership = corpus.ownership("train")
        order = np.argsort(streams.uniforms(0, "sentence", 0, ownership.num_sentences), kind="stable")
        if by_counts:
            weights = count_weights(ownership, limits, DeclaredCounts.of(ownership))
        else:
            weights = greedy_weights(ownership, limits, order.astype(np.int64))
        owners = corpus.users("train")["user"].to_numpy()[ownership.user_of_sentence]
        of_canaries = [weights[np.isin(owners, c.users)].sum() for c in canaries.canaries if c.number != number]
        others = ~np.isin(owners, list(canaries.users))
        kept.append((weights[others].tolist(), np.round(of_canaries, 9).tolist()))
    assert kept[0] == kept[1]
    assert min(kept[0][0]) < 1


def test_the_contribution_of_a_canary_is_its_repetitions(with_canaries: Corpus) -> None:
    users = with_canaries.users("train").set_index("user")["sentences"]
    entities = with_canaries.entities("train").set_index("entity")
    for canary in read_canaries(with_canaries).canaries:
        expected = canary.repetitions if canary.included else 0
        assert sum(users.get(user, 0) for user in canary.users) == expected
        if canary.name and canary.included:
            row = entities.loc[canary.name]
            assert (row["users"], row["sentences"], row["max_per_user"]) == (expected, expected, 1)
        elif canary.name:
            assert canary.name not in entities.index


def test_a_source_that_shares_a_user_or_an_entity_with_a_canary_is_refused() -> None:
    canaries = draw_canaries(SETTINGS)
    stranger = canaries.canaries[3]
    assert stranger.name is not None
    text = f"Mr. {stranger.name.title()}'s boat"
    theirs = Sentence("test", "ann", text, (Mention(0, len(text) - 5, "PER"),))
    with pytest.raises(CorpusError, match=r"^the source mentions a canary's entity; allowed: another `canary_seed`$"):
        list(apart([theirs], canaries, Identity()))
    with pytest.raises(CorpusError, match=r"^user 'canary-0003-00' of the source is a canary's; allowed: "):
        list(apart([Sentence("train", stranger.users[0], "Hello.", ())], canaries, Identity()))


# The corpus's folder


def test_canaries_change_the_fingerprint_and_are_recorded(base: Corpus, with_canaries: Corpus) -> None:
    assert with_canaries.fingerprint != base.fingerprint
    assert not base.has_canaries
    assert read_canaries(with_canaries) == draw_canaries(SETTINGS)
    assert (with_canaries.path / CANARIES_FILE).stat().st_mode & 0o077 == 0
    record = json.loads((with_canaries.path / CANARIES_FILE).read_text(encoding="utf-8"))
    assert record["law"]["size"] == 64**3
    assert set(record["canaries"][1]) >= {"text", "owner", "repetitions", "included", "secret"}
    assert any("privacy.population" in warning for warning in with_canaries.warnings)
    with pytest.raises(CorpusError, match=r": has no canaries; allowed: a corpus of fl-sim prepare … --canaries N$"):
        read_canaries(base)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record["canaries"][0].update(text="another"),
        lambda record: record["law"].update(size=5),
        lambda record: (
            record["canaries"][2].update(secret=0, text="the secret words are apple apple apple")
            or record["canaries"][0].update(secret=0, text="the secret words are apple apple apple")
        ),
        lambda record: record.pop("law"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    damage: Callable[[dict[str, object]], object], with_canaries: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads(draw_canaries(SETTINGS).to_json())
    damage(record)
    module = "fl_sim.data_prep.canaries.read_bytes"
    monkeypatch.setattr(module, lambda path: json.dumps(record).encode())
    with pytest.raises(CorpusError, match=r"canaries\.json: no record of canaries \(.*\); prepare it again$"):
        read_canaries(with_canaries)


# Taggers, preprocessing, appended parts, de-identification


def test_no_tagger_sees_a_canary_and_preprocessing_leaves_it(tmp_path: Path) -> None:
    raw = letters(TEXT).with_preprocessing(Preprocessing(lower_case=True, strip_punctuation=True))
    marking = make_marking("rules", has_gold=False)
    made = prepare(raw, tmp_path / "out", marking=marking, canaries=SETTINGS).corpus
    included = [c for c in read_canaries(made).canaries if c.included]
    stored = Counter((s.user, s.text, len(s.mentions)) for s in sentences_of(made) if s.user.startswith("canary"))
    law = read_canaries(made).law
    expected = Counter((s.user, s.text, len(s.mentions)) for canary in included for s in canary.sentences(law))
    assert stored == expected


def test_appended_parts_leave_the_canaries(base: Corpus, tmp_path: Path) -> None:
    made = prepare(PreparedReader(source=str(base.path)).read(), tmp_path / "out", canaries=SETTINGS).corpus
    before = read_canaries(made)
    more = append(letters([Sentence("train", "eve", "It rained.", ())]), made.path, joined_at=3).corpus
    assert read_canaries(more) == before
    assert before.population(more) == before.population(made) + 1
    with pytest.raises(CorpusError, match="is a canary's"):
        append(letters([Sentence("train", "canary-0000-00", "It snowed.", ())]), made.path, joined_at=3)


@pytest.mark.parametrize("mode", MODES)
def test_deidentification_replaces_the_names_of_canaries_and_keeps_their_secrets(
    with_canaries: Corpus, mode: Mode, tmp_path: Path
) -> None:
    made, _ = deidentify(with_canaries, tmp_path / "out", mode)
    now, before = read_canaries(made), read_canaries(with_canaries)
    stored = Counter((s.user, s.text, s.mentions) for s in sentences_of(made) if s.user.startswith("canary"))
    assert stored == Counter((s.user, s.text, s.mentions) for s in now.sentences())
    for old, new in zip(before.canaries, now.canaries, strict=True):
        assert (old.secret, old.included, old.users) == (new.secret, new.included, new.users)
        assert old.owner == "user" or old.name not in new.text(now.law).split()
        assert old.owner == "entity" or old == new
    assert now.population(made) == before.population(with_canaries)
    assert len(made.warnings) == 2


def test_a_rewriting_that_loses_a_secret_is_refused() -> None:
    canaries = draw_canaries(CanarySettings(2), SecretLaw(words=("Apple", "Pear"), length=2))
    with pytest.raises(CorpusError, match=r"^canary 0 would lose its secret; allowed: "):
        canaries.rewritten(lambda sentence: None)
    rewritten: PlantedCanaries = canaries.rewritten(lambda sentence: sentence)
    assert rewritten == canaries


# Prepared corpora as a source, and the command line


def test_prepared_sources_that_would_lose_something_are_refused(with_canaries: Corpus, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r": has canaries; allowed with prepared: "):
        PreparedReader(source=str(with_canaries.path)).read()
    plain = write_corpus(TEXT, tmp_path / "plain", name="x")
    append(letters([Sentence("train", "eve", "It rained.", ())]), plain.path, joined_at=3)
    with pytest.raises(CorpusError, match=r": has appended parts; allowed with prepared: "):
        PreparedReader(source=str(plain.path)).read()


def test_the_command_plants_and_stats_tells(base: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    line = ["prepare", "prepared", "--source", str(base.path), "--out", out, "--canaries", "14", "--canary-seed", "5"]
    assert main(line) == 0
    canaries = read_canaries(Corpus.open(out))
    assert canaries == draw_canaries(CanarySettings(14, 5))
    capsys.readouterr()
    assert main(["corpus", "stats", out, "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["canaries"]
    assert counts["population"] == 6 + len(canaries.users)
    assert main(["corpus", "stats", out]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"--set privacy.population={counts['population']}" in shown
    assert corpus_stats(base)["canaries"] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--canaries", "0"], "--canaries is 0; allowed: an integer in [1, 10000]"),
        (["--canaries", "2", "--canary-seed", "-1"], "--canary-seed is -1; allowed: an integer of at least 0"),
        (["--canary-seed", "1"], "--canary-seed is given without --canaries; allowed: with --canaries"),
        (["--canaries", "2", "--append", "--joined-at", "2"], "--canaries is given with --append; allowed: when the"),
    ],
)
def test_bad_flags_are_one_line(
    flags: list[str], message: str, base: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["prepare", "prepared", "--source", str(base.path), "--out", str(tmp_path / "out"), *flags]
    assert main(line) == 2
    assert message in capsys.readouterr().err
