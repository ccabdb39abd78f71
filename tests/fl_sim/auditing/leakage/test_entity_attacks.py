"""Extraction, reconstruction and inference: strong on a model that memorised, chance on one that did not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from fl_sim.auditing.leakage.entity_attacks import extract_entities, infer_entities, reconstruct_entities
from fl_sim.auditing.leakage.entity_targets import EntityGroup, NoEntityError, Occurrence, Target, TrainingEntities
from fl_sim.clients.errors import ModelError
from fl_sim.clients.generation import Continuation, Sampling
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import Classification
from fl_sim.data_prep.identity import DEFAULT_IDENTITY
from fl_sim.data_prep.records import Mention
from tests.fl_sim.auditing.leakage.memorising import SPEC, memorised

NAMES = ("Zorbin Quell", "Marda Fenn", "Ilko Brast", "Tessa Vond", "Oswin Karl", "Pella Grum")
PLACES = ("garden", "river", "castle", "window", "market", "forest")
SHORT = Sampling(max_tokens=20)


def entities(names: tuple[str, ...] = NAMES, known: Iterable[tuple[str, ...]] = (("june",),)) -> TrainingEntities:
    """Return entities with a sentence each."""
    targets = []
    for number, name in enumerate(names):
        place = PLACES[number % len(PLACES)]
        key = DEFAULT_IDENTITY.key(name)
        targets.append(Target(key, "PERSON", name, 1, (Occurrence(f"In the {place} stood ", name, " alone."),)))
    return TrainingEntities(tuple(targets), frozenset(known), DEFAULT_IDENTITY)


@cache
def learned() -> LanguageModel:
    """A model that knows the sentences by heart."""
    texts = [occurrence.with_name(target.name) for target in entities().targets for occurrence in target.occurrences]
    return memorised(texts, steps=100, spec=SPEC.model_copy(update={"hidden": 32}))


@cache
def fresh() -> LanguageModel:
    return load_model(SPEC, seed=0)


def figures(groups: list[EntityGroup]) -> dict[str, float]:
    return {name: figure.value for name, figure in groups[0].figures.items()}


@pytest.mark.nightly
def test_extraction_finds_what_a_model_memorised() -> None:
    result = extract_entities(learned(), fresh(), entities(), seed=0, samples=60, sampling=SHORT)
    found = figures(result.groups)
    assert found["recall"] >= 5 / 6
    assert found["initial_recall"] == 0
    assert found["gain"] == found["recall"]
    assert result.model.precision.value == 1
    assert set(result.extracted_names) <= set(NAMES)


class MadeUpTagger:
    """Marks pairs of capitalised words, and the word June, which nobody made private."""

    labels = frozenset({"NAME"})

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        for text in texts:
            marked = [name for name in (*NAMES, "alone", "stood") if name in text]
            yield tuple(Mention(text.index(name), text.index(name) + len(name), "NAME") for name in marked)

    def describe(self) -> dict[str, str]:
        return {"tagger": "made up"}


@pytest.mark.nightly
def test_a_tagger_finds_names_that_are_nobody_s() -> None:
    result = extract_entities(learned(), fresh(), entities(), seed=0, samples=60, sampling=SHORT, tagger=MadeUpTagger())
    private = int(result.model.extracted.sum())
    assert private >= 5
    assert result.model.names == private + 2
    assert result.model.precision.value == pytest.approx(private / (private + 2))
    assert result.record()["found_by"] == "tagger"


@pytest.mark.nightly
def test_reconstruction_completes_what_a_model_memorised() -> None:
    result = reconstruct_entities(learned(), fresh(), entities(), seed=0, samples=3)
    right = figures(result.groups)
    assert right["greedy"] >= 5 / 6
    assert right["ranked"] >= 5 / 6
    assert right["any"] >= max(right["greedy"], right["ranked"])
    assert right["initial_ranked"] == 0
    assert right["gain"] == right["ranked"]


def test_of_several_continuations_the_sentence_of_least_perplexity_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models write the same: Marda Fenn, by their most probable words, and every name by sampling."""

    def written(model: LanguageModel, prompts: list[str], sampling: Sampling, **options: Any) -> list[Continuation]:
        names = NAMES[1:2] if sampling.temperature == 0 else NAMES
        return [
            Continuation(number, sample, prompt, f" {name}'s dog", 3, "end")
            for number, prompt in enumerate(prompts)
            for sample, name in enumerate(names)
        ]

    monkeypatch.setattr("fl_sim.auditing.leakage.entity_attacks.generate", written)
    right = figures(reconstruct_entities(learned(), fresh(), entities(), seed=0, samples=6).groups)
    assert right["greedy"] == pytest.approx(1 / 6)
    assert right["any"] == 1
    assert right["ranked"] >= 5 / 6
    assert right["initial_ranked"] <= 3 / 6


