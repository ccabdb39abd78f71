"""Local differential privacy of representations: mechanisms, word dropout and their guarantees.

>>> guarantee = MinMax(dimensions=4, epsilon=0.5).guarantee()
>>> guarantee.claimed, guarantee.any_text
(0.5, 2.0)
>>> round(UnitL1(dimensions=4, epsilon=0.5).guarantee(WordDropout(rate=0.3)).one_word, 4)
0.3744

The client computes a vector x in R^k from its text, normalises it, adds Laplace noise and sends the sum. The mechanism
M is ε-DP for a pair of texts if no output is more than e^ε times as likely on one as on the other. Laplace noise of
scale b per coordinate gives ε = Δ/b, where Δ is the largest **L1** distance between two normalised vectors (Dwork et
al. 2006). docs/representations.md has b and both ε of every mechanism, the counterexamples to what was claimed, and
what becomes of a vector that cannot be normalised. All bounds hold for **any** two texts: no text changes them.

**Word dropout** at rate μ before the encoder (each word dropped independently with probability μ) amplifies privacy.
If M is ε-DP for any two texts, then for texts that differ in the words at j given positions

    ε' = ln((1 − μ^j)·e^ε + μ^j).

Proof. Let p₀ be the distribution of the output given that all j words were dropped, the same for both texts, and p₁,
q₁ the distributions given that not all were. M is ε-DP for any two texts, so p₁ ≤ e^ε q₁ and p₁ ≤ e^ε p₀ pointwise,
whichever words remain. With m = min(p₀, q₁) and w = μ^j, (w p₀ + (1 − w) p₁) / (w p₀ + (1 − w) q₁) ≤ (w p₀ +
(1 − w) e^ε m) / (w p₀ + (1 − w) q₁), which is largest at p₀ = q₁ = m. ∎ The bound holds if a dropped word is removed or
replaced by a fixed token; if it is removed, also for texts with one word more or less. It needs texts that differ in j
words alone, M ε-DP for *any* two texts, independent drops, and no word that is always dropped (a listed word does not
amplify); tests/research/representations/test_local_privacy.py has a counterexample for each. Where an encoder's tokens
are dropped instead of words, j counts tokens: a word is in n(n + 1)/2 of the n-grams up to n words, and in any number
of pieces, so that their mask amplifies nothing.

**Several releases** of one text whose words were dropped once, by one draw of uniforms, are one release with ε the sum
of theirs and μ the smallest rate, μ₁: given the uniforms they are independent, and with probability μ₁^j all of them
miss all j words. So together they have ln((1 − μ₁^j)·e^(Σε) + μ₁^j), which is more than the sum of their ε'; that sum
holds only where every release draws its own.

**Floating point.** A Laplace sample in doubles added to a double leaks in its low bits (Mironov 2012). A *release*
therefore consists of integers: x on a public grid of width w, a power of two, such that the norm bound holds in
integers, plus discrete Laplace noise, P(n) ∝ e^(−|n|/t), t = ⌈b/w⌉. The ratio of two outputs' probabilities is then at
most e^ε for every output, exactly. Training uses ordinary doubles and has no guarantee.
"""

from __future__ import annotations

import functools
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fl_sim.data_prep.identity import STEPS
from fl_sim.formats import round_down, round_up
from fl_sim.strategies.accounting.adjacency import PrivacyError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
LayerName = Literal["none", "dpnr", "dpnr-shared", "l1", "l2"]
DroppedName = Literal["removed", "masked"]

_GRID_BITS = 10
_MOST_DIMENSIONS = 1 << 16
_LARGEST_SCALE = 1 << 40  # a whole number of steps times a few trials must fit 64 bits
_MOST_STEPS = 1 << 61  # so must the L1 norm of a vector, in steps


