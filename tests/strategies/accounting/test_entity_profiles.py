"""Test ε of an entity's own profile against contribution bounds, brute force and one-by-one computation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_sim.strategies.accounting import entity_profiles
from fl_sim.strategies.accounting.accountant import RoundEvent, dominating_pairs_of
from fl_sim.strategies.accounting.accountant import epsilon as reach_epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.entity_profiles import (
    ProfileAccountant,
    _CaseLoss,
    _Round,
)
from fl_sim.strategies.accounting.losses import composition, dominating_pairs
from fl_sim.strategies.accounting.losses.privacy_loss import Floats, GaussianMixturePair
from tests.strategies.accounting.oracles import ScalarPair

DELTA = 1e-5
ROUNDS = 20
GRIDS = 7e-4  # two bounds on different grids may differ by so much
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


def profile(*counts: int) -> entity_profiles.Profile:
    return np.array(sorted(counts, reverse=True), dtype=np.int64)


def own_epsilon(event: RoundEvent, entity_profile: entity_profiles.Profile, user_sentences: float = 20) -> float:
    return ProfileAccountant(event, user_sentences, ROUNDS, DELTA).epsilon(entity_profile)


def revealed(accountant: ProfileAccountant, entity_profile: entity_profiles.Profile) -> _Round:
    cases, reduced = accountant._cases, entity_profiles.reduced_profile(accountant.event, entity_profile)
    return (cases.alone if accountant.event.q_u == 1 else cases.together)(reduced, accountant.event.q_e)


def by_revealing(accountant: ProfileAccountant, entity_profile: entity_profiles.Profile) -> float:
    """ε by Theorem 1 alone."""
    return float(accountant._composed([revealed(accountant, entity_profile)])[0])


def brute_force(event: RoundEvent, user_sentences: int, entity_profile: entity_profiles.Profile) -> float:
    """Theorem 1 without a shortcut: every set of sampled users is revealed and has a distribution of its own."""
    kept = tuple(mixture for mixture in every_set(event, user_sentences, entity_profile) if mixture.probability > 0)
    return float(composition.epsilon_curve(kept, event.noise_multiplier, np.array([ROUNDS]), DELTA)[0])


def every_set(
    event: RoundEvent, user_sentences: int, entity_profile: entity_profiles.Profile
) -> list[GaussianMixturePair]:
    cap = event.user_cap
    user = dominating_pairs.user_shift(event.q_u, event.q_s, user_sentences, cap, 1e-14)
    mixtures: list[GaussianMixturePair] = []
    for sampled in itertools.product((0, 1), repeat=len(entity_profile)):
        probability = math.prod(event.q_u if b else 1 - event.q_u for b in sampled)
        distribution = {0.0: 1.0}
        for count in entity_profile[np.array(sampled, dtype=bool)]:
            taken = [(min(k, 2 * cap), stats.binom.pmf(k, count, event.q_s)) for k in range(count + 1)]
            distribution = convolved(distribution, taken)
        active = [(value, event.q_e * mass) for value, mass in distribution.items()] + [(0.0, 1 - event.q_e)]
        both = convolved(dict(zip(user.values, user.probabilities, strict=True)), active)
        moved = np.array(sorted((value / cap, mass) for value, mass in both.items() if value > 0 and mass > 0))
        mixtures.append(GaussianMixturePair(probability, both.get(0.0, 0.0), moved[:, 0], moved[:, 1]))
    return mixtures


def convolved(distribution: dict[float, float], more: list[tuple[float, float]]) -> dict[float, float]:
    result: dict[float, float] = {}
    for (first, p), (second, q) in itertools.product(distribution.items(), more):
        result[first + second] = result.get(first + second, 0.0) + p * q
    return result


@pytest.mark.sample(5)
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


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["sentence sampling", "fractional cap", "user sampling", "everything", "both"])
@pytest.mark.parametrize("counts", [(1,), (3, 1), (12, 5, 1)])
def test_epsilon_of_one_round_is_not_below_integration(name: str, counts: tuple[int, ...]) -> None:
    """δ at our ε, by numerical integration over every revealed set of users, stays within what was allowed."""
    event, counted = EVENTS[name], profile(*counts)
    epsilon = by_revealing(ProfileAccountant(event, 20, 1, DELTA), counted)

    def delta(epsilon: float) -> float:
        total = np.zeros(2)
        for mixture in every_set(event, 20, counted):
            centres = np.concatenate([[0.0], mixture.shifts])
            weights = np.concatenate([[mixture.common], mixture.weights])
            pair = ScalarPair((centres, weights), (np.zeros(1), np.ones(1)), event.noise_multiplier)
            total += mixture.probability * np.array(pair.delta(epsilon))
        return float(total.max())

    assert delta(epsilon) <= DELTA
    if name != "both" or counts == (1,):  # there the cap of each user counts
        assert delta(epsilon * (1 - 1e-3)) > DELTA  # and it is not far above


@pytest.mark.nightly
@settings(max_examples=15, deadline=None)
@given(PROFILES, st.sampled_from(sorted(EVENTS)))
def test_a_profile_never_has_a_larger_epsilon_than_its_bound(
    entity_profile: entity_profiles.Profile, name: str
) -> None:
    entity_bound = ContributionBound(len(entity_profile), int(entity_profile.max(initial=0)), int(entity_profile.sum()))
    bound = reach_epsilon(EVENTS[name], Adjacency(20, entity_bound), ROUNDS, DELTA)
    assert own_epsilon(EVENTS[name], entity_profile) <= bound * (1 + GRIDS)


@pytest.mark.nightly
@settings(max_examples=15, deadline=None)
@given(PROFILES, PROFILES, st.sampled_from(sorted(EVENTS)))
def test_more_users_or_sentences_never_cost_less(
    one: entity_profiles.Profile, two: entity_profiles.Profile, name: str
) -> None:
    padded = [np.pad(each, (0, 5 - len(each))) for each in (one, two)]
    above = np.trim_zeros(np.maximum(*padded))
    assert own_epsilon(EVENTS[name], one) <= own_epsilon(EVENTS[name], above) * (1 + GRIDS)


@every_event
def test_equal_reduced_profiles_have_equal_epsilon(event: RoundEvent) -> None:
    unreduced = profile(7, 3, 2, 1)
    assert own_epsilon(event, entity_profiles.reduced_profile(event, unreduced)) == pytest.approx(
        own_epsilon(event, unreduced), rel=GRIDS
    )


def test_a_user_counts_for_twice_its_cap_at_most() -> None:
    always = EVENTS["everything"]
    assert own_epsilon(always, profile(400)) == own_epsilon(always, profile(4)) < own_epsilon(always, profile(4, 1))
    assert own_epsilon(always, profile(3)) < own_epsilon(always, profile(4))


def test_two_sampled_users_are_capped_twice() -> None:
    """Each has far more sentences than its cap, so two of them cost what two at their caps cost."""
    often = RoundEvent("uedp", 9.0, q_u=0.9, q_s=0.9, user_cap=2)
    one, two = own_epsilon(often, profile(40)), own_epsilon(often, profile(40, 40))
    assert two > 1.5 * one


def test_a_fractional_cap_is_rounded_up() -> None:
    """Twice 1.25 is 2.5, which three sentences exceed and two do not reach."""
    always = RoundEvent("uedp", 9.0, user_cap=1.25)
    two, three, many = (own_epsilon(always, profile(count)) for count in (2, 3, 400))
    assert two < three == many


@pytest.mark.sample(2)
@every_event
def test_many_profiles_together_have_the_epsilon_of_each_alone(event: RoundEvent) -> None:
    profiles = [*random_profiles(4), profile(), profile(40, 7, 7, 1)]
    together = ProfileAccountant(event, 20, ROUNDS, DELTA)
    alone = [own_epsilon(event, one) for one in profiles]
    assert together.epsilons(profiles) == pytest.approx(alone, rel=1e-12)
    assert together.epsilons(profiles[::-1]) == pytest.approx(alone[::-1], rel=1e-12)
    missed = [own_epsilon(event.robust(), one) for one in profiles]
    assert together.robust().epsilons(profiles) == pytest.approx(missed, rel=1e-12)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("rounds", "counts"), [(1, (3, 1)), (30, (2,) * 20 + (1,) * 30), (1000, (3, 1))])
@pytest.mark.parametrize("name", ["sentence sampling", "user sampling", "both", "user level"])
def test_the_shared_cases_agree_with_a_grid_of_their_own(name: str, rounds: int, counts: tuple[int, ...]) -> None:
    """Against the same revealed cases, each discretised on one grid for this profile alone."""
    counted, tail = profile(*counts), composition.tail_share(DELTA, rounds)
    for event in (EVENTS[name], EVENTS[name].robust()):
        exposure = entity_profiles.profile_exposure(event, entity_profiles.reduced_profile(event, counted), tail)
        mixtures = dominating_pairs_of(event, Adjacency(20), exposure, tail)
        own_grid = composition.epsilon_curve(mixtures, event.noise_multiplier, np.array([rounds]), DELTA)[0]
        shared = by_revealing(ProfileAccountant(event, 20, rounds, DELTA), counted)
        assert shared == pytest.approx(own_grid, rel=GRIDS)


def test_rare_cases_are_joined_to_one_of_as_many_users() -> None:
    """Cases of few sentences may be those of many users, whose cap is higher."""
    cases = entity_profiles._Cases(np.array([1e-14, 1e-14, 0.5, 0.5]), np.array([3, 5, 1, 1]), np.array([5, 6, 7, 8]))
    left = cases.without_rare(1e-12)
    assert (left.users.tolist(), left.sentences.tolist()) == ([5, 1], [7, 8])
    assert left.probabilities.sum() == cases.probabilities.sum()


def test_joined_cases_are_joined_to_the_larger() -> None:
    cases = entity_profiles._Cases(np.array([0.5, 0.3, 0.2]), np.array([0, 2, 1]), np.array([0, 3, 7]))
    joined = cases.coarsened(2)
    assert joined.probabilities == pytest.approx(np.array([0.8, 0.2]))
    assert joined.sentences.tolist() == [3, 7]
    assert joined.users.tolist() == [2, 1]


def test_too_many_cases_are_joined_to_larger_ones_that_all_profiles_share() -> None:
    sentences = np.arange(101, 201)
    cases = entity_profiles._Cases(np.ones(100) / 100, sentences, sentences)
    joined = cases.joined(30)
    assert joined.sentences.tolist() == list(range(104, 201, 4))
    assert joined.users.tolist() == joined.sentences.tolist()
    assert joined.probabilities == pytest.approx(np.full(25, 0.04))
    assert cases.joined(100) is cases


def test_unlisted_cases_are_added_to_delta() -> None:
    accountant = ProfileAccountant(EVENTS["user sampling"], 20, ROUNDS, DELTA)
    complete = revealed(accountant, profile(1))
    without: Floats = complete.probabilities * 0.999
    assert accountant._composed([_Round(complete.cases, without)])[0] == math.inf


def test_the_larger_direction_counts() -> None:
    """The larger corpus against the smaller always costs more here, so the other way round is tried by exchange."""
    accountant = ProfileAccountant(EVENTS["user sampling"], 20, ROUNDS, DELTA)
    both = revealed(accountant, profile(3, 2))
    exchanged = [
        _CaseLoss((case.directions[1], case.directions[0]), case.moments[::-1], moves=case.moves) for case in both.cases
    ]
    one_way, other_way = accountant._composed([both, _Round(exchanged, both.probabilities)])
    assert one_way == pytest.approx(other_way, rel=1e-12)
    twice = [_CaseLoss((case.directions[1],) * 2, case.moments[[1, 1]], moves=case.moves) for case in both.cases]
    assert accountant._composed([_Round(twice, both.probabilities)])[0] < 0.7 * one_way


def test_no_entity_is_the_user_alone() -> None:
    for event in (OURS, EVENTS["user sampling"]):
        assert own_epsilon(event, profile()) == pytest.approx(
            reach_epsilon(event, Adjacency(20), ROUNDS, DELTA), rel=GRIDS
        )


def test_epsilon_is_zero_without_a_protected_user_or_entity() -> None:
    for event in (OURS, EVENTS["user sampling"]):
        assert own_epsilon(event, profile(), user_sentences=0) == 0


@pytest.mark.parametrize("counts", [[1, 2], [1, 0]])
def test_an_impossible_profile_is_refused(counts: list[int]) -> None:
    with pytest.raises(PrivacyError, match="profile"):
        own_epsilon(OURS, np.array(counts, dtype=np.int64))


def random_profiles(number: int) -> list[entity_profiles.Profile]:
    draw = np.random.default_rng(0)
    distinct = {tuple(sorted(draw.zipf(1.8, draw.integers(1, 8)).clip(max=30), reverse=True)) for _ in range(number)}
    return [profile(*counts) for counts in sorted(distinct)]