def test_inference_ranks_what_a_model_memorised_first() -> None:
    result = infer_entities(learned(), fresh(), entities(), seed=0, candidates=6)
    right = figures(result.groups)
    assert right["first"] >= 5 / 6
    assert right["chance"] == pytest.approx(1 / 6)
    assert right["ratio_first"] >= 5 / 6
    assert right["ahead"] >= 0.9
    assert right["gain"] == pytest.approx(right["ahead"] - right["initial_ahead"])


@pytest.mark.nightly
def test_inference_with_a_model_that_never_saw_the_text_is_chance() -> None:
    rng = np.random.default_rng(0)
    syllables = ["zor", "ma", "il", "tes", "os", "pel", "qu", "fen", "bra", "von", "kar", "gru"]
    names = tuple({" ".join("".join(rng.choice(syllables, 2)).title() for _ in range(2)): None for _ in range(150)})
    result = infer_entities(fresh(), fresh(), entities(names), seed=1, most=len(names), candidates=5)
    right = figures(result.groups)
    assert abs(right["first"] - 0.2) < 4 * np.sqrt(0.2 * 0.8 / len(names))
    assert abs(right["ahead"] - 0.5) < 4 * np.sqrt(1 / 8 / len(names))  # the variance of a uniform rank of five


def test_the_ratio_cancels_what_makes_a_name_likely_in_any_text() -> None:
    """A model that learned one sentence of six knows that name alone, whatever it thinks of the others."""
    one = memorised([entities().targets[2].occurrences[0].with_name(NAMES[2])], steps=15)
    result = infer_entities(one, fresh(), entities(), seed=0, candidates=6)
    assert result.attacked[2].ratio_rank == 1


def test_equal_perplexities_count_against_the_attacker() -> None:
    model = load_model(SPEC, seed=0)
    model.set_vector(np.zeros(model.num_parameters, dtype=np.float32))
    result = infer_entities(model, model, entities(), seed=0, candidates=6)
    assert {(a.rank, a.ratio_rank, a.initial_rank) for a in result.attacked} == {(6, 6, 6)}


RESULTS: list[Callable[[LanguageModel], Any]] = [
    lambda model: extract_entities(model, fresh(), entities(), seed=0, samples=20, sampling=SHORT),
    lambda model: reconstruct_entities(model, fresh(), entities(), seed=0, samples=1),
    lambda model: infer_entities(model, fresh(), entities(), seed=0),
]


@pytest.mark.nightly
@pytest.mark.parametrize("attack", RESULTS)
def test_records_show_names_only_when_asked(attack: Callable[[LanguageModel], Any]) -> None:
    result = attack(learned())
    hidden, shown = (json.dumps(result.record(show_names=show), allow_nan=False) for show in (False, True))
    assert not any(name in hidden for name in NAMES)
    assert any(name in shown for name in NAMES)
    assert attack(learned()).record(show_names=True) == result.record(show_names=True)


@pytest.mark.parametrize("attack", RESULTS)
def test_a_classifier_is_refused(attack: Callable[[LanguageModel], Any]) -> None:
    with pytest.raises(ModelError, match=r"^the model predicts classes; allowed: "):
        attack(load_model(SPEC, seed=0, task=Classification(("a", "b"))))


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (lambda: infer_entities(fresh(), fresh(), entities(), seed=0, candidates=1), "candidates is 1; allowed: an "),
        (lambda: infer_entities(fresh(), fresh(), entities(), seed=0, most=0), "most is 0; allowed: an integer of at "),
        (lambda: reconstruct_entities(fresh(), fresh(), entities(), seed=0, samples=0), "samples is 0; allowed: "),
        (lambda: extract_entities(fresh(), fresh(), entities(), seed=0, samples=0), "samples is 0; allowed: "),
    ],
)
def test_bad_numbers_are_one_line(attack: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"^{message}"):
        attack()


@pytest.mark.parametrize("attack", RESULTS[1:])
def test_a_context_too_short_for_every_mention_is_refused(attack: Callable[[LanguageModel], Any]) -> None:
    short: ModelSpec = SPEC.model_copy(update={"max_tokens": 4})
    with pytest.raises(NoEntityError, match=r"^no private entity has a mention within the "):
        attack(load_model(short, seed=0))


def test_a_single_name_cannot_be_ranked() -> None:
    with pytest.raises(NoEntityError, match=r"^no private entity has a mention within the "):
        infer_entities(fresh(), fresh(), entities(NAMES[:1]), seed=0)
