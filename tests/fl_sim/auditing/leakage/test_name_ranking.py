"""Names are ranked first by a model that memorised them, and by chance by one that did not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl_sim.auditing.leakage import name_ranking
from fl_sim.auditing.leakage.attacked_run import BeforeTraining, NotApplicableError, Options
from fl_sim.auditing.leakage.name_ranking import (
    NameAttack,
    Occurrence,
    RankedName,
    Target,
    attack_names,
    grouped,
    questions_about,
)
from fl_sim.auditing.leakage.proven_rates import ProvenRates
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from tests.fl_sim.auditing.leakage.memorising import SPEC, memorised

NAMES = ("Zorbin Quell", "Marda Fenn", "Ilko Brast", "Tessa Vond", "Oswin Karl", "Pella Grum")
PLACES = ("garden", "river", "castle", "window", "market", "forest")


def entities(names: Sequence[str] = NAMES) -> list[Target]:
    """Return entities with a sentence each."""
    places = (PLACES[number % len(PLACES)] for number in range(len(names)))
    return [
        Target(name.lower(), "PERSON", name, (Occurrence(f"In the {place} stood ", name, " alone."),))
        for name, place in zip(names, places, strict=True)
    ]


@cache
def learned() -> LanguageModel:
    """A model that knows the sentences by heart."""
    texts = [occurrence.with_name(target.name) for target in entities() for occurrence in target.occurrences]
    return memorised(texts, steps=100, spec=SPEC.model_copy(update={"hidden": 32}))


@cache
def fresh() -> LanguageModel:
    return load_model(SPEC, seed=0)


def attacked(
    monkeypatch: pytest.MonkeyPatch,
    model: LanguageModel,
    targets: list[Target] | None = None,
    public: tuple[int, ...] = (),
    **options: Any,
) -> NameAttack:
    """Attack a run on these entities, some of them declared public, that began with a fresh model."""
    found = entities() if targets is None else targets
    monkeypatch.setattr(name_ranking, "training_entities", lambda corpus, split: found)
    proof = SimpleNamespace(of_any=lambda: ProvenRates("any user with any entity", (), "nothing"))
    ids = {one.key: number for number, one in enumerate(found)}
    run: Any = SimpleNamespace(
        model=model, before=BeforeTraining(fresh()), proof=proof, members=SimpleNamespace(split="train"),
        corpus=SimpleNamespace(known_ids=lambda split: SimpleNamespace(entities=ids)),
        bounds=SimpleNamespace(declared=SimpleNamespace(public=public)), has_raw_text=False,
    )  # fmt: skip
    return attack_names(run, Options(**{"candidates": 6, **options}))


def figures(attack: NameAttack) -> dict[str, float]:
    return {name: figure.value for name, figure in attack.groups[0].figures.items()}


def test_what_a_model_memorised_is_ranked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    right = figures(attacked(monkeypatch, learned()))
    assert right["ahead"] >= 0.9
    assert right["ratio_ahead"] >= 0.9
    assert right["gain"] == pytest.approx(right["ahead"] - right["initial_ahead"])


def test_names_that_are_declared_public_are_not_attacked_under_the_bound_of_any_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, name = fresh(), NAMES[1].lower()
    attack = attacked(monkeypatch, model, public=(1,))
    assert attack.private_entities == len(NAMES) - 1
    assert name not in {one.target.key for one in attack.ranked}
    run: Any = SimpleNamespace(
        corpus=SimpleNamespace(known_ids=lambda split: SimpleNamespace(entities={name: 1})), has_raw_text=False,
        members=SimpleNamespace(split="train"), bounds=SimpleNamespace(declared=SimpleNamespace(public=(1,))),
    )  # fmt: skip
    bound = name_ranking._bound_of(run, entities()[1])
    assert not bound.is_proven
    assert "declares its name public" in bound.reason


def test_the_ratio_cancels_what_makes_a_name_likely_in_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that learned one sentence of six knows that name alone, whatever it thinks of the others."""
    one = memorised([entities()[2].occurrences[0].with_name(NAMES[2])], steps=15)
    assert attacked(monkeypatch, one).ranked[2].ratio_rank == 1


def test_equal_perplexities_count_against_the_attacker() -> None:
    model = load_model(SPEC, seed=0)
    model.set_vector(np.zeros(model.num_parameters, dtype=np.float32))
    (question, *_) = questions_about(model, entities(), Options(candidates=6))
    ranked = name_ranking.rank_names(question, model, BeforeTraining(model))
    assert (ranked.rank, ranked.ratio_rank, ranked.initial_rank) == (6, 6, 6)


def test_records_show_names_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, shown = (
        json.dumps(attacked(monkeypatch, learned(), show_names=show).record(), allow_nan=False)
        for show in (False, True)
    )
    assert not any(name in hidden for name in NAMES)
    assert all(name in shown for name in NAMES)


def test_names_that_cannot_be_ranked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context too short for every mention; and a single name, which has no other of its kind."""
    short: ModelSpec = SPEC.model_copy(update={"max_tokens": 4})
    with pytest.raises(NotApplicableError, match=r"^no private entity fits into the model's context with another "):
        attacked(monkeypatch, load_model(short, seed=0))
    with pytest.raises(NotApplicableError, match=r"^no private entity fits into the model's context with another "):
        attacked(monkeypatch, fresh(), entities(NAMES[:1]))


def test_groups_are_means_over_all_by_kind_and_by_mentions() -> None:
    occurrence = Occurrence("", "x", "")
    ranked = [
        RankedName(Target(str(n), "ORG" if n % 2 else "GPE", str(n), (occurrence,) * (n + 1)), 9, n + 1, 1, 1)
        for n in range(8)
    ]
    groups = grouped(ranked, np.random.default_rng(0))
    means = {(g.kind, g.mentions): (g.entities, g.figures["ahead"].value) for g in groups}
    assert means == {
        (None, None): (8, 4.5 / 8),
        ("GPE", None): (4, 5 / 8),
        ("ORG", None): (4, 4 / 8),
        (None, (1, 1)): (1, 8 / 8),
        (None, (2, 3)): (2, 6.5 / 8),
        (None, (4, 7)): (4, 3.5 / 8),
        (None, (8, 15)): (1, 1 / 8),
    }
    assert groups[0].figures["ahead"].low < 4.5 / 8 < groups[0].figures["ahead"].high
    assert groups[3].record()["ahead"] == {"value": 1.0, "low": None, "high": None}


def test_a_sample_is_uniform_and_a_mention_that_does_not_fit_is_never_chosen() -> None:
    short, long = Occurrence("See ", "Ada", "."), Occurrence("See ", "Ada", " again" * 60)
    targets = [Target(name, "PERSON", name, (long, short)) for name in ("Ada", "Eve")]
    drawn = [list(questions_about(fresh(), targets, Options(entities=1, seed=seed))) for seed in range(60)]
    assert all(question.occurrence == short for (question,) in drawn)
    assert 15 < sum(question.target.name == "Ada" for (question,) in drawn) < 45
    too_long = Target("ada", "PERSON", "Ada", (long,))
    assert [one.target.name for one in questions_about(fresh(), [too_long, targets[1]], Options())] == ["Eve"]
