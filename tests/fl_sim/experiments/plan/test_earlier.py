"""Earlier releases in memory, without a training: which of them count, at whose bounds, and what a run passes on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_sim.config import ConfigError
from fl_sim.experiments.plan.guarantees import EpsilonCurves, units_of
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.storage.model_files import Ancestor, Lineage
from fl_sim.strategies.accounting.accountant import Part, composed_epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import KNOWN, Guarantee, Known, ProtectedUnit
from fl_sim.strategies.ledger import Entry, Ledger, LedgerError, epsilon_of_any
from tests.fl_sim.released_runs import GRAPH, ledger_of
from tests.strategies.federation import plan

HERE, ELSEWHERE = "0a1b", "2c3d"
OWN = plan(q_e=0.5, q_s=0.2, user_cap=4.0, noise_multiplier=3.0, rounds=5, population=50)
FIRST = plan(q_e=0.5, q_s=0.1, user_cap=4.0, noise_multiplier=4.0, population=50).mechanism
SECOND = replace(FIRST, noise_multiplier=5.0, q_e=0.25)
ENTITY = ProtectedUnit(Adjacency(9, ContributionBound(3, 3, 3)), robust=False)
SENTENCE = ProtectedUnit(Adjacency(9, ContributionBound(1, 1)), robust=True)
SMALLER = ProtectedUnit(Adjacency(6, ContributionBound(2, 1)), robust=False)
ANY = "epsilon_any, unit 0"
DELTA = 1e-5


@pytest.fixture
def ancestors(tmp_path: Path) -> tuple[Ancestor, Ancestor]:
    """Two runs of three and four rounds, the first on another corpus."""
    units = {ANY: SMALLER, "epsilon_any, unit 1": SENTENCE, "epsilon_user": SMALLER}
    return (
        Ancestor(ledger_of(tmp_path / "first", FIRST, 3), ELSEWHERE, units),
        Ancestor(ledger_of(tmp_path / "second", SECOND, 4, seed=8), HERE, units),
    )


def parts_of(units: tuple[ProtectedUnit, ProtectedUnit]) -> list[Part]:
    """What the two runs released, each at the unit of its own."""
    parts: list[Part] = []
    for mechanism, count, unit in zip((FIRST, SECOND), (3, 4), units, strict=True):
        event = mechanism.event()
        parts.append((event.robust() if unit.robust else event, unit.adjacency, count))
    return parts


def own_part(unit: ProtectedUnit, count: int) -> Part:
    event = OWN.mechanism.event()
    return event.robust() if unit.robust else event, unit.adjacency, count


@pytest.mark.parametrize("unit", [ENTITY, replace(ENTITY, robust=True)], ids=["detected", "robust"])
def test_all_earlier_runs_count_each_at_its_own_unit(
    ancestors: tuple[Ancestor, Ancestor], tmp_path: Path, unit: ProtectedUnit
) -> None:
    """An entity of a run on another corpus may have been a sentence without any there: the larger ε counts."""
    earlier = Earlier(Lineage(ancestors), HERE)
    detected, before = (parts_of((of_first, SMALLER)) for of_first in (SMALLER, SENTENCE))
    expected = [composed_epsilon([*before, own_part(unit, count)], DELTA) for count in (1, 5)]
    assert composed_epsilon(detected, DELTA) < composed_epsilon(before, DELTA)
    np.testing.assert_allclose(earlier.epsilon_curve(OWN, ANY, unit, [1, 5]), expected, rtol=1e-9)
    assert earlier.epsilon_before(ANY, DELTA) == pytest.approx(composed_epsilon(before, DELTA), rel=1e-9)
    entries = ledger_of(tmp_path / "own", OWN.mechanism, 5, seed=1).entries
    assert earlier.epsilon_of(entries, ANY, unit, DELTA) == pytest.approx(expected[1], rel=1e-9)
    assert earlier.heads == [ancestor.ledger.head for ancestor in ancestors]


@pytest.mark.parametrize("corpora", ["aaaa", "abab", "abcd"])
def test_a_run_and_the_ledgers_state_the_same_of_any_entity(corpora: str, tmp_path: Path) -> None:
    ancestors = list[Ancestor]()
    entries = list[Entry]()
    for number, corpus in enumerate(corpora):
        mechanism = (FIRST, replace(SECOND, q_e=0.02))[number % 2]
        ledger = ledger_of(tmp_path / str(number), mechanism, 3, seed=number)
        earlier, units = Earlier(Lineage(tuple(ancestors)), corpus), units_of(GRAPH, {}, mechanism)
        stated = [earlier.epsilon_of(ledger.entries, name, unit, DELTA) for name, unit in units["epsilon_any"].items()]
        own_units = {name: unit for several in units.values() for name, unit in several.items()}
        ancestors.append(Ancestor(ledger, corpus, own_units))
        entries += ledger.entries
        of_runs = {ancestor.ledger.run: ancestor.corpus for ancestor in ancestors}
        assert max(stated) == pytest.approx(epsilon_of_any(entries, DELTA, of_runs), rel=1e-9)


def test_an_earlier_line_says_itself_whether_sentences_have_weights(tmp_path: Path) -> None:
    counted = replace(GRAPH, known="counts")
    ancestor = Ancestor(ledger_of(tmp_path / "first", FIRST, 3, counted), HERE, {ANY: SMALLER})
    weighted = replace(SMALLER.adjacency, weighted=True)
    event = FIRST.event()
    expected = composed_epsilon([(event, weighted, 3)], DELTA)
    assert Earlier(Lineage((ancestor,)), HERE).epsilon_before(ANY, DELTA) == pytest.approx(expected, rel=1e-9)


def test_a_metric_that_an_earlier_run_did_not_have_is_infinite(ancestors: tuple[Ancestor, Ancestor]) -> None:
    earlier = Earlier(Lineage(ancestors), HERE)
    assert np.isinf(earlier.epsilon_curve(OWN, "epsilon_stated", ENTITY, [1, 5])).all()
    assert np.isinf(earlier.epsilon_before("epsilon_stated", DELTA))


def test_the_noise_for_a_target_covers_all_rounds_and_the_earlier_releases(
    ancestors: tuple[Ancestor, Ancestor],
) -> None:
    earlier = Earlier(Lineage(ancestors[1:]), HERE)
    target = 1.5 * earlier.epsilon_before(ANY, DELTA)
    z = earlier.noise_for(OWN, target, ANY, ENTITY)
    met = float(earlier.epsilon_curve(OWN.with_noise(z), ANY, ENTITY, [OWN.rounds])[0])
    assert 0.98 * target <= met <= target


@pytest.mark.system
def test_a_continued_run_has_spent_before_its_first_round(ancestors: tuple[Ancestor, Ancestor]) -> None:
    """Nothing of its own may be sampled by entities: its ancestors were."""
    no_entities = replace(OWN, rounds=2, mechanism=replace(OWN.mechanism, q_e=1.0))
    bounds = dict.fromkeys(("median", "p95", "max"), ContributionBound(2, 1))
    names = (f"epsilon_user_entity{kind}_{name}" for kind in ("", "_robust") for name in bounds)
    units = {name: replace(SMALLER, robust="robust" in name) for name in names}
    (_, ancestor) = ancestors
    earlier = Earlier(Lineage((replace(ancestor, units={**ancestor.units, **units}),)), HERE)
    guarantees = EpsilonCurves.of(no_entities, units_of(GRAPH, bounds, no_entities.mechanism), earlier)
    event = SECOND.event()
    for kind, one in (("", event), ("_robust", event.robust())):
        expected = composed_epsilon([(one, SMALLER.adjacency, 4)], DELTA)
        assert guarantees.after(0)[f"epsilon_user_entity{kind}_p95"] == pytest.approx(expected, rel=1e-6)
    assert guarantees.after(2)["epsilon_user_entity_robust_p95"] > guarantees.after(2)["epsilon_user_entity_p95"]


@pytest.mark.parametrize(
    ("known", "refused"), [("nothing", ()), ("counts", ("nothing",)), ("graph", ("nothing", "counts"))]
)
def test_releases_that_take_more_as_known_are_no_part_of_a_figure(
    known: Known, refused: tuple[Known, ...], tmp_path: Path
) -> None:
    releases = ledger_of(tmp_path / "first", FIRST, 1, Guarantee(known=known))
    earlier = Earlier(Lineage((Ancestor(releases, HERE, {}),)), HERE)
    for own in KNOWN:
        if own in refused:
            with pytest.raises(ConfigError, match=rf"^privacy\.known is {own}, but the initial model .*{known}$"):
                earlier.check_guarantee(Guarantee(known=own))
        else:
            earlier.check_guarantee(Guarantee(known=own))
    Earlier(earlier.lineage, HERE, disjoint=True).check_guarantee(Guarantee())


@pytest.mark.parametrize(
    ("before", "own", "allowed"), [("", "b", True), ("b", "b", True), ("a", "b", False), ("a", "", False)]
)
def test_names_that_an_earlier_run_did_not_limit_are_not_protected_now(
    before: str, own: str, allowed: bool, tmp_path: Path
) -> None:
    releases = ledger_of(tmp_path / "first", FIRST, 1, replace(GRAPH, public_names=before))
    earlier = Earlier(Lineage((Ancestor(releases, HERE, {}),)), HERE)
    with nullcontext() if allowed else pytest.raises(ConfigError, match=r"^privacy\.public_names is not the list of "):
        earlier.check_guarantee(replace(GRAPH, public_names=own))


STATED = Guarantee(entity_bound=4)


@pytest.mark.parametrize(
    ("before", "own", "refused"),
    [
        (replace(GRAPH, missed_mentions=0), replace(GRAPH, missed_mentions=5), "missed_mentions is 5"),
        (replace(GRAPH, missed_mentions=5), replace(GRAPH, missed_mentions=5), None),
        (GRAPH, replace(GRAPH, missed_mentions=5), None),  # ε with missed mentions is infinite
        (replace(GRAPH, missed_mentions=0), GRAPH, None),
        (STATED, replace(STATED, entity_bound=5), "entity_bound is 5"),
        (replace(STATED, entity_users=2), STATED, "entity_users is nothing"),
        (STATED, replace(STATED, entity_bound=3, entity_users=2), None),
        (replace(GRAPH, entity_bound=4), replace(GRAPH, entity_bound=5), None),  # enforced
    ],
)
def test_what_is_stated_of_an_entity_holds_for_the_earlier_releases_too(
    before: Guarantee, own: Guarantee, refused: str | None, tmp_path: Path
) -> None:
    earlier = Earlier(Lineage((Ancestor(ledger_of(tmp_path / "first", FIRST, 1, before), HERE, {}),)), HERE)
    with nullcontext() if refused is None else pytest.raises(ConfigError, match=rf"^privacy\.{refused}, but "):
        earlier.check_guarantee(own)


def test_a_ledger_names_the_runs_that_count(ancestors: tuple[Ancestor, Ancestor], tmp_path: Path) -> None:
    earlier, folders = Earlier(Lineage(ancestors), HERE), [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    earlier.check_ledger(Ledger.create(folders[0], earlier.heads))
    for folder, heads in zip(folders[1:], (earlier.heads[:1], []), strict=True):
        with pytest.raises(LedgerError, match="names other ancestors than the run's own copy of them"):
            earlier.check_ledger(Ledger.create(folder, heads))


def test_a_model_passes_on_all_runs_before_it(ancestors: tuple[Ancestor, Ancestor], tmp_path: Path) -> None:
    own = ledger_of(tmp_path / "own", OWN.mechanism, 2, seed=1)
    on = Earlier(Lineage(ancestors), HERE).lineage_with(own, {ANY: ENTITY})
    assert on.ancestors == (*ancestors, Ancestor(own, HERE, {ANY: ENTITY}))
    apart = Earlier(Lineage(ancestors), HERE, disjoint=True).lineage_with(own, {ANY: ENTITY})
    assert [ancestor.apart_from for ancestor in apart.ancestors] == [(HERE,), (HERE,), ()]
    # On that corpus they stay apart, on any other they count again.
    assert [a.ledger.run for a in Earlier(apart, HERE).composed] == [own.run]
    assert len(Earlier(apart, ELSEWHERE).composed) == 3
    third = Earlier(apart, ELSEWHERE, disjoint=True).lineage_with(own, {})
    assert [ancestor.apart_from for ancestor in third.ancestors[:2]] == [(HERE, ELSEWHERE)] * 2