@dataclass(frozen=True, slots=True)
class LocalGuarantee:
    """ε of one release of one text's representation; inf where there is no guarantee.

    Attributes:
        parameter: ε as configured.
        claimed: ε as the method's authors state it, word dropout included.
        one_word: proven ε for two texts that differ in one word.
        any_text: proven ε for any two texts.
    """

    parameter: float
    claimed: float
    one_word: float
    any_text: float


def dropout_epsilon(epsilon: float, rate: float, words: int = 1) -> float:
    """Return ε' = ln((1 − μ^j)·e^ε + μ^j) for texts that differ in ``words`` words.

    Args:
        epsilon: of the mechanism after the dropout, for *any* two texts; may be inf.
        rate: μ in [0, 1], the probability that a word is dropped.
        words: j, at least 1.

    Raises:
        PrivacyError: if an argument is outside its range.
    """
    if not 0 <= rate <= 1:
        raise PrivacyError(f"rate is {rate}; allowed: between 0 and 1")
    if words < 1:
        raise PrivacyError(f"words is {words}; allowed: an integer of at least 1")
    if not epsilon >= 0:
        raise PrivacyError(f"epsilon is {epsilon}; allowed: a number of at least 0")
    dropped = rate**words
    if dropped == 1:
        return 0.0
    if dropped == 0:
        return epsilon
    return float(np.logaddexp(math.log1p(-dropped) + epsilon, math.log(dropped)))


@dataclass(frozen=True)
class WordDropout:
    """Dropout of words before the encoder: each with probability ``rate``, and listed words always.

    Attributes:
        rate: μ in [0, 1].
        sensitive: words that are always dropped, such as the entities of an index, whatever their case and the marks
            at or in a word: "Bush" drops “Bush’s”, and "U.S." drops “US”. Of an entry with white space each word is
            dropped.
        tokens: how many tokens of the encoder, dropped independently of each other, may hold a word: 1 if words are
            dropped. None if there is no such number, and then no amplification.
    """

    rate: float = 0.0
    sensitive: frozenset[str] = frozenset()
    tokens: int | None = 1

    def __post_init__(self) -> None:
        dropout_epsilon(0.0, self.rate)  # checks the rate

    def filter_words(self, words: Sequence[str], generator: np.random.Generator | None) -> list[str]:
        """Return the words that stay, in their order; None draws from the operating system."""
        uniforms = uniform_doubles(len(words), generator) >= self.rate
        return [word for word, stays in zip(words, uniforms, strict=True) if stays and not self._is_listed(word)]

    @functools.cached_property
    def _listed(self) -> frozenset[tuple[str, ...]]:
        return frozenset(runs for entry in self.sensitive for word in entry.split() for runs in _spellings(word))

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self._listed))

    def _is_listed(self, word: str) -> bool:
        if not self._listed:
            return False
        longest = self._longest
        return any(
            runs[start:end] in self._listed
            for runs in _spellings(word)
            for end in range(1, len(runs) + 1)
            for start in range(max(0, end - longest), end)
        )

    def epsilon(self, epsilon: float, words: int = 1) -> float:
        """Return ε' for texts that differ in ``words`` words, none of which is always dropped (the worst case)."""
        tokens, rate = (1, 0.0) if self.tokens is None else (self.tokens, self.rate)
        return dropout_epsilon(epsilon, rate, words * tokens)


NO_DROPOUT = WordDropout()
_RUN = re.compile(r"[^\W_]+")


def _spellings(word: str) -> set[tuple[str, ...]]:
    """Return the runs of letters and digits of a word, spelt as entities are compared, with and without the points of
    initials; the word itself if it has none."""
    plain = STEPS["case"](STEPS["unicode"](word))
    return {tuple(_RUN.findall(spelt)) or (spelt,) for spelt in (plain, STEPS["initials"](plain))}


