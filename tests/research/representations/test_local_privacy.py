"""Local privacy layers by brute force: what holds, what was claimed and does not, and that a broken one is caught."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from fl_sim.research.representations.local_privacy import (
    Mechanism,
    MinMax,
    MinMaxShared,
    UnitL1,
    UnitL2,
    WordDropout,
    build_mechanism,
    discrete_laplace,
    dropout_epsilon,
    guarantee_of,
)
from fl_sim.strategies.accounting.adjacency import PrivacyError

KINDS = [MinMax, UnitL1, UnitL2]
Floats = np.ndarray


def corners(dimensions: int) -> Floats:
    """All vectors of −1, 0 and 1, and some that cannot be normalised."""
    plain = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=dimensions)))
    odd = np.array([[np.nan] * dimensions, [np.inf] + [0.0] * (dimensions - 1), [5e-324] * dimensions])
    return np.vstack([plain, odd, plain * 1e308, plain * 1e-308])


def worst_log_ratio(mechanism: Mechanism, vectors: Floats) -> float:
    """The largest ln(P[o | x] / P[o | x']) over all outputs o of a window and all pairs of inputs, from the exact
    probabilities of the discrete noise."""
    steps = np.unique(mechanism.on_grid(vectors), axis=0)
    t = mechanism.noise_steps
    worst = 0.0
    for x, other in itertools.permutations(steps, 2):
        total = 0.0
        for a, b in zip(x, other, strict=True):  # coordinates are independent, so their worst outputs add up
            outputs = np.arange(min(a, b) - 3, max(a, b) + 4)
            total += float((np.abs(outputs - b) - np.abs(outputs - a)).max()) / t
        worst = max(worst, total)
    return worst


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_the_stated_sensitivity_is_the_largest_distance(kind: type[Mechanism], dimensions: int) -> None:
    mechanism = kind(dimensions, 1.0)
    found = mechanism.normalise(corners(dimensions))
    distances = np.abs(found[:, None] - found[None]).sum(axis=2)
    assert distances.max() == pytest.approx(mechanism.sensitivity, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_the_proven_epsilon_holds_for_every_output_and_pair(kind: type[Mechanism], epsilon: float) -> None:
    mechanism = kind(3, epsilon)
    found = worst_log_ratio(mechanism, corners(3))
    assert found <= mechanism.proven_epsilon * (1 + 1e-12)
    assert found > 0.98 * mechanism.proven_epsilon  # and nothing smaller would hold


def test_one_noise_for_all_coordinates_hides_nothing() -> None:
    mechanism = MinMaxShared(5, 0.05)
    rows = np.random.default_rng(0).normal(size=(50, 5))
    sent = mechanism.release(rows, np.random.default_rng(1))
    least = sent.min(axis=1, keepdims=True)
    np.testing.assert_allclose(sent - least, mechanism.normalise(rows), atol=2 * mechanism.grid_width)
    assert np.abs(least).mean() > 10  # Laplace of scale 20
    promise = mechanism.guarantee(WordDropout(0.5))
    assert promise.claimed == pytest.approx(math.log(0.5 * math.exp(0.05) + 0.5))
    assert promise.one_word == promise.any_text == math.inf
    # DPNR as its paper has it: subtracting the least coordinate leaves noise
    sent = MinMax(5, 0.05).release(rows, np.random.default_rng(1))
    assert np.abs(sent - sent.min(axis=1, keepdims=True) - mechanism.normalise(rows)).mean() > 10


class _NoNormalisation(UnitL1):
    def normalise(self, vectors: Floats) -> Floats:
        return np.nan_to_num(np.clip(vectors, -1, 1))

    @property
    def _most_steps(self) -> int:
        return 3 * self.steps


class _ZeroAsACorner(UnitL1):
    """A zero vector that is sent as something longer than a normalised one."""

    def on_grid(self, vectors: Floats) -> Floats:
        steps = super().on_grid(vectors)
        steps[(steps == 0).all(axis=1)] = 2 * self.steps
        return steps


class _HalfTheNoise(UnitL1):
    @property
    def noise_steps(self) -> int:
        return super().noise_steps // 2


class _RoundedUp(UnitL1):
    """Rounding away from zero leaves the ball."""

    def on_grid(self, vectors: Floats) -> Floats:
        exact = self.normalise(vectors) * self.steps
        return (np.sign(exact) * np.ceil(np.abs(exact))).astype(np.int64) * 2


@pytest.mark.parametrize("broken", [_NoNormalisation, _ZeroAsACorner, _HalfTheNoise, _RoundedUp])
def test_a_broken_mechanism_is_caught(broken: type[UnitL1]) -> None:
    mechanism = broken(3, 2.0)
    assert worst_log_ratio(mechanism, corners(3)) > mechanism.proven_epsilon * 1.01


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_that_cannot_be_normalised_become_zero(kind: type[Mechanism]) -> None:
    mechanism = kind(3, 1.0)
    rows = np.array([[0.0, 0, 0], [np.nan, 1, 2], [np.inf, 0, 0], [-np.inf, np.inf, 0]])
    assert (mechanism.on_grid(rows) == 0).all()
    constant = mechanism.on_grid(np.full((1, 3), 7.0))
    assert (constant == 0).all() == (kind is MinMax)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(rows=hnp.arrays(np.float64, (2, 5), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_any_two_vectors_of_doubles_stay_within_the_sensitivity_in_whole_steps(
    kind: type[Mechanism], rows: Floats
) -> None:
    mechanism = kind(5, 1.0)
    steps = mechanism.on_grid(rows)
    assert np.abs(steps[0] - steps[1]).sum() <= mechanism.sensitivity * mechanism.steps
    # whole numbers: ε of the released value is (distance in steps) / t
    assert np.abs(steps[0] - steps[1]).sum() / mechanism.noise_steps <= mechanism.proven_epsilon


def test_normalisations_by_hand() -> None:
    row = np.array([[1.0, -3.0, 0.0]])
    np.testing.assert_allclose(MinMax(3, 1).normalise(row), [[1.0, 0.0, 0.75]])
    np.testing.assert_allclose(UnitL1(3, 1).normalise(row), [[0.25, -0.75, 0.0]])
    np.testing.assert_allclose(UnitL2(3, 1).normalise(row), [[1, -3, 0] / np.sqrt(10)])
    np.testing.assert_allclose(UnitL1(3, 1).normalise(row * 5e307), [[0.25, -0.75, 0.0]])


def pmf(values: Floats, scale: int) -> Floats:
    return (math.exp(1 / scale) - 1) / (math.exp(1 / scale) + 1) * np.exp(-np.abs(values) / scale)


def chi_square(sample: Floats, scale: int) -> float:
    """p-value of the sample against the discrete Laplace law, in cells of at least ten."""
    edge = int(4 * scale)
    values = np.arange(-edge, edge + 1)
    expected = pmf(values, scale) * len(sample)
    observed = np.array([(sample == value).sum() for value in values])
    tail = len(sample) - observed.sum()
    return float(stats.chisquare(np.append(observed, tail), np.append(expected, len(sample) - expected.sum())).pvalue)


@pytest.mark.parametrize("scale", [1, 3, 8])
def test_discrete_laplace_has_its_law(scale: int) -> None:
    sample = discrete_laplace(100_000, scale, np.random.default_rng(1))
    assert chi_square(sample, scale) > 1e-3


def test_the_law_s_test_would_notice() -> None:
    sample = discrete_laplace(100_000, 3, np.random.default_rng(1))
    assert chi_square(sample, 4) < 1e-9
    twice_zero = np.where(np.random.default_rng(2).random(len(sample)) < 0.02, 0, sample)
    assert chi_square(twice_zero, 3) < 1e-9
    rounded = np.rint(np.random.default_rng(3).laplace(0, 3, 100_000)).astype(np.int64)
    assert chi_square(rounded, 3) < 1e-3  # a rounded continuous Laplace is another law


def test_noise_of_the_operating_system_has_the_law_and_does_not_repeat() -> None:
    first, second = discrete_laplace(50_000, 3, None), discrete_laplace(50_000, 3, None)
    assert chi_square(first, 3) > 1e-6
    assert (first != second).any()


@pytest.mark.parametrize("kind", KINDS)
def test_releases_lie_on_the_public_grid_and_repeat_by_seed(kind: type[Mechanism]) -> None:
    mechanism = kind(7, 0.7)
    rows = np.random.default_rng(0).normal(size=(50, 7))
    first = mechanism.release(rows, np.random.default_rng(5))
    steps = first / mechanism.grid_width
    assert (steps == np.rint(steps)).all()
    np.testing.assert_array_equal(first, mechanism.release(rows, np.random.default_rng(5)))
    assert (first != mechanism.release(rows, np.random.default_rng(6))).any()


@pytest.mark.parametrize("kind", KINDS)
def test_released_noise_has_the_stated_scale(kind: type[Mechanism]) -> None:
    mechanism = kind(64, 3.0)
    rows = np.random.default_rng(0).normal(size=(2000, 64))
    noise = mechanism.release(rows, np.random.default_rng(1)) - mechanism.on_grid(rows) * mechanism.grid_width
    assert np.abs(noise).mean() == pytest.approx(mechanism.noise_scale, rel=0.02)
    assert noise.mean() == pytest.approx(0, abs=0.02 * mechanism.noise_scale)


def test_epsilon_claimed_and_proven_side_by_side() -> None:
    promise = MinMax(768, 0.05).guarantee(WordDropout(0.5))
    assert promise.parameter == 0.05
    assert promise.claimed == pytest.approx(math.log(0.5 * math.exp(0.05) + 0.5))
    assert promise.one_word == pytest.approx(38.4 + math.log(0.5), abs=1e-9)
    assert promise.any_text == pytest.approx(38.4)
    assert UnitL1(300, 12.0).guarantee().any_text == pytest.approx(12.0)
    assert UnitL2(300, 12.0).guarantee().any_text == pytest.approx(12 * math.sqrt(300))
    assert guarantee_of(None).any_text == math.inf


def test_dpnr_s_own_example_of_word_dropout() -> None:
    """The paper: μ 0.5 at ε 1 gives 0.62."""
    assert dropout_epsilon(1.0, 0.5) == pytest.approx(0.62, abs=5e-3)
    assert dropout_epsilon(1.0, 0.0) == 1.0
    assert dropout_epsilon(1.0, 1.0) == 0.0
    assert dropout_epsilon(3840.0, 0.5) == pytest.approx(3840 + math.log(0.5))
    assert dropout_epsilon(math.inf, 0.5) == math.inf


# Word dropout, exactly: texts of two words over {0: dropped, 1, 2}, a base mechanism as a table of probabilities of
# one binary output S, and all masks.

Text = tuple[int, int]
Base = Callable[[Text], float]


def masks(rate: float) -> Iterable[tuple[tuple[int, int], float]]:
    for mask in itertools.product((0, 1), repeat=2):
        yield mask, math.prod(1 - rate if keep else rate for keep in mask)


def one_of_two() -> Iterable[tuple[tuple[int, int], float]]:
    """Exactly one of the two words is dropped, as in DPNR's d·μ at μ = ½."""
    return [((0, 1), 0.5), ((1, 0), 0.5)]


def after_dropout(base: Base, text: Text, chances: Iterable[tuple[tuple[int, int], float]]) -> float:
    return sum(p * base((text[0] * mask[0], text[1] * mask[1])) for mask, p in chances)


def log_ratio(base: Base, texts: tuple[Text, Text], chances: list[tuple[tuple[int, int], float]]) -> float:
    a, b = (after_dropout(base, text, chances) for text in texts)
    return abs(math.log(a / b))


def reads_first_word(text: Text) -> float:
    """ε = 1 for any two texts."""
    return 0.3 * math.exp(text[0] == 1)


def reads_both_words(text: Text) -> float:
    return 0.3 * math.exp(0.5 * (text[0] == 1) + 0.5 * (text[1] == 1))


def reads_word_pair(text: Text) -> float:
    return 0.3 * math.exp(text == (1, 1))


def test_dropout_amplifies_one_word_as_stated_and_no_more() -> None:
    for rate in (0.1, 0.5, 0.9):
        chances = list(masks(rate))
        pairs: list[tuple[Text, Text]] = [((1, 1), (2, 1)), ((1, 2), (2, 2))]
        bases = (reads_first_word, reads_both_words, reads_word_pair)
        worst = max(log_ratio(base, pair, chances) for base in bases for pair in pairs)
        assert worst <= dropout_epsilon(1.0, rate) + 1e-12
        assert worst > 0.99 * dropout_epsilon(1.0, rate)


@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.9, 0.9), (0.3, 0.8)])
def test_releases_that_drop_the_same_words_have_more_than_the_sum(rates: tuple[float, float]) -> None:
    """Two releases of one word by randomised response; the word is dropped where one uniform is below the rate."""
    few, many = rates
    chances = {(0, 0): few, (1, 0): many - few, (1, 1): 1 - many}  # which of the two releases still has the word

    def both(word: int) -> float:
        return sum(
            chance * math.prod(reads_first_word((word * kept, 1)) for kept in who) for who, chance in chances.items()
        )

    found = abs(math.log(both(1) / both(2)))
    assert found <= dropout_epsilon(2.0, few) + 1e-12
    if few == many:
        assert found > 0.99 * dropout_epsilon(2.0, few) > 1.1 * 2 * dropout_epsilon(1.0, few)


