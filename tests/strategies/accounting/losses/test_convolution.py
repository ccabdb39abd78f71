"""Test sums of losses against exact ones: tilts, blocks, rounding errors, and extreme δ and numbers of rounds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import log_ndtr

from fl_sim.strategies.accounting.accountant import RoundEvent, composed_epsilon, delta, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.losses.convolution import Convolution, TailSums, block_of, tilt
from fl_sim.strategies.accounting.losses.privacy_loss import GaussianMixturePair, GridLoss, discretize
from tests.strategies.accounting.oracles import hockey_stick, importance_sampled_delta, points_of

EXTREMES = json.loads((Path(__file__).parents[3] / "golden" / "extreme_epsilon.json").read_text())["cases"]
ROUNDS = 40
LOSS = GridLoss(0.05, -6, np.random.default_rng(3).dirichlet(np.full(16, 0.3)), 0.0, 0.0)


def exact_sum(loss: GridLoss, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses and masses of a sum of rounds, by plain convolution in extended precision."""
    masses = np.ones(1, dtype=np.longdouble)
    for _ in range(rounds):
        masses = np.convolve(masses, loss.masses.astype(np.longdouble))
    losses = loss.width * (rounds * loss.first + np.arange(len(masses)))
    return losses.astype(np.longdouble), masses


def bounds(order: float, at: np.ndarray, size: int = 1024) -> np.ndarray:
    low = ROUNDS * LOSS.first
    convolution = Convolution([tilt(LOSS, order)], low, size)
    (_, masses, log_scales, errors) = next(convolution.composed(np.array([[ROUNDS]])))
    return TailSums.of(convolution, masses, log_scales, errors).deltas(at)


@pytest.mark.parametrize("order", [2.0**-13, 1.0, 8.0])
def test_tilted_sums_bound_every_divergence(order: float) -> None:
    """Without a tilt small divergences drown in the error of the transforms, which the bound includes."""
    losses, masses = exact_sum(LOSS, ROUNDS)
    at = np.arange(0.0, losses[-1], 0.07)
    exact = np.array([hockey_stick(losses, masses, epsilon) for epsilon in at])
    assert exact.min() < 1e-25
    assert (bounds(order, at) >= exact).all()


@pytest.mark.parametrize("order", [2.0**-13, 3.0])
@pytest.mark.parametrize("factor", [1, 3])
def test_a_block_keeps_probabilities_and_dominates(order: float, factor: int) -> None:
    losses, masses = exact_sum(LOSS, 7)
    block = block_of(tilt(LOSS, order), 7, low=7 * LOSS.first - 2, size=256, factor=factor)
    coarse, plain = points_of(block), block.plain()
    assert block.width == pytest.approx(factor * LOSS.width)
    assert plain.sum() == pytest.approx(float(masses.sum()), abs=1e-12)
    assert (plain * np.exp(-coarse)).sum() == pytest.approx(float((masses * np.exp(-losses)).sum()), abs=1e-11)
    for at in np.arange(-2.0, 4.0, 0.11):
        bound, exact = hockey_stick(coarse, plain, at), hockey_stick(losses, masses, at)
        assert bound >= exact - 1e-11
        if factor == 1:
            assert bound == pytest.approx(exact, abs=1e-11)