@dataclass(frozen=True)
class Mechanism(ABC):
    """Normalisation of vectors of k ``dimensions``, plus Laplace noise by the method's parameter ε.

    Raises:
        PrivacyError: if k is outside [1, 65536], or ε is not finite, not above 0, or too small or large for the grid.
    """

    name: ClassVar[LayerName]
    dimensions: int
    epsilon: float

    def __post_init__(self) -> None:
        if not 1 <= self.dimensions <= _MOST_DIMENSIONS:
            raise PrivacyError(f"dimensions is {self.dimensions}; allowed: an integer from 1 to {_MOST_DIMENSIONS}")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise PrivacyError(f"epsilon is {self.epsilon}; allowed: a finite number above 0")
        if self.noise_scale / self.grid_width > _LARGEST_SCALE:
            least = self.claimed_sensitivity / (_LARGEST_SCALE * self.grid_width)
            raise PrivacyError(f"epsilon is {self.epsilon}; allowed: at least {round_up(least, 3)}")
        # A step is at least 2^−(_GRID_BITS + 1) of the noise scale, or of 1/k.
        most = (_MOST_STEPS >> (_GRID_BITS + 1)) * self.claimed_sensitivity / self.sensitivity
        if self.epsilon > most:
            raise PrivacyError(f"epsilon is {self.epsilon}; allowed: at most {round_down(most, 3)}")

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Return Δ, the largest L1 distance between two normalised vectors."""

    @property
    @abstractmethod
    def claimed_sensitivity(self) -> float:
        """Return the Δ that the method's authors assume."""

    @property
    def noise_scale(self) -> float:
        """Return b, the scale of each coordinate's Laplace noise, calibrated to the claimed sensitivity."""
        return self.claimed_sensitivity / self.epsilon

    @property
    def noise_width(self) -> int:
        """Return the number of independent noise samples per vector."""
        return self.dimensions

    @property
    def proven_epsilon(self) -> float:
        """Return Δ/b, the ε for any two texts."""
        return self.sensitivity / self.noise_scale

    @abstractmethod
    def normalise(self, vectors: Floats) -> Floats:
        """Return normalised vectors, float64 (n, k), pairwise within the sensitivity.

        A row that cannot be normalised becomes zero.
        """

    @abstractmethod
    def on_grid(self, vectors: Floats) -> Integers:
        """Return normalised vectors in steps of the grid, int64 (n, k), within the sensitivity in integers."""

    @property
    def grid_width(self) -> float:
        """Return w, a power of two: at most 2⁻¹⁰ of the noise scale, and of 1/k."""
        bound = min(self.noise_scale, 1.0 / self.dimensions)
        return 2.0 ** (math.floor(math.log2(bound)) - _GRID_BITS)

    @property
    def steps(self) -> int:
        """Return 1/w, the steps of the grid per unit."""
        return round(1 / self.grid_width)

    @property
    def noise_steps(self) -> int:
        """Return t, the scale of the discrete noise in steps of the grid, never below b."""
        return math.ceil(self.noise_scale / self.grid_width)

    def release(self, vectors: Floats, generator: np.random.Generator | None) -> Floats:
        """Return the sent vectors, float64 (n, k): normalised, on the grid, with exact discrete Laplace noise.

        Args:
            vectors: float64 (n, k), one row per text.
            generator: for repeatable runs; None draws from the operating system.

        Raises:
            PrivacyError: if the vectors do not have k columns.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise PrivacyError(f"vectors are {vectors.shape}; allowed: (n, {self.dimensions})")
        samples = discrete_laplace(len(vectors) * self.noise_width, self.noise_steps, generator)
        noise = samples.reshape(len(vectors), self.noise_width)
        return np.asarray((self.on_grid(vectors) + noise) * self.grid_width, dtype=np.float64)

    def guarantee(self, dropout: WordDropout = NO_DROPOUT) -> LocalGuarantee:
        """Return the guarantee of one release after ``dropout`` of words."""
        claimed, proven = self.claimed_sensitivity / self.noise_scale, self.proven_epsilon
        return LocalGuarantee(self.epsilon, dropout_epsilon(claimed, dropout.rate), dropout.epsilon(proven), proven)


class MinMax(Mechanism):
    """DPNR as in its paper: every vector scaled to [0, 1], and independent Laplace(1/ε) on each coordinate."""

    name: ClassVar[LayerName] = "dpnr"

    @property
    def sensitivity(self) -> float:
        return float(self.dimensions)

    @property
    def claimed_sensitivity(self) -> float:
        return 1.0

    def normalise(self, vectors: Floats) -> Floats:
        finite = _zero_nonfinite(vectors)
        low = finite.min(axis=1, keepdims=True)
        # Halved first: the spread of the largest doubles would overflow.
        spread = finite.max(axis=1, keepdims=True) / 2 - low / 2
        scaled = np.divide(finite / 2 - low / 2, spread, out=np.zeros_like(finite), where=spread > 0)
        return np.clip(scaled, 0.0, 1.0)

    def on_grid(self, vectors: Floats) -> Integers:
        return np.rint(self.normalise(vectors) * self.steps).astype(np.int64)


class MinMaxShared(MinMax):
    """DPNR as in its published code: one Laplace(1/ε) sample per text, added to all coordinates.

    It has no guarantee: the sent vector minus its smallest coordinate is the normalised vector.
    """

    name = "dpnr-shared"

    @property
    def noise_width(self) -> int:
        return 1

    @property
    def proven_epsilon(self) -> float:
        return math.inf


class _UnitBall(Mechanism):
    """Scaling of every vector to length 1 in the norm of ``order``, and Laplace(2/ε)."""

    order: ClassVar[int]

    @property
    def claimed_sensitivity(self) -> float:
        return 2.0

    @property
    @abstractmethod
    def _most_steps(self) -> int:
        """Return the largest L1 norm of a vector in the ball, in steps of the grid."""

    def normalise(self, vectors: Floats) -> Floats:
        scaled = _rescale(vectors)
        length = np.linalg.norm(scaled, self.order, axis=1, keepdims=True)
        return np.divide(scaled, length, out=np.zeros_like(scaled), where=length > 0)

    def on_grid(self, vectors: Floats) -> Integers:
        """Round towards zero, which stays in the ball; a row that rounding of doubles put outside loses steps of its
        largest coordinate."""
        steps = np.trunc(self.normalise(vectors) * self.steps).astype(np.int64)
        while (outside := np.flatnonzero(np.abs(steps).sum(axis=1) > self._most_steps)).size:
            largest = np.abs(steps[outside]).argmax(axis=1)
            steps[outside, largest] -= np.sign(steps[outside, largest])
        return steps


class UnitL1(_UnitBall):
    """FEDERATE's paper, and Noise: x / ‖x‖₁ and Laplace(2/ε)."""

    name = "l1"
    order = 1

    @property
    def sensitivity(self) -> float:
        return 2.0

    @property
    def _most_steps(self) -> int:
        return self.steps