def test_for_texts_that_differ_in_two_words_dpnr_s_formula_fails() -> None:
    def mechanism(text: Text) -> float:  # any-two-texts ε = 1: high whenever any word of the first text is left
        return 0.3 * math.exp(1.0 * (1 in text))

    for rate in (0.3, 0.5):
        found = log_ratio(mechanism, ((1, 1), (2, 2)), list(masks(rate)))
        assert found > dropout_epsilon(1.0, rate) + 0.05
        assert found <= dropout_epsilon(1.0, rate, words=2) + 1e-12


def test_dropout_needs_the_dropped_text_as_a_neighbour() -> None:
    """A mechanism that is ε-DP between words, but not between a word and none."""

    def mechanism(text: Text) -> float:
        return {0: 1e-6, 1: 0.3 * math.e, 2: 0.3}[text[0]]

    found = log_ratio(mechanism, ((1, 1), (2, 1)), list(masks(0.5)))
    assert found > dropout_epsilon(1.0, 0.5) + 0.3
    assert found == pytest.approx(1.0, abs=1e-5)  # no amplification at all


def test_a_fixed_number_of_dropped_words_is_not_amplified_by_word_level_privacy() -> None:
    """A mechanism that is 1-DP for a changed or dropped word (2-DP for two), with exactly one of two words dropped."""
    levels = {(0, 1): -2.0, (0, 0): -1.0, (2, 0): -1.0, (1, 0): 0.0, (1, 1): -1.0, (2, 1): -2.0}

    def mechanism(text: Text) -> float:
        return 0.5 * math.exp(levels[text])

    for a, b in itertools.combinations(levels, 2):
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
            assert abs(levels[a] - levels[b]) <= 1
    found = log_ratio(mechanism, ((1, 1), (2, 1)), list(one_of_two()))
    assert found > dropout_epsilon(1.0, 0.5) + 0.15
    # With any-two-texts privacy (ε = 2 here) the formula holds for a fixed number, too.
    assert found <= dropout_epsilon(2.0, 0.5)