def test_blocks_lose_what_their_window_cuts_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of blocks that cut off a share of each make the bound useless, never wrong."""
    pair, counts = (GaussianMixturePair(1.0, 0.0, np.ones(1), np.ones(1)),), np.array([5000])
    exact = composition.epsilon_curve(pair, 40.0, counts, 1e-5)[0]
    assert exact == pytest.approx(gaussian_epsilon(math.sqrt(5000) / 40, 1e-5), rel=1e-3)
    original = composition.window_of_moments

    def narrow(above: np.ndarray, below: np.ndarray, tail: float) -> composition.Window:
        window = original(above, below, tail)
        of_block = window.high - window.low < 1.0
        return replace(window, high=window.low + 0.1 * (window.high - window.low)) if of_block else window

    monkeypatch.setattr(composition, "window_of_moments", narrow)
    assert composition.epsilon_curve(pair, 40.0, counts, 1e-5)[0] == math.inf


def test_every_error_of_every_round_of_a_block_is_charged() -> None:
    one = replace(LOSS, width=0.15, infinite=2e-6, round_off=3e-7, relative=2e-9)
    fine = replace(LOSS, infinite=1e-6, round_off=1e-7, relative=1e-9)
    window = composition.Window(-3.0, 3.0)
    blocks = composition._Blocks(fine, 8, window, 256, 3, lost=1e-5, wrapped=np.zeros(len(composition.ORDERS)))
    kind, counts = composition._Kind(one, blocks), np.array([19, 8, 3])  # two blocks and three rounds, …
    of_block, of_round = 8 * 1.1e-6 + 1e-5, 2.3e-6
    assert kind.certain(counts) == pytest.approx([2 * of_block + 3 * of_round, of_block, 3 * of_round])
    assert kind.relative(counts) == pytest.approx([2 * 8e-9 + 3 * 2e-9, 8e-9, 6e-9])


def test_moments_of_a_block_include_what_its_coarser_grid_adds() -> None:
    window = composition.window_of([LOSS], [7], 1e-8)
    blocks = composition._Blocks.of(LOSS, 7, window, 256, 3)
    block = block_of(tilt(LOSS, 1.0), 7, blocks.low, 256, 3)
    losses = points_of(block)
    plain = np.where(block.masses > 1e-12, block.plain(), 0.0)  # without the rounding of the transforms
    (bounds,) = composition._Kind(replace(LOSS, width=block.width), blocks).moments(np.array([7]))
    for order, bound in zip(composition.ORDERS, bounds, strict=True):
        if 0.05 < order < 4:
            assert bound >= math.log((plain * np.exp(order * losses)).sum()) - 1e-9


def test_the_error_of_a_loss_counts_in_every_round_and_in_a_block() -> None:
    inexact = replace(tilt(LOSS, 1.0), error=1e-6)
    for rounds in (1, 7, 40):
        low = rounds * LOSS.first
        (_, _, _, errors) = next(Convolution([inexact], low, 1024).composed(np.array([[rounds]])))
        assert errors[0] >= rounds * 1e-6
        assert block_of(inexact, rounds, low, 1024, 3).error >= rounds * 1e-6


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε of the Gaussian mechanism of sensitivity/noise μ (Balle and Wang 2018), in logarithms."""

    def excess(at: float) -> float:
        above, below = log_ndtr(mu / 2 - at / mu), at + log_ndtr(-mu / 2 - at / mu)
        return float(np.log(-np.expm1(below - above)) + above - math.log(delta))

    return optimize.brentq(excess, 1e-9, mu * mu / 2 + 40 * mu)


@pytest.mark.parametrize("delta", [1e-6, 1e-10, 1e-14])
@pytest.mark.parametrize(
    ("z", "rounds"), [(1.0, 1), (20.0, 30), (5.0, 1000), (300.0, 10**5), (5.0, 10**5), (300.0, 10**6)]
)
def test_extremes_of_the_plain_gaussian_are_exact(z: float, rounds: int, delta: float) -> None:
    exact = gaussian_epsilon(math.sqrt(rounds) / z, delta)
    assert exact <= epsilon(RoundEvent("user_level", z), Adjacency(), rounds, delta) <= exact * 1.0006


@pytest.mark.parametrize(("z", "rounds"), [(1e-3, 1), (1e-5, 1), (1e-5, 40), (1e-6, 500), (1e-3, 20_000)])
def test_shifts_of_many_standard_deviations_have_the_epsilon_of_the_closed_form(z: float, rounds: int) -> None:
    """Their losses reach so far that the grid is wider than the sum of the rounds asks."""
    exact = gaussian_epsilon(math.sqrt(rounds) / z, 1e-5)
    assert exact <= epsilon(RoundEvent("user_level", z), Adjacency(), rounds, 1e-5) <= exact * 1.0006


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("q_u", [0.5, 1e-7])
@pytest.mark.parametrize("z", [1e-3, 1e-4])
def test_losses_that_overflow_in_tilted_sums_keep_the_bound_without(q_u: float, z: float) -> None:
    event = RoundEvent("user_level", z, q_u=q_u)
    assert epsilon(event, Adjacency(), 10**6, 1e-5) > 1e4
    assert 0 < delta(event, Adjacency(), 10**6, 1e4) <= 1


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    "case", EXTREMES, ids=lambda case: f"{case['q_u']}-{case['z']}-{case['rounds']}-{case['delta']}"
)
def test_extremes_are_no_looser_than_another_library(case: dict) -> None:
    event = RoundEvent("user_level", case["z"], q_u=case["q_u"])
    computed = epsilon(event, Adjacency(), case["rounds"], case["delta"])
    assert computed <= case["epsilon"] * 1.01
    assert computed >= case["epsilon"] * 0.99


