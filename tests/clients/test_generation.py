"""A text follows from seed, prompt and sample: not from its batch, nor from a model's cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fl_sim.clients.errors import ModelError
from fl_sim.clients.generation import Sampling, draw, generate, probabilities
from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.language_model import LanguageModel
from tests.clients.models import models_to_try as subjects

PROMPTS = ["Ada left the", "", "It rained", "Emmy left the"]
ARCHITECTURES: list[Callable[[], LanguageModel]] = [
    subjects.small_gpt2, subjects.with_adapters, subjects.awd_lstm, subjects.llama,
]  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", ARCHITECTURES, ids=lambda make: make.__name__)
def test_a_text_depends_on_no_other_and_on_no_cache(
    make: Callable[[], LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    sampling = Sampling(max_tokens=12, top_p=0.95)
    together = generate(model, PROMPTS, sampling, samples=3, seed=7)
    assert [(text.number, text.sample) for text in together] == [(n, s) for n in range(4) for s in range(3)]
    assert generate(model, PROMPTS, sampling, samples=3, seed=7, batch_size=2) == together
    assert generate(model, PROMPTS[:1], sampling, seed=7, batch_size=1) == together[:1]
    assert len({text.text for text in together}) > 9
    assert generate(model, PROMPTS, sampling, samples=3, seed=8) != together
    kind = type(model.architecture)
    monkeypatch.setattr(kind, "continued_scores", Architecture.continued_scores)  # reads the whole text every time
    assert generate(model, PROMPTS, sampling, samples=3, seed=7) == together


def test_greedy_texts_take_the_highest_score() -> None:
    model = subjects.small_gpt2(lora_rank=2)
    (text,) = generate(model, ["Ada left the"], Sampling(max_tokens=1, temperature=0.0))
    example = model.encode(["Ada left the"])[0]
    with torch.no_grad():
        scores = model.logits(model.batch([example]))[0, -1].numpy()  # after the last word, before the end
    scores[[i for i in model.tokenizer.all_special_ids if i != model.eos_id]] = -np.inf
    assert text.text == model.tokenizer.decode([int(scores.argmax())])


def biased(model: LanguageModel, token: int) -> LanguageModel:
    """Make one token far likelier than all others."""
    with torch.no_grad():
        model.module.decoder.bias[token] += 100
    return model


def test_why_a_text_stops() -> None:
    model = subjects.awd_lstm()
    assert {text.stopped for text in generate(model, PROMPTS, Sampling(max_tokens=3))} == {"length"}
    full = generate(model, PROMPTS, Sampling(max_tokens=1000, top_k=50))
    lengths = [len(model.tokenizer(p)["input_ids"]) + 1 for p in PROMPTS]
    for text, given in zip(full, lengths, strict=True):
        assert text.stopped in ("context", "end")
        assert text.stopped == "end" or text.tokens + given == model.max_tokens + 1
    ended = generate(biased(model, model.eos_id), PROMPTS, Sampling())
    assert {(text.stopped, text.tokens, text.text) for text in ended} == {("end", 0, "")}


def test_special_tokens_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    model = biased(subjects.awd_lstm(), token := 500)
    word = model.tokenizer.decode([token])
    assert all(text.text == 4 * word for text in generate(model, PROMPTS, Sampling(max_tokens=4)))
    special = property(lambda self: [self.eos_token_id, token])
    monkeypatch.setattr(type(model.tokenizer), "all_special_ids", special)
    assert not any(word in text.text for text in generate(model, PROMPTS, Sampling(max_tokens=4)))


def test_a_special_token_spelt_out_in_a_prompt_is_text() -> None:
    model = subjects.small_gpt2(lora_rank=2)
    end = model.tokenizer.eos_token
    (text,) = generate(model, [f"Ada {end}"], Sampling(max_tokens=2))
    assert text.whole.startswith(f"Ada {end}")


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (["fine", "Ada " * 60], {}, r"^prompt 2 has \d+ tokens; allowed: at most 39, the model's context$"),
        (["Ada", "Ada\udcff"], {}, r"^prompt 2 has the character '\\udcff' at place 4, .*; allowed: text$"),  # no UTF-8
        (["x"], {"samples": 0}, "samples is 0"),
        (["x"], {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_bad_input_is_one_line(small: LanguageModel, prompts: list[str], options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        generate(small, prompts, Sampling(), **options)


def test_a_classifier_writes_no_text() -> None:
    with pytest.raises(ModelError, match="predicts classes"):
        generate(subjects.small_gpt2(subjects.CLASSES), ["x"], Sampling())


SCORES = np.log(np.array([0.5, 0.3, 0.15, 0.05]))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.6), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.01), [1, 0, 0, 0]),
        (Sampling(top_k=9, top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Sampling(temperature=0.5), np.array([25, 9, 2.25, 0.25]) / 36.5),
    ],
    ids=str,
)
def test_probabilities(sampling: Sampling, expected: list[float]) -> None:
    np.testing.assert_allclose(probabilities(SCORES, sampling), expected, atol=1e-12)
    rng = np.random.default_rng(3)
    drawn = np.bincount([draw(SCORES, sampling, rng) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(drawn, expected, atol=0.03)
    assert not drawn[np.asarray(expected) == 0].any()


def test_every_draw_takes_one_number_of_the_stream() -> None:
    for sampling in (Sampling(), Sampling(temperature=0.0), Sampling(top_k=1)):
        rng = np.random.default_rng(0)
        draw(SCORES, sampling, rng)
        assert rng.random() == np.random.default_rng(0).random(2)[1]


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_scores_of_a_diverged_model_are_refused(score: float) -> None:
    with pytest.raises(ModelError, match="not finite"):
        draw(np.array([0.0, score]), Sampling(), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("temperature", -1.0), ("temperature", float("inf")), ("temperature", float("nan")),
     ("top_k", -1), ("top_p", 0.0), ("top_p", 1.1), ("top_p", float("nan"))],
)  # fmt: skip
def test_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ModelError, match=f"{name} is .*; allowed: "):
        Sampling(**{name: value})  # type: ignore[arg-type]