def test_words_that_are_always_dropped_bring_no_amplification() -> None:
    dropout = WordDropout(0.0, frozenset({"bush"}))
    rng = np.random.default_rng(0)
    assert dropout.filter_words(["Bush,", "and", "Kerry", "met", "bush"], rng) == ["and", "Kerry", "met"]
    # between two listed words nothing shows; between a listed and another word everything does
    both = WordDropout(0.0, frozenset({"bush", "kerry"}))
    assert both.filter_words(["kerry", "won"], rng) == both.filter_words(["bush", "won"], rng)
    assert dropout.filter_words(["kerry", "won"], rng) != dropout.filter_words(["bush", "won"], rng)
    assert dropout.epsilon(3.0) == 3.0


@pytest.mark.parametrize(
    ("listed", "written"),
    [
        ("bush", "Bush, “Bush” «Bush» Bush… Bush’s Bush's Bush-Kerry ¿BUSH? Bu\u00adsh B\u034fush"),
        ("Dr. Weiss", "Dr. Weiss dr WEISS, Weiß"),
        ("Jean-Luc", "Jean-Luc's (jean-luc) Jean_Luc"),
        ("Café", "cafe\u0301 CAFÉ"),
        ("İzmir", "izmir IZMIR İZMİR"),
        ("U.S.", "US (U.S.), u.s US-led U-S"),
        ("US", "U.S."),
        ("§", "§"),
    ],
)
def test_listed_words_are_dropped_however_they_are_written(listed: str, written: str) -> None:
    dropout = WordDropout(0.0, frozenset({listed}))
    assert dropout.filter_words(written.split(), np.random.default_rng(0)) == []
    others = ["ambush", "Luc", "Jean", "s", "—", "weissagen"]
    assert dropout.filter_words(others, np.random.default_rng(0)) == others


