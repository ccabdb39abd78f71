"""What an evaluation says by user, against sums that are computed another way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.tokenizers import load_tokenizer
from fl_sim.clients.tasks import TextSizes
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.cleaning import Preprocessing, Reading
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.experiments.evaluation import HeldOutSentences
from fl_sim.experiments.user_utility import covered_bytes, is_entity_token, summarise, sums_by_user, token_spans
from fl_sim.storage.run_folder import encode
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import CLASSES

COUNTS = (1, 2, 3, 5, 9)
LONG = "Ada met Emmy " + "and went on " * 30  # longer than the context
IDS = np.arange(sum(COUNTS) - 1)  # a sample without the last sentence


@pytest.fixture(scope="module")
def of_all_sizes(tmp_path_factory: pytest.TempPathFactory) -> fl_sim.Corpus:
    """Users of 1 to 9 held-out sentences; every third has no mention, one is cut."""
    named = (Mention(0, 3, "PER"),)
    rows = [Sentence("train", user, "Ada left.", named, "business") for user in "ab"]
    for user, count in enumerate(COUNTS):
        for number in range(count):
            text = LONG if (user, number) == (4, 0) else f"Ada saw {user} böats on day {number}."
            mentions = () if number % 3 == 2 else (Mention(0, 3, "PER"),)
            target = CLASSES.classes[number % 3] if number != 1 else None
            rows.append(Sentence("validation", f"user {user}", text, mentions, target))
    folder = tmp_path_factory.mktemp("data") / "corpus"
    write_corpus(rows, folder, name="by user")
    return fl_sim.open_corpus(folder)


def evaluated(model: Any, corpus: fl_sim.Corpus) -> tuple[dict[str, Any], Any, list[str], HeldOutSentences]:
    texts = corpus.texts("validation").to_pylist()[: len(IDS)]
    targets = corpus.targets("validation").tolist()[: len(IDS)] if model.task.needs_targets else None
    examples = model.encode(texts, targets)
    whole = np.array([len(e) > 0 and int(e.tokens[-1]) == model.eos_id for e in examples])
    sentences = HeldOutSentences(examples, TextSizes.of(texts, whole), IDS)
    measured = held_out(model, examples)
    found = summarise(model, corpus, "train", "validation", sentences, measured, seed=3)
    facts = encode(found)
    assert found == summarise(model, corpus, "train", "validation", sentences, measured, seed=3)
    return facts, measured, texts, sentences


def test_next_word_by_user(of_all_sizes: fl_sim.Corpus) -> None:
    model = models_to_try.small_gpt2()
    facts, measured, texts, sentences = evaluated(model, of_all_sizes)
    assert (facts["users"], facts["sentences"], facts["cut"]) == (5, len(IDS), 1)
    owners = of_all_sizes.ownership("validation").user_of_sentence[IDS]
    whole = sentences.sizes.whole
    metrics = model.task.metrics(measured, sentences.sizes)
    for name in ("perplexity_per_token", "bits_per_byte", "perplexity_per_word"):
        figure = facts["figures"][name]
        assert figure["value"] == pytest.approx(metrics[name.removesuffix("_per_token")])
        assert figure["low"] < figure["value"] < figure["high"]
    by_user = [
        measured.nats[(owners == u) & whole].sum()
        / math.log(2)
        / sum(len(t.encode()) + 1 for t, o, w in zip(texts, owners, whole, strict=True) if o == u and w)
        for u in range(5)
    ]
    assert facts["deciles"] == pytest.approx(np.quantile(by_user, np.arange(1, 10) / 10).tolist())
    assert [(c["lowest"], c["highest"], c["members"]) for c in facts["by_sentences"]] == [
        (1, 1, 1), (2, 3, 2), (4, 7, 1), (8, 15, 1),
    ]  # fmt: skip
    assert facts["by_sentences"][0]["figure"]["value"] == pytest.approx(by_user[0])


def test_entity_tokens_and_others_add_up(of_all_sizes: fl_sim.Corpus) -> None:
    model = models_to_try.small_gpt2()
    facts, measured, _, _ = evaluated(model, of_all_sizes)
    entity, other = facts["by_mention"]["entity_tokens"], facts["by_mention"]["other_tokens"]
    with_mention, without = facts["by_mention"]["with_mention"], facts["by_mention"]["without_mention"]
    assert with_mention["share"] + without["share"] == pytest.approx(1)
    assert entity["share"] < with_mention["share"]
    assert entity["share"] + other["share"] == pytest.approx(1)
    tokens = measured.predictions.sum()
    nats = sum(
        part["share"] * tokens * math.log(part["figures"]["perplexity_per_token"]["value"]) for part in (entity, other)
    )
    assert nats == pytest.approx(measured.nats.sum(), rel=1e-5)
    length = len(model.tokenizer("Ada", add_special_tokens=False)["input_ids"])
    named = sum(number % 3 != 2 for count in COUNTS for number in range(count))
    assert entity["share"] == pytest.approx(named * length / tokens)


def test_entity_tokens_by_their_names_mentions_in_training(tmp_path: Path) -> None:
    """Ada is in three training sentences, Bob in one, Carl in none; "Bobs", once "Bob's", no longer tells who it is."""
    rows = [Sentence("train", user, "Ada left.", (Mention(0, 3, "PER"),)) for user in "aab"]
    rows.append(Sentence("train", "b", "Bob stayed.", (Mention(0, 3, "PER"),)))
    said = [("Ada", "x"), ("ADA", "y"), ("Bob", "x"), ("Carl", "y"), ("", "y"), ("Bob's", "y")]
    for name, user in said:
        mentions = (Mention(0, len(name), "PER"),) if name else ()
        rows.append(Sentence("validation", user, f"{name} spoke to nobody.", mentions))
    preprocessed = Preprocessing(strip_punctuation=True).rewriter(Reading())
    write_corpus(rows, tmp_path / "corpus", name="names", rewrite=preprocessed)
    corpus, model = fl_sim.open_corpus(tmp_path / "corpus"), models_to_try.small_gpt2()
    texts = corpus.texts("validation").to_pylist()
    examples = model.encode(texts)
    sentences = HeldOutSentences(examples, TextSizes.of(texts, np.ones(6, dtype=bool)), np.arange(6))
    measured = held_out(model, examples)
    found = summarise(model, corpus, "train", "validation", sentences, measured, seed=3)
    classes = {row.in_words(): row for row in found.by_training_mentions}
    assert {words: row.members for words, row in classes.items()} == {"0": 1, "1": 1, "2–3": 2}
    starts = np.cumsum([0, *measured.predictions[:-1]])
    target_nats = measured.target_nats

    def bits(name: str) -> float:
        """Return bits per byte of the first tokens of the sentences with a name, which are the name's."""
        chosen = [number for number, text in enumerate(texts) if text.lower().split()[0] == name]
        lengths = [len(model.tokenizer(texts[i][: len(name)], add_special_tokens=False)["input_ids"]) for i in chosen]
        nats = sum(target_nats[starts[i] : starts[i] + n].sum() for i, n in zip(chosen, lengths, strict=True))
        return nats / math.log(2) / (len(name) * len(chosen))

    for words, name in (("0", "carl"), ("1", "bob"), ("2–3", "ada")):
        assert classes[words].figure.value == pytest.approx(bits(name))