class UnitL2(_UnitBall):
    """FEDERATE's published code: x / ‖x‖₂ and Laplace(2/ε); ‖·‖₁ ≤ √k‖·‖₂, and equality occurs."""

    name = "l2"
    order = 2

    @property
    def sensitivity(self) -> float:
        return 2.0 * math.sqrt(self.dimensions)

    @property
    def _most_steps(self) -> int:
        # Δ needs ‖x‖₁ ≤ √k alone; squares of steps would overflow on the finest grids.
        return math.isqrt(self.dimensions * self.steps**2)


MECHANISMS: dict[str, type[Mechanism]] = {kind.name: kind for kind in (MinMax, MinMaxShared, UnitL1, UnitL2)}


def build_mechanism(name: LayerName, dimensions: int, epsilon: float | None) -> Mechanism | None:
    """Return the mechanism ``name`` for k ``dimensions``; None for ``none``, which sends vectors unchanged.

    Raises:
        PrivacyError: if ε is missing or impossible.
    """
    if name == "none":
        return None
    if epsilon is None:
        raise PrivacyError(f"epsilon is missing; layer {name!r} needs a number above 0")
    return MECHANISMS[name](dimensions, epsilon)


def guarantee_of(mechanism: Mechanism | None, dropout: WordDropout = NO_DROPOUT) -> LocalGuarantee:
    """Return the guarantee of a release; ε is inf without a mechanism, whatever the dropout of words."""
    if mechanism is None:
        return LocalGuarantee(math.inf, math.inf, math.inf, math.inf)
    return mechanism.guarantee(dropout)