def test_a_mask_of_words_and_pairs_amplifies_less_than_dropped_words() -> None:
    """A text of three words is five tokens, three of which hold the word in the middle; the base is ε = 1."""
    found = {}
    for rate in (0.3, 0.5, 0.9):
        share = {}
        for middle in ("v", "w"):
            tokens = [middle, f"a {middle}", f"{middle} b"]
            share[middle] = sum(
                math.prod(1 - rate if stays else rate for stays in mask)
                * 0.3
                * math.exp(any("v" in token for token, stays in zip(tokens, mask, strict=True) if stays))
                for mask in itertools.product((0, 1), repeat=3)
            )
        found[rate] = math.log(share["v"] / share["w"])
    for rate, ratio in found.items():
        assert ratio > dropout_epsilon(1.0, rate) + 0.01, "the formula of one dropped word fails"
        assert ratio == pytest.approx(WordDropout(rate, tokens=3).epsilon(1.0)), "three are tight"
    promise = MinMax(8, 1.0).guarantee(WordDropout(0.5, tokens=None))
    assert (promise.claimed, promise.one_word) == (pytest.approx(0.62, abs=5e-3), 8.0), "pieces: no amplification"


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_epsilon_stays_within_64_bits(kind: type[Mechanism]) -> None:
    mechanism = kind(4, 5e14 if kind is UnitL2 else 2.8e14)
    sent = mechanism.release(np.array([[1.0, -1.0, 1.0, -1.0]]), None)
    np.testing.assert_allclose(sent, mechanism.normalise(np.array([[1.0, -1.0, 1.0, -1.0]])), atol=1e-12)


