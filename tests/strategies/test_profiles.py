"""ε of an entity's own profile: against reaches, brute force and one-by-one computation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies import composition, profiles, shifts
from strategies.accounting import RoundEvent
from strategies.accounting import epsilon as reach_epsilon
from strategies.privacy_loss import GridLoss, ShiftMixture
from strategies.profile_accountant import ProfileAccountant, _weighted
from strategies.profile_bounds import bound_all, join, meet
from strategies.shifts import Exposure
from strategies.units import Adjacency, PrivacyError, Reach

DELTA = 1e-5
ROUNDS = 20
GRIDS = 2e-4  # two bounds on different grids may differ by so much
OURS = RoundEvent("uedp", 2.0, q_e=0.5, q_s=0.1, user_cap=2)
EVENTS = {
    "sentence sampling": OURS,
    "fractional cap": RoundEvent("uedp", 2.0, q_s=0.3, user_cap=1.25),
    "user sampling": RoundEvent("uedp", 1.0, q_u=0.1, q_e=0.5, user_cap=5),
    "both": RoundEvent("uedp", 1.0, q_u=0.2, q_e=0.5, q_s=0.5, user_cap=1),
    "user clip": RoundEvent("uedp", 1.0, q_u=0.1, q_e=0.5, user_cap=5, clipping="user"),
    "user level": RoundEvent("user_level", 1.0, q_u=0.1),
    "everything": RoundEvent("uedp", 9.0, user_cap=2),
}
every_event = pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())

PROFILES = st.lists(st.integers(1, 9), max_size=5).map(lambda counts: profile(*counts))


def profile(*counts: int) -> profiles.Profile:
    return np.array(sorted(counts, reverse=True), dtype=np.int64)


def own_epsilon(event: RoundEvent, some: profiles.Profile, user_sentences: float = 20) -> float:
    return ProfileAccountant(event, user_sentences, ROUNDS, DELTA).epsilon(some)


def brute_force(event: RoundEvent, user_sentences: int, some: profiles.Profile) -> float:
    """Theorem 1 without a shortcut: every set of sampled users is revealed and has its own law."""
    cap, tail = event.user_cap, 0.0
    user = shifts.user_shift(event.q_u, event.q_s, user_sentences, cap, 1e-14)
    mixtures: list[ShiftMixture] = []
    for sampled in itertools.product((0, 1), repeat=len(some)):
        probability = math.prod(event.q_u if b else 1 - event.q_u for b in sampled)
        law = {0.0: 1.0}
        for count in some[np.array(sampled, dtype=bool)]:
            taken = [(min(k, 2 * cap), stats.binom.pmf(k, count, event.q_s)) for k in range(count + 1)]
            law = convolved(law, taken)
        active = [(value, event.q_e * mass) for value, mass in law.items()] + [(0.0, 1 - event.q_e)]
        both = convolved(dict(zip(user.values, user.probabilities, strict=True)), active)
        moved = np.array(sorted((value / cap, mass) for value, mass in both.items() if value > 0 and mass > tail))
        mixtures.append(ShiftMixture(probability, both.get(0.0, 0.0), moved[:, 0], moved[:, 1]))
    kept = tuple(mixture for mixture in mixtures if mixture.probability > 0)
    return float(composition.epsilon_curve(kept, event.noise_multiplier, np.array([ROUNDS]), DELTA)[0])


def convolved(law: dict[float, float], more: list[tuple[float, float]]) -> dict[float, float]:
    result: dict[float, float] = {}
    for (first, p), (second, q) in itertools.product(law.items(), more):
        result[first + second] = result.get(first + second, 0.0) + p * q
    return result


@pytest.mark.parametrize("name", ["sentence sampling", "fractional cap", "user sampling", "everything"])
@pytest.mark.parametrize("counts", [(1,), (3, 1), (12, 5, 1, 1), (30,)])
def test_epsilon_is_that_of_every_set_of_sampled_users(name: str, counts: tuple[int, ...]) -> None:
    event = EVENTS[name]
    assert own_epsilon(event, profile(*counts)) <= brute_force(event, 20, profile(*counts)) * (1 + GRIDS)
    if name != "user sampling" or counts == (1,):  # the second theorem may be better
        assert own_epsilon(event, profile(*counts)) == pytest.approx(
            brute_force(event, 20, profile(*counts)), rel=GRIDS
        )


def test_user_sampling_reveals_the_sentences_of_those_sampled() -> None:
    """A setting in which no cap and no second theorem plays a part."""
    event = RoundEvent("uedp", 1.0, q_u=0.1, q_e=0.5, q_s=0.5, user_cap=20)
    for counts in [(3, 1), (5, 2, 2, 1)]:
        assert own_epsilon(event, profile(*counts)) == pytest.approx(
            brute_force(event, 20, profile(*counts)), rel=GRIDS
        )


@every_event
@pytest.mark.parametrize("counts", [(1,), (2, 2, 2), (1,) * 40, (4, 4)])
def test_an_even_profile_has_the_epsilon_of_its_reach(event: RoundEvent, counts: tuple[int, ...]) -> None:
    own, bound = (
        own_epsilon(event, profile(*counts)),
        reach_epsilon(event, Adjacency(20, Reach(len(counts), counts[0])), ROUNDS, DELTA),
    )
    assert own <= bound * (1 + GRIDS)
    if max(counts) <= 2 * event.user_cap:
        assert own == pytest.approx(bound, rel=GRIDS)


@settings(max_examples=15, deadline=None)
@given(PROFILES, st.sampled_from(sorted(EVENTS)))
def test_a_profile_never_costs_more_than_its_reach(some: profiles.Profile, name: str) -> None:
    reach = Reach(len(some), int(some.max(initial=0)), int(some.sum()))
    bound = reach_epsilon(EVENTS[name], Adjacency(20, reach), ROUNDS, DELTA)
    assert own_epsilon(EVENTS[name], some) <= bound * (1 + GRIDS)


@settings(max_examples=15, deadline=None)
@given(PROFILES, PROFILES, st.sampled_from(sorted(EVENTS)))
def test_more_users_or_sentences_never_cost_less(one: profiles.Profile, two: profiles.Profile, name: str) -> None:
    event = EVENTS[name]
    above, below = join([one, two]), meet([one, two])
    assert own_epsilon(event, below) <= own_epsilon(event, one) * (1 + GRIDS)
    assert own_epsilon(event, one) <= own_epsilon(event, above) * (1 + GRIDS)


@every_event
def test_equal_reduced_profiles_have_equal_epsilon(event: RoundEvent) -> None:
    some = profile(7, 3, 2, 1)
    assert own_epsilon(event, profiles.reduced(event, some)) == pytest.approx(own_epsilon(event, some), rel=GRIDS)


def test_reduction_joins_what_does_not_matter() -> None:
    assert profiles.reduced(EVENTS["user clip"], profile(7, 3)).tolist() == [1, 1]
    assert profiles.reduced(OURS, profile(7, 3, 2)).tolist() == [7] + [1] * 5
    assert profiles.reduced(EVENTS["user sampling"], profile(20, 3)).tolist() == [10, 3]
    assert profiles.reduced(EVENTS["both"], profile(7, 3)).tolist() == [7, 3]


def test_a_user_counts_for_twice_its_cap_at_most() -> None:
    always = EVENTS["everything"]
    assert own_epsilon(always, profile(400)) == own_epsilon(always, profile(4)) < own_epsilon(always, profile(4, 1))


def test_a_large_profile_has_an_epsilon_too() -> None:
    many = np.sort(np.random.default_rng(1).zipf(2.0, 300).clip(max=200))[::-1]
    for name in ("sentence sampling", "user sampling"):
        assert own_epsilon(EVENTS[name], profile(50, 3)) < own_epsilon(EVENTS[name], many) < math.inf


def test_joined_cases_are_joined_to_the_larger() -> None:
    cases = profiles._Cases(np.array([0.5, 0.3, 0.2]), np.array([0, 2, 1]), np.array([0, 3, 7]))
    joined = cases.coarsened(2)
    assert joined.probabilities == pytest.approx(np.array([0.8, 0.2]))
    assert joined.sentences.tolist() == [3, 7]
    assert joined.users.tolist() == [2, 1]


def test_what_cases_leave_out_counts_as_a_certain_loss() -> None:
    losses = [GridLoss(1.0, 0, np.ones(1), 0.1, 1e-16), GridLoss(1.0, 2, np.ones(2) / 2, 0.2, 1e-15)]
    together = _weighted(losses, np.array([0.6, 0.3]), 0.1)
    assert together.infinite == pytest.approx(0.1 + 0.6 * 0.1 + 0.3 * 0.2)
    assert together.masses == pytest.approx(np.array([0.6, 0.0, 0.15, 0.15]))
    assert (together.first, together.round_off) == (0, 1e-15)


def test_unlisted_cases_are_charged() -> None:
    accountant = ProfileAccountant(EVENTS["user sampling"], 20, ROUNDS, DELTA)
    cases = Exposure(np.array([0.7, 0.299]), np.array([0, 1]), np.array([0, 1]))
    assert accountant._epsilon_of_cases(cases) == math.inf


def test_no_entity_is_the_user_alone() -> None:
    assert own_epsilon(OURS, profile()) == reach_epsilon(OURS, Adjacency(20), ROUNDS, DELTA)


@pytest.mark.parametrize("counts", [[1, 2], [1, 0]])
def test_an_impossible_profile_is_refused(counts: list[int]) -> None:
    with pytest.raises(PrivacyError, match="profile"):
        own_epsilon(OURS, np.array(counts, dtype=np.int64))


def test_impossible_rounds_and_delta_are_refused() -> None:
    with pytest.raises(PrivacyError, match="rounds is 0"):
        ProfileAccountant(OURS, 1, 0, DELTA)
    with pytest.raises(PrivacyError, match="delta is 1"):
        ProfileAccountant(OURS, 1, 1, 1.0)


def random_profiles(number: int) -> list[profiles.Profile]:
    draw = np.random.default_rng(0)
    distinct = {tuple(sorted(draw.zipf(1.8, draw.integers(1, 8)).clip(max=30), reverse=True)) for _ in range(number)}
    return [profile(*counts) for counts in sorted(distinct)]


def size(some: profiles.Profile) -> float:
    """A cheap stand-in for ε: it never falls when the profile grows."""
    return float(np.log1p(some).sum())


def test_few_profiles_are_computed_one_by_one() -> None:
    some = random_profiles(30)
    bounds = bound_all(some, [1] * len(some), size, most=len(some))
    assert bounds.upper.tolist() == bounds.lower.tolist() == [size(p) for p in some]
    assert bounds.evaluations == len(some)


@pytest.mark.parametrize("most", [4, 10, 50, 100])
def test_many_profiles_are_bounded_from_both_sides(most: int) -> None:
    some = random_profiles(400)
    common = 7
    multiplicities = [1000 if index == common else 1 for index in range(len(some))]
    bounds = bound_all(some, multiplicities, size, most)
    exact = np.array([size(p) for p in some])
    assert (bounds.lower <= exact).all()
    assert (exact <= bounds.upper).all()
    assert bounds.upper[common] == bounds.lower[common] == exact[common]
    assert bounds.evaluations <= most


def test_more_evaluations_bound_more_closely() -> None:
    some = random_profiles(400)
    worst = []
    for most in (10, 40, 160):
        bounds = bound_all(some, [1] * len(some), size, most)
        worst.append((bounds.upper / bounds.lower).max())
    assert worst[0] > worst[1] > worst[2]


def test_too_few_evaluations_are_refused() -> None:
    with pytest.raises(PrivacyError, match="evaluations is 3"):
        bound_all([profile(1)], [1], size, 3)