def test_a_part_that_no_text_has_is_absent(of_all_sizes: fl_sim.Corpus) -> None:
    ids = np.flatnonzero(of_all_sizes.ownership("validation").entities_per_sentence == 0)[:2]
    texts = of_all_sizes.texts("validation").take(ids).to_pylist()
    for task, parts in ((None, {"other_tokens", "without_mention"}), (CLASSES, {"without_mention"})):
        model = models_to_try.small_gpt2(task)
        examples = model.encode(texts, None if task is None else np.zeros(2, dtype=int))
        sentences = HeldOutSentences(examples, TextSizes.of(texts, np.ones(2, dtype=bool)), ids)
        found = summarise(model, of_all_sizes, "train", "validation", sentences, held_out(model, examples), seed=0)
        assert found is not None
        assert set(found.by_mention) == parts


def test_a_classifier_by_user_and_by_mention(of_all_sizes: fl_sim.Corpus) -> None:
    model = models_to_try.small_gpt2(CLASSES)
    facts, measured, _, _ = evaluated(model, of_all_sizes)
    assert facts["figures"]["error"]["value"] == measured.wrong.sum() / measured.predictions.sum()
    assert facts["metric"] == "error"
    errors = sum(part["share"] * part["figures"]["error"]["value"] for part in facts["by_mention"].values())
    assert errors == pytest.approx(facts["figures"]["error"]["value"])