@pytest.mark.parametrize("generator", [np.random.default_rng(0), None])
def test_words_are_dropped_at_their_rate(generator: np.random.Generator | None) -> None:
    kept = WordDropout(0.3).filter_words(["w"] * 20_000, generator)
    assert len(kept) == pytest.approx(14_000, abs=400)
    assert WordDropout(1.0).filter_words(["w"] * 10, np.random.default_rng(0)) == []
    assert WordDropout(0.0).filter_words(["w"] * 10, np.random.default_rng(0)) == ["w"] * 10


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: UnitL1(0, 1.0), "dimensions is 0"),
        (lambda: UnitL1(3, 0.0), "epsilon is 0.0"),
        (lambda: UnitL1(3, math.inf), "epsilon is inf"),
        (lambda: UnitL1(3, 1e-12), "epsilon is 1e-12; allowed: at least"),
        (lambda: MinMax(4, 3e14), "epsilon is 300000000000000.0; allowed: at most 2.81e+14"),
        (lambda: UnitL1(4, 2e15), "epsilon is 2000000000000000.0; allowed: at most 1.12e+15"),
        (lambda: UnitL2(4, 1e17), "epsilon is 1e+17; allowed: at most 5.62e+14"),
        (lambda: build_mechanism("l1", 3, None), "epsilon is missing"),
        (lambda: WordDropout(1.5), "rate is 1.5"),
        (lambda: dropout_epsilon(1.0, 0.5, 0), "words is 0"),
        (lambda: dropout_epsilon(-1.0, 0.5), "epsilon is -1.0"),
        (lambda: discrete_laplace(3, 0, None), "scale is 0"),
        (lambda: UnitL1(3, 1.0).release(np.zeros((2, 4)), None), "vectors are (2, 4)"),
    ],
)
def test_impossible_parameters_are_named(make: Callable[[], object], said: str) -> None:
    with pytest.raises(PrivacyError) as error:
        make()
    assert said in str(error.value)
