"""Test ε of random allocation against closed forms, Monte Carlo, integration, and another library's bounds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_sim.strategies.accounting import random_allocation
from fl_sim.strategies.accounting.accountant import (
    RoundEvent,
    composed_epsilon,
    delta,
    epsilon,
    epsilon_curve,
)
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.random_allocation import EpochEvent, Groups, HiddenEpochs, allocation_atoms
from tests.strategies.accounting.oracles import all_of, divergence

USER = Adjacency()


def allocated(z: float, epoch_rounds: int) -> RoundEvent:
    return RoundEvent("user_level", z, q_u=1 / epoch_rounds, epoch_rounds=epoch_rounds)


# Upper and lower bounds of PLD_accounting 2.0 (PyPI; Feldman and Shenfeld 2026), gaussian_allocation_epsilon_range with
# its default accuracy: t, epochs, z, δ, lower, upper.
PLD_ACCOUNTING = [
    (20, 3, 1.0, 1e-5, 2.35306, 2.42276),
    (10, 20, 2.0, 1e-5, 3.11207, 3.20177),
    (20, 10, 2.0, 1e-5, 1.42819, 1.49147),
    (100, 2, 2.0, 1e-5, 0.24659, 0.25810),
    (60, 1, 1.0, 1e-5, 0.85409, 0.88416),
    (100, 5, 2.0, 1e-5, 0.40521, 0.42392),
    (5, 4, 3.0, 1e-6, 1.28903, 1.35046),
    (20, 1, 0.6, 1e-5, 4.99907, 5.02604),
]


@pytest.mark.parametrize(("t", "epochs", "z", "delta_", "lower", "upper"), PLD_ACCOUNTING)
def test_epsilon_lies_between_the_bounds_of_another_library(
    t: int, epochs: int, z: float, delta_: float, lower: float, upper: float
) -> None:
    assert lower <= epsilon(allocated(z, t), USER, t * epochs, delta_) <= upper


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (2.0, 7), (0.5, 1), (4.0, 100)])
def test_an_epoch_of_one_round_is_the_gaussian_mechanism(z: float, rounds: int) -> None:
    gaussian = epsilon(RoundEvent("user_level", z), USER, rounds, 1e-5)
    assert epsilon(allocated(z, 1), USER, rounds, 1e-5) == pytest.approx(gaussian, rel=1e-3)
    closed = stats.norm.cdf(0.5 / z - gaussian * z) - math.exp(gaussian) * stats.norm.cdf(-0.5 / z - gaussian * z)
    assert rounds > 1 or closed == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 2), (0.7, 2), (1.0, 1)])
def test_an_epoch_of_two_rounds_agrees_with_integration(z: float, rounds: int) -> None:
    x = np.linspace(-9, 9 + 1 / z, 2001)
    weight = stats.norm.pdf(x) * (x[1] - x[0])
    ratio = np.exp(x / z - 1 / (2 * z**2))
    if rounds == 2:
        ratio, weight = np.add.outer(ratio, ratio) / 2, np.multiply.outer(weight, weight)
    else:
        ratio = (1 + ratio) / 2
    forward, reverse = allocation_atoms(z, 2, rounds, 1e-12)
    for at in (0.0, 0.5, 1.5):
        gamma = math.exp(at)
        for loss, exact in (
            (forward, float((weight * np.maximum(ratio - gamma, 0)).sum())),
            (reverse, float((weight * np.maximum(1 - gamma * ratio, 0)).sum())),
        ):
            assert exact <= divergence(loss, at) + 1e-9
            assert divergence(loss, at) == pytest.approx(exact, rel=3e-3, abs=1e-7)


@pytest.mark.parametrize(("t", "rounds", "z"), [(30, 30, 1.0), (7, 7, 0.6), (30, 12, 1.0)])
def test_one_epoch_agrees_with_monte_carlo_in_both_directions(t: int, rounds: int, z: float) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((200_000, rounds))
    ratio = (np.exp(x / z - 1 / (2 * z**2)).sum(axis=1) + t - rounds) / t
    forward, reverse = allocation_atoms(z, t, rounds, 1e-12)
    for at in (0.0, 0.2, 0.6):
        for loss, samples in (
            (forward, np.maximum(ratio - math.exp(at), 0)),
            (reverse, np.maximum(1 - math.exp(at) * ratio, 0)),
        ):
            error = float(samples.std()) / math.sqrt(len(samples)) + 1e-9
            assert abs(divergence(loss, at) - float(samples.mean())) < 5 * error + 2e-3 * float(samples.mean())


@pytest.mark.parametrize(("t", "rounds"), [(20, 20), (20, 7), (500, 500), (3, 1)])
def test_both_masses_are_kept(t: int, rounds: int) -> None:
    forward, reverse = allocation_atoms(1.3, t, rounds, 1e-12)
    assert forward.masses.sum() + forward.infinite == pytest.approx(1, abs=1e-11)
    assert reverse.masses.sum() + reverse.infinite == pytest.approx(1, abs=1e-11)
    assert forward.infinite < 1e-10 > reverse.infinite
    cut, _ = allocation_atoms(1.3, t, rounds, 1e-4)
    assert cut.masses.sum() + cut.infinite == pytest.approx(1, abs=1e-11)
    assert cut.infinite > 1e-8


def test_a_sum_of_sums_is_charged_for_what_both_lost_and_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, rough = (random_allocation._single(1.3, tail) for tail in (1e-12, 1e-4))
    first, second = replace(fine, cut=0.25, round_off=1e-3), replace(fine, cut=0.5, round_off=1e-2)
    with monkeypatch.context() as patched:  # a grid that ends at 5: any is valid
        patched.setattr(random_allocation, "_grid", lambda values, masses, tail: np.linspace(0.0, 5.0, 400))
        total = random_allocation._add(first, second, 1e-4)
    assert float(total.masses @ total.values) + total.cut == pytest.approx(2.75, abs=1e-9)  # both have the mean 1
    assert total.cut > 0.751
    assert 0.011 < total.round_off < 0.0111
    eight = random_allocation._power(rough, 8, 1e-4)
    assert float(eight.masses @ eight.values) + eight.cut == pytest.approx(8, abs=1e-9)  # each has the mean 1
    assert eight.round_off > 8 * rough.round_off


def test_losses_of_an_epoch_are_charged_for_what_their_sum_lost_and_rounded() -> None:
    total = random_allocation._power(random_allocation._single(1.3, 1e-4), 6, 1e-4)
    forward, reverse = allocation_atoms(1.3, 6, 6, 1e-4)
    assert forward.infinite == pytest.approx(total.cut / 6, rel=1e-12)
    assert reverse.infinite == total.masses[0] > 0  # the larger corpus never has a ratio of 0
    assert forward.round_off == reverse.round_off == 2 * total.round_off > 0


def test_hidden_blocks_are_charged_for_what_each_lost_and_rounded() -> None:
    tail, blocks = 1e-3, [random_allocation._Block(1.0, 6, larger) for larger in (True, False)]
    width = random_allocation._coarse_width(1.3, ((1.0, tuple(blocks)),), tail)
    for forward in (True, False):
        alone = [random_allocation._case_on_grid(1.3, [block], forward, width, tail) for block in blocks]
        both = random_allocation._case_on_grid(1.3, blocks, forward, width, tail)
        assert both.infinite == pytest.approx(sum(loss.infinite for loss in alone), rel=1e-12)
        transforms = random_allocation.FFT_ROUND_OFF * math.log2(len(both.masses))
        assert both.round_off >= sum(loss.round_off for loss in alone) + transforms
        epoch = ((0.75, tuple(blocks)), (0.125, (blocks[0],)))  # an eighth of the cases is not listed
        mixed = random_allocation._on_grid(1.3, epoch, forward, width, tail)
        assert mixed.infinite == pytest.approx(0.125 + 0.75 * both.infinite + 0.125 * alone[0].infinite, rel=1e-9)
        assert mixed.infinite > 0.125
        assert mixed.round_off == both.round_off


@pytest.mark.nightly
def test_less_costs_less() -> None:
    curve = epsilon_curve(allocated(1.0, 20), USER, range(1, 46), 1e-5)
    assert (np.diff(curve) >= 0).all()
    assert curve[0] == pytest.approx(epsilon(RoundEvent("user_level", 1.0, q_u=0.05), USER, 1, 1e-5), rel=1e-3)
    exact = [epsilon(allocated(1.0, 20), USER, count, 1e-5) for count in (1, 6, 20, 21, 40, 45)]
    assert (np.diff(exact) > 0).all()
    assert (curve[[0, 5, 19, 20, 39, 44]] >= np.array(exact) * (1 - 1e-4)).all()
    assert curve[-1] == exact[-1]
    by_noise = [epsilon(allocated(z, 20), USER, 20, 1e-5) for z in (0.15, 0.19, 0.21, 0.5, 1, 4, 100)]
    assert (np.diff(by_noise) < 0).all()


def test_delta_and_epsilon_are_inverse() -> None:
    at = epsilon(allocated(1.0, 10), USER, 25, 1e-6)
    assert delta(allocated(1.0, 10), USER, 25, at) == pytest.approx(1e-6, rel=0.02)


# A user with an entity


@pytest.mark.parametrize(("users", "with_user"), [(0, True), (1, True), (3, True), (3, False), (1, False)])
def test_the_squared_shift_is_that_of_all_allocations(users: int, with_user: bool) -> None:
    t = 4
    counted: Counter[int] = Counter()
    for places in np.ndindex(*(t,) * (users + with_user)):
        shift = np.zeros(t)
        for place in places[:users]:
            shift[place] += 2
        for place in places[users:]:
            shift[place] += 1
        counted[int((shift**2).sum())] += 1
    law = random_allocation._squared_shift(t, users, with_user)
    np.testing.assert_allclose(law.values, sorted(counted))
    exact = [counted[value] / t ** (users + with_user) for value in sorted(counted)]
    np.testing.assert_allclose(law.probabilities, exact)


def test_a_bound_on_the_squared_shift_holds_for_all_but_the_tail() -> None:
    for t, users in ((20, 15), (5, 40), (100, 3)):
        largest = random_allocation._largest_squared_shift(t, users, True, 1e-3)
        rows = np.random.default_rng(1).multinomial(users, np.full(t, 1 / t), size=20_000)
        rows = 2 * rows
        rows[:, 0] += 1
        assert ((rows**2).sum(axis=1) > largest.values[0]).mean() <= 2e-3
        assert (largest.probabilities.tolist(), largest.cut) == ([1.0], 1e-3)


@pytest.mark.parametrize("tail", [1e-9, 1e-18])
def test_a_bound_that_may_fail_is_charged_for_it(tail: float) -> None:
    """Also where 1 less the tail is 1."""
    (case,) = random_allocation._revealed(1000, Adjacency(math.inf, ContributionBound(100, 1)), tail)
    assert case.missing == (tail, tail)


@pytest.mark.parametrize(("t", "users", "n"), [(20, 20, math.inf), (12, 30, 0.0)])
def test_merged_cases_have_the_largest_shift_of_each(t: int, users: int, n: float) -> None:
    """No shift of the exact distribution becomes a smaller one."""
    law = random_allocation._squared_shift(t, users, n > 0)
    cases = random_allocation._revealed(t, Adjacency(n, ContributionBound(users, 1)), 1e-12)
    assert len(cases) < len(law.values)
    for value in law.values.tolist():
        exact = float(law.probabilities[law.values >= value].sum())
        merged = sum(case.probability for case in cases if case.shifts[0] ** 2 >= value * (1 - 1e-12))
        assert merged >= exact - 1e-12


@pytest.mark.parametrize("users", [1, 2, 9])
def test_all_of_an_epoch_of_one_round_fall_together(users: int) -> None:
    """The protected user and all who mention the entity share the only round: a shift of 2F + 1."""
    largest = random_allocation._largest_squared_shift(1, users, True, 1e-12)
    assert largest.values.tolist() == [(2 * users + 1) ** 2]
    adjacency = Adjacency(math.inf, ContributionBound(users, 1))
    z = 3.0 * (2 * users + 1)
    gaussian = epsilon(RoundEvent("user_level", 3.0), USER, 4, 1e-5)
    assert epsilon(allocated(z, 1), adjacency, 4, 1e-5) == pytest.approx(gaussian, rel=2e-3)


def test_the_cases_of_groups_are_those_of_all_allocations() -> None:
    t, users = 5, 3
    counted: Counter[Groups] = Counter()
    for places in np.ndindex(*(t,) * (users + 1)):
        sizes = Counter(places[:users])
        own = [(size, size + (place == places[-1])) for place, size in sizes.items()]
        counted[tuple(sorted(own + [(0, 1)] * (places[-1] not in sizes)))] += 1
    cases = random_allocation.cases(users, t, with_user=True)
    assert sum(case.probability for case in cases) == pytest.approx(1)
    assert {tuple(sorted(case.groups)): round(case.probability * t ** (users + 1)) for case in cases} == counted
    assert sum(case.probability for case in random_allocation.cases(users, t, with_user=False)) == pytest.approx(1)


def losses_of_samples(t: int, z: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """ln P/Q of an epoch under P and under Q for one user who mentions the entity, all rounds hidden."""
    generator = np.random.default_rng(seed)
    number = 200_000
    rows = np.arange(number)

    def loss(x: np.ndarray) -> np.ndarray:
        up, down = np.exp(x / z - 1 / (2 * z**2)), np.exp(-x / z - 1 / (2 * z**2))
        squares = up.sum(axis=1) ** 2 - (1 - math.exp(-1 / z**2)) * (up**2).sum(axis=1)  # both, in one round or in two
        return np.log(squares / t**2) - np.log(down.mean(axis=1))

    larger = generator.standard_normal((number, t))
    for _ in range(2):
        larger[rows, generator.integers(t, size=number)] += 1 / z
    smaller = generator.standard_normal((number, t))
    smaller[rows, generator.integers(t, size=number)] -= 1 / z
    return loss(larger), loss(smaller)


@pytest.mark.nightly
@pytest.mark.parametrize(("t", "z"), [(12, 1.5), (6, 1.0), (40, 1.0)])
def test_revealed_blocks_are_no_better_than_the_hidden_pair(t: int, z: float) -> None:
    forward, reverse = losses_of_samples(t, z, seed=2)
    epochs = HiddenEpochs(z, t, users=1, with_user=True)
    for at in (0.5, 1.5, 3.0):
        attained = [np.maximum(1 - np.exp(at - forward), 0), np.maximum(1 - np.exp(at + reverse), 0)]
        bound = random_allocation.delta_at(epochs, 1, at)
        for samples in attained:
            assert samples.mean() - 5 * samples.std() / math.sqrt(len(samples)) < bound
        pair = random_allocation._revealed(t, Adjacency(math.inf, ContributionBound(1, 1)), 1e-12)
        assert bound < 0.8 * composition.delta_at(pair, z, 1, at)


def test_the_bound_of_two_blocks_is_that_of_their_samples() -> None:
    """One user who mentions the entity, nobody else: three rounds for the larger corpus, three for the smaller."""
    z, number = 0.8, 400_000
    x = np.random.default_rng(4).standard_normal((number, 6)) / z
    x[np.arange(number), np.random.default_rng(5).integers(3, size=number)] += 1 / z**2
    loss = np.log(np.exp(x[:, :3]).mean(axis=1)) - np.log(np.exp(x[:, 3:]).mean(axis=1))  # in both directions
    for at in (0.5, 2.0):
        samples = np.maximum(1 - np.exp(at - loss), 0)
        error = 5 * float(samples.std()) / math.sqrt(number)
        bound = random_allocation.delta_at(HiddenEpochs(z, 6, users=1, with_user=False), 1, at)
        assert abs(bound - float(samples.mean())) < error + 0.01 * float(samples.mean())


def test_a_user_beside_an_entity_is_not_free() -> None:
    for users in (2, 12):  # few users hide their rounds, many reveal them
        entity = ContributionBound(users, 1)
        alone, both = (epsilon(allocated(2.0, 20), Adjacency(n, entity), 20, 1e-5) for n in (0.0, math.inf))
        assert both > 1.005 * alone


# Composition


@pytest.mark.nightly
def test_epochs_compose_with_one_another_and_with_other_rounds() -> None:
    event, other = allocated(1.0, 20), RoundEvent("user_level", 1.5, q_u=0.1)
    together = epsilon(event, USER, 45, 1e-5)
    parts = {EpochEvent(1.0, 20, 20): 2, EpochEvent(1.0, 20, 5): 1}
    assert random_allocation.epochs(1.0, 20, 45) == parts
    assert composed_epsilon(all_of(parts, USER), 1e-5) == composed_epsilon(all_of({event: 45}, USER), 1e-5)
    assert composed_epsilon(all_of({event: 45}, USER), 1e-5) == together
    both = composed_epsilon(all_of({event: 45, other: 30}, USER), 1e-5)
    assert max(together, epsilon(other, USER, 30, 1e-5)) < both < together + epsilon(other, USER, 30, 1e-5)
    of_entity = Adjacency(math.inf, ContributionBound(2, 1))
    for adjacency in (USER, of_entity):
        for count in (1, 2, 5):
            epochs = composed_epsilon([(EpochEvent(1.0, 20, 20), adjacency, count)], 1e-5)
            assert epochs == pytest.approx(epsilon(event, adjacency, 20 * count, 1e-5), rel=1e-9)
    begun = [(EpochEvent(1.0, 20, 20), of_entity, 1), (EpochEvent(1.0, 20, 3), of_entity, 1)]
    assert composed_epsilon(begun, 1e-5) == pytest.approx(epsilon(event, of_entity, 40, 1e-5), rel=1e-9)
    assert epsilon(event, of_entity, 23, 1e-5) == pytest.approx(epsilon(event, of_entity, 40, 1e-5), rel=1e-9)
    split = {EpochEvent(1.0, 20, 10): 2}
    assert composed_epsilon(all_of(split, USER), 1e-5) > epsilon(event, USER, 20, 1e-5)  # two allocations, two parts


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch_rounds": 0}, "epoch_rounds is 0; allowed: an integer from 1 to 100000"),
        ({"epoch_rounds": 100_001}, "epoch_rounds is 100001"),
        ({"q_u": 0.06}, "q_u is 0.06 and epoch_rounds is 20; allowed: q_u 0.05"),
        ({"strategy": "uedp"}, "epoch_rounds is 20 and strategy is 'uedp'; allowed: with 'user_level'"),
    ],
)
def test_bad_events_are_refused(changes: dict[str, object], message: str) -> None:
    values = {"strategy": "user_level", "noise_multiplier": 1.0, "q_u": 0.05, "epoch_rounds": 20}
    with pytest.raises(PrivacyError, match=message):
        RoundEvent(**values | changes)  # type: ignore[arg-type]


def test_a_round_twice_in_an_epoch_is_refused() -> None:
    with pytest.raises(PrivacyError, match="an epoch of 5 rounds has 6 releases; allowed: each round once"):
        EpochEvent(1.0, 5, 6)


def test_nothing_takes_its_rounds_for_independent_ones() -> None:
    from fl_sim.strategies.accounting.entity_profiles import ProfileAccountant

    with pytest.raises(PrivacyError, match="epoch_rounds is 20; allowed: none"):
        ProfileAccountant(allocated(1.0, 20), math.inf, 20, 1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("z", "users", "epoch_rounds"), [(0.2, 5, 20), (0.25, 5, 20), (0.35, 5, 1)])
def test_ratios_beyond_all_doubles_leave_the_bound_that_reveals(z: float, users: int, epoch_rounds: int) -> None:
    """The first was a traceback; of the others the ratios that underflow made ε no number."""
    event = RoundEvent("user_level", z, q_u=1 / epoch_rounds, epoch_rounds=epoch_rounds)
    adjacency = Adjacency(math.inf, ContributionBound(users, 1))
    at = epsilon(event, adjacency, 2 * epoch_rounds, 1e-5)
    assert 1e3 < at < math.inf
    assert 0 < delta(event, adjacency, 2 * epoch_rounds, at) <= 1.1e-5


@pytest.mark.filterwarnings("error")
def test_noise_beside_which_a_user_vanishes_has_an_epsilon() -> None:
    assert epsilon(RoundEvent("user_level", 1e300, q_u=0.05, epoch_rounds=20), Adjacency(), 20, 1e-5) == 0