@pytest.mark.nightly
@pytest.mark.parametrize(("q_u", "z", "rounds"), [(0.05, 1.0, 1000), (0.01, 1.0, 1000), (0.05, 20.0, 2000)])
@pytest.mark.parametrize("delta", [1e-10, 1e-14])
def test_a_tiny_delta_is_that_of_a_simulation(q_u: float, z: float, rounds: int, delta: float) -> None:
    """At δ 1e-14 the figures of dp_accounting 0.6.0 are up to 5 % below ε; a simulation of the tail shows it."""
    at = epsilon(RoundEvent("user_level", z, q_u=q_u), Adjacency(), rounds, delta)
    simulated, deviation = importance_sampled_delta(q_u, z, rounds, at)
    assert deviation < 0.06 * delta
    assert abs(simulated - delta) < 4 * deviation


@pytest.mark.sample(1)
@pytest.mark.parametrize("delta", [1e-9, 1e-12, 1e-14])
@pytest.mark.parametrize("rounds", [1, 30, 5000, 10**6])
def test_small_deltas_have_a_finite_epsilon(rounds: int, delta: float) -> None:
    entity = Adjacency(32, ContributionBound(10, 1))
    for event in (
        RoundEvent("uedp", 4.0, q_e=0.5, q_s=0.1, user_cap=2),
        RoundEvent("uedp", 4.0, q_u=0.1, q_e=0.5, q_s=0.1, user_cap=2),
        RoundEvent("uedp", 4.0, q_u=0.1, q_e=0.5, clipping="user"),
    ):
        assert 0 < epsilon(event, entity, rounds, delta) < math.inf
    other = RoundEvent("user_level", 10.0, q_u=0.1)
    together = composed_epsilon([(event, entity, rounds), (other, entity, 20)], delta)
    assert epsilon(event, entity, rounds, delta) <= together < math.inf


@pytest.mark.parametrize(
    ("z", "q_u", "rounds", "delta", "exact"),
    [(0.3, 0.001, 5000, 1e-8, 44.899), (0.7, 0.0005, 200_000, 1e-9, 3.868)],
)
def test_blocks_keep_the_mass_of_the_lowest_loss(z: float, q_u: float, rounds: int, delta: float, exact: float) -> None:
    """Nearly all of it, where hardly anybody is sampled; on the grid that sets the window it may lie a cell higher."""
    computed = epsilon(RoundEvent("user_level", z, q_u=q_u), Adjacency(), rounds, delta)
    assert computed == pytest.approx(exact, rel=1e-3)


def test_many_rounds_of_several_kinds_cost_what_they_cost_alone() -> None:
    event = RoundEvent("user_level", 1.0, q_u=0.01)
    pair = composition.Part((GaussianMixturePair(1.0, 0.99, np.ones(1), np.full(1, 0.01)),), 1.0, 50_000)
    together = composition.epsilon_of_parts([pair, pair], 1e-8)
    assert together == pytest.approx(epsilon(event, Adjacency(), 100_000, 1e-8), rel=1e-3)


@pytest.mark.parametrize("z", [0.7, 5.0])
@pytest.mark.parametrize("q", [0.01, 1.0])
def test_a_round_on_the_grid_is_exact_far_in_the_tail(z: float, q: float) -> None:
    """The relative error of a divergence of 1e-30 is as small as stated, where an absolute one would hide it."""
    pair = GaussianMixturePair(1.0, 1 - q, np.ones(1), np.full(1, q), cut=(0.0, 0.0))
    forward, _ = discretize((pair,), z, 1e-4, 1e-40)
    for at in np.arange(0.05, 4.0, 0.23):
        x = z * z * math.log((math.expm1(at) + q) / q) + 0.5
        tails = [q * stats.norm.sf((x - 1) / z), (1 - q) * stats.norm.sf(x / z)]
        exact = sum(tails) - math.exp(at) * stats.norm.sf(x / z)
        bound = hockey_stick(points_of(forward), forward.masses, at - forward.relative) * math.exp(forward.relative)
        assert bound + forward.infinite >= exact * (1 - 1e-10) - 1e-16 * tails[0]
        assert bound <= exact * (1 + 1e-3) + 1e-14 * sum(tails)