def discrete_laplace(size: int, scale: int, generator: np.random.Generator | None) -> Integers:
    """Return independent n with P(n) = (e^(1/t) − 1)/(e^(1/t) + 1)·e^(−|n|/t), int64 (size,).

    The distribution is exact given exact uniform integers (Canonne, Kamath and Steinke 2020, algorithm 2): no
    logarithm, no division.

    Args:
        size: how many samples.
        scale: t, at least 1.
        generator: of uniform integers; None draws from the operating system.
    """
    if scale < 1:
        raise PrivacyError(f"scale is {scale}; allowed: an integer of at least 1")
    samples = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while missing.size:
        draws = np.full(missing.size, scale, dtype=np.int64)
        remainder = _uniform_below(draws, generator)
        accepted = _bernoulli_exp(remainder, scale, generator)
        magnitude = remainder + scale * _geometric_exp(missing.size, generator)
        negative = _uniform_below(np.full(missing.size, 2, dtype=np.int64), generator) == 1
        accepted &= ~(negative & (magnitude == 0))  # else zero would be twice as likely
        samples[missing[accepted]] = np.where(negative, -magnitude, magnitude)[accepted]
        missing = missing[~accepted]
    return samples


def _bernoulli_exp(
    numerators: Integers, denominator: int, generator: np.random.Generator | None
) -> npt.NDArray[np.bool_]:
    """Return Bernoulli samples of probability e^(−numerator/denominator), bool; numerators in [0, denominator]."""
    trials = np.ones(numerators.size, dtype=np.int64)
    active = np.arange(numerators.size)
    while active.size:
        success = _uniform_below(denominator * trials[active], generator) < numerators[active]
        active = active[success]
        trials[active] += 1
    return trials % 2 == 1


def _geometric_exp(size: int, generator: np.random.Generator | None) -> Integers:
    """Return geometric samples: successes of probability e^(−1) before the first failure, int64 (size,)."""
    counts = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while active.size:
        success = _bernoulli_exp(np.ones(active.size, dtype=np.int64), 1, generator)
        active = active[success]
        counts[active] += 1
    return counts


def _uniform_below(bounds: Integers, generator: np.random.Generator | None) -> Integers:
    """Return a uniform integer in [0, bound) for each of ``bounds``, by rejection, without rounding."""
    if generator is not None:
        return generator.integers(0, bounds)
    wide = bounds.astype(np.uint64)
    limit = (np.uint64(2**64 - 1) // wide) * wide
    words = _system_words(bounds.size)
    while (again := np.flatnonzero(words >= limit)).size:
        words[again] = _system_words(again.size)
    return (words % wide).astype(np.int64)


def uniform_doubles(count: int, generator: np.random.Generator | None) -> Floats:
    """Return uniform multiples of 2⁻⁵³ in [0, 1), float64 (count,); None draws from the operating system."""
    if generator is not None:
        return generator.random(count)
    return (_system_words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _system_words(count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)


def _zero_nonfinite(vectors: Floats) -> Floats:
    """Return the vectors, float64 (n, k), with zero rows for those that are not finite."""
    doubles = np.asarray(vectors, dtype=np.float64)
    return np.where(np.isfinite(doubles).all(axis=1, keepdims=True), doubles, 0.0)


def _rescale(vectors: Floats) -> Floats:
    """Return the rows divided by their largest coordinate, so that no sum or square over- or underflows."""
    finite = _zero_nonfinite(vectors)
    largest = np.abs(finite).max(axis=1, keepdims=True)
    return np.divide(finite, largest, out=np.zeros_like(finite), where=largest > 0)