def test_nothing_is_said_of_a_loss_that_is_not_finite(of_all_sizes: fl_sim.Corpus) -> None:
    model = models_to_try.small_gpt2()
    _, measured, _, sentences = evaluated(model, of_all_sizes)
    measured.losses[0] = math.nan
    assert summarise(model, of_all_sizes, "train", "validation", sentences, measured, seed=0) is None
    none = HeldOutSentences([], TextSizes.of([], np.empty(0, dtype=bool)), IDS[:0])
    assert summarise(model, of_all_sizes, "train", "validation", none, held_out(model, []), seed=0) is None


@pytest.mark.system
def test_a_resumed_run_says_the_same(tmp_path: Path) -> None:
    """A run that was killed before its result evaluates once more, with the same result."""
    from tests.e2e import small_runs

    corpus = small_runs.small_corpus(tmp_path / "corpus")
    run = fl_sim.run(small_runs.configuration(corpus, tmp_path / "run", rounds=1, **small_runs.QUICK_TO_LOAD))
    said = (run.result or {})["held_out"]
    by_user = run.folder.held_out_users
    assert len(by_user["nats"]) == said["users"]
    assert (run.path / "held_out_users.json").stat().st_mode & 0o777 == 0o600
    assert said["users"] == 6
    run.folder.result_file.unlink()
    assert (fl_sim.resume(run.path).result or {})["held_out"] == said


def test_sums_by_user_are_those_of_the_evaluation(of_all_sizes: fl_sim.Corpus) -> None:
    model = models_to_try.small_gpt2()
    facts, measured, _, _ = evaluated(model, of_all_sizes)
    sums = sums_by_user(of_all_sizes.ownership("validation"), IDS, measured)
    owners = of_all_sizes.ownership("validation").user_of_sentence[IDS]
    for name in ("predictions", "nats", "wrong"):
        expected = [getattr(measured, name)[owners == user].sum() for user in np.unique(owners)]
        assert sums[name] == pytest.approx(expected)
    figure = facts["figures"]["perplexity_per_token"]["value"]
    assert math.exp(sum(sums["nats"]) / sum(sums["predictions"])) == pytest.approx(figure)


# Tokens and the bytes of their text


TEXTS = ["Ada Lovelace läuft.", "\U0001f600 Ω by Ada  ", "", "Rain."]


def test_tokens_and_bytes_of_the_bundled_tokenizer() -> None:
    tokenizer = load_tokenizer("bundled")
    spans = token_spans(TEXTS, tokenizer)
    ids = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    assert [len(found) for found in spans] == [len(tokens) for tokens in ids]
    for text, found in zip(TEXTS, spans, strict=True):
        covered = covered_bytes(text, found)
        assert covered.sum() == len(text.encode()) + 1
        assert (covered >= 0).all()
    marked = is_entity_token(spans[0], (0, 12))
    named = "".join(TEXTS[0][a:b] for (a, b), mark in zip(spans[0], marked, strict=False) if mark)
    assert named.replace(" ", "") == "AdaLovelace"
    assert not marked[-1]


@pytest.mark.parametrize(
    ("mention", "expected"),
    [((0, 3), [1, 0, 0]), ((2, 4), [1, 1, 0]), ((3, 4), [0, 1, 0]), ((7, 9), [0, 0, 0]), ((1, 1), [0, 0, 0])],
)
def test_one_character_is_enough(mention: tuple[int, int], expected: list[int]) -> None:
    assert is_entity_token([(0, 3), (3, 7)], mention).tolist() == [bool(x) for x in expected]


def test_several_tokens_of_one_character_share_its_bytes_once() -> None:
    assert covered_bytes("Ω!", [(0, 1), (0, 1), (1, 2)]).tolist() == [2, 0, 1, 1]


def test_a_tokenizer_that_knows_no_places() -> None:
    assert token_spans(TEXTS, object()) is None
    assert token_spans([], load_tokenizer("bundled")) == []
    np.testing.assert_array_equal(covered_bytes("ab", []), [3])
