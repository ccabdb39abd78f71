"""Local differential privacy of a representation: what a client may send of its text, and what that promises.

The client computes a vector x in R^k from its text, normalises it, adds Laplace noise and sends the sum. M is ε-DP
for a pair of texts if no output is e^ε times likelier on one than on the other. Laplace noise of scale b per
coordinate gives ε = Δ/b, where Δ is the largest **L1** distance of two normalised vectors (Dwork et al. 2006):

| normalisation | Δ | noise scale b at parameter ε | claimed | proven |
|---|---|---|---|---|
| ``dpnr``: min-max to [0, 1]^k (Lyu, He and Li 2020) | k | 1/ε | ε | kε |
| ``dpnr-shared``: the same, one noise for all coordinates (DPNR's published code) | k | 1/ε | ε | ∞ |
| ``l1``: x / ‖x‖₁ (FEDERATE's paper, and Noise) | 2 | 2/ε | ε | ε |
| ``l2``: x / ‖x‖₂ (FEDERATE's published code) | 2√k | 2/ε | ε | √k·ε |

DPNR took the largest change of one coordinate, 1, for Δ: [0, 1, …, 1] and [1, 0, …, 0] are both normalised and k
apart. Its published code draws one number a text and adds it to every coordinate: as the least coordinate of a
normalised vector is 0, the least of what is sent is the noise, and whoever subtracts it has the vector. FEDERATE's
code divides by torch's default norm, which is Euclidean: (1, …, 1)/√k and its negative are 2√k apart. All bounds hold
for **any** two texts, since they do not look at the text.

A vector that cannot be normalised (zero, constant under ``dpnr``, not finite) is sent as the zero vector plus noise:
it lies within Δ of every normalised one, so the bound holds, and no text is refused in the open.

**Word dropout** at rate μ before the encoder (each word dropped by a coin of its own) amplifies: if M is ε-DP for any
two texts, then for texts that differ in the words at j given places

    ε' = ln((1 − μ^j)·e^ε + μ^j).

Proof. Let p₀ be the law of the output given that all j words were dropped, the same for both texts, and p₁, q₁ the
laws given that not all were. As M is ε-DP for any two texts, p₁ ≤ e^ε q₁ and p₁ ≤ e^ε p₀ pointwise, whatever words
remain. With m = min(p₀, q₁) and w = μ^j, (w p₀ + (1 − w) p₁) / (w p₀ + (1 − w) q₁) ≤ (w p₀ + (1 − w) e^ε m) /
(w p₀ + (1 − w) q₁), which is largest at p₀ = q₁ = m. ∎ It holds where a dropped word is removed or replaced by a
fixed token; removed, also for a word more or less. What DPNR's theorem 2 leaves out, each with a counterexample in
tests/research/representations/test_local_privacy.py:

* j = 1 alone gives its formula. For texts that differ in two words it fails; there j = 2 holds.
* ``p₁ ≤ e^ε p₀`` is used: the dropped text must count as a neighbour. It fails if M is ε-DP between words only.
* A fixed number of dropped words (DPNR's d·μ) instead of coins needs M to be ε-DP for *any* two texts, and drops
  nothing at all where d·μ < 1.
* Words that are always dropped (a list, the entity index) bring no coin. Between two listed words nothing is
  revealed; between a listed and another word the ε stays whole.

**Floating point.** A Laplace sample in doubles added to a double leaks in its low bits (Mironov 2012): which doubles
can occur depends on x. What is *released* here avoids doubles: x is put on a public grid of width w, a power of two,
so that the norm bound holds in whole numbers; the noise is a discrete Laplace, P(n) ∝ e^(−|n|/t), drawn exactly from
uniform whole numbers (Canonne, Kamath and Steinke 2020); t = ⌈b/w⌉, so that ε is never more than stated. The ratio
of two outputs' probabilities is then bounded by e^ε exactly, for every output. With a seed the uniforms come from
numpy's generator, which whoever knows the seed can repeat; without one from the operating system. Training uses
ordinary doubles: there nothing is promised (the papers' training data are public).
"""

from __future__ import annotations

import math
import os
import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fl_sim.strategies.accounting.adjacency import PrivacyError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
LayerName = Literal["none", "dpnr", "dpnr-shared", "l1", "l2"]

_GRID_BITS = 10
_MOST_DIMENSIONS = 1 << 16
_LARGEST_SCALE = 1 << 40  # a whole number of steps times a few trials must fit 64 bits


@dataclass(frozen=True, slots=True)
class LocalGuarantee:
    """What a release of one text's representation promises; every figure is inf where nothing is promised.

    Attributes:
        parameter: ε as it was asked for.
        claimed: ε as the method's authors state it, word dropout included.
        one_word: ε that is proven for two texts that differ in one word.
        any_text: ε that is proven for any two texts.
    """

    parameter: float
    claimed: float
    one_word: float
    any_text: float


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise PrivacyError(f"rate is {rate}; allowed: between 0 and 1")


def dropout_epsilon(epsilon: float, rate: float, words: int = 1) -> float:
    """ε' = ln((1 − μ^j)·e^ε + μ^j) for texts that differ in ``words`` words, each dropped with probability ``rate``.

    Args:
        epsilon: of the mechanism behind the dropout, for *any* two texts; inf is allowed.
        rate: μ in [0, 1]; 1 drops everything.
        words: j, at least 1.
    """
    _check_rate(rate)
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
    """Words that never reach the encoder: each with probability ``rate``, and those of a list always.

    Attributes:
        rate: μ in [0, 1].
        sensitive: words that are always dropped, such as the entities of an index: lower case, compared without
            the punctuation marks at a word's ends.
    """

    rate: float = 0.0
    sensitive: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def kept(self, words: Sequence[str], generator: np.random.Generator) -> list[str]:
        """The words that go on, in their order."""
        uniforms = generator.random(len(words)) >= self.rate
        pairs = zip(words, uniforms, strict=True)
        return [word for word, stays in pairs if stays and word.strip(string.punctuation).lower() not in self.sensitive]

    def epsilon(self, epsilon: float, words: int = 1) -> float:
        """ε' for texts that differ in ``words`` words, in the worst case: none of them is always dropped."""
        return dropout_epsilon(epsilon, self.rate, words)


NO_DROPOUT = WordDropout()


@dataclass(frozen=True)
class Mechanism(ABC):
    """Normalise, then add Laplace noise.

    Attributes:
        dimensions: k.
        epsilon: the method's parameter ε.

    Raises:
        PrivacyError: for k below 1 or above 65536, and ε that is not above 0 and finite, or too small for the grid.
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
            raise PrivacyError(f"epsilon is {self.epsilon}; allowed: at least {self._least_epsilon():.3g}")

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Δ, the largest L1 distance of two normalised vectors."""

    @property
    @abstractmethod
    def claimed_sensitivity(self) -> float:
        """What the authors of the method took for Δ."""

    @property
    def noise_scale(self) -> float:
        """b of the Laplace noise on each coordinate, calibrated to the claimed sensitivity."""
        return self.claimed_sensitivity / self.epsilon

    @property
    def noise_width(self) -> int:
        """Independent noise numbers of one vector."""
        return self.dimensions

    @property
    def proven_epsilon(self) -> float:
        """Δ/b, for any two texts."""
        return self.sensitivity / self.noise_scale

    @abstractmethod
    def normalised(self, vectors: Floats) -> Floats:
        """(n, k) → (n, k), every row within the sensitivity of every other; rows that cannot be become zero."""

    @abstractmethod
    def on_grid(self, vectors: Floats) -> Integers:
        """The normalised vectors (n, k) in whole steps of the grid, within the sensitivity in whole numbers."""

    @property
    def grid_width(self) -> float:
        """w, a power of two: at most 2⁻¹⁰ of the noise's scale, and of 1/k."""
        bound = min(self.noise_scale, 1.0 / self.dimensions)
        return 2.0 ** (math.floor(math.log2(bound)) - _GRID_BITS)

    @property
    def steps(self) -> int:
        """Steps of the grid in 1."""
        return round(1 / self.grid_width)

    @property
    def noise_steps(self) -> int:
        """t, the scale of the discrete noise in steps of the grid: never below the continuous one."""
        return math.ceil(self.noise_scale / self.grid_width)

    def release(self, vectors: Floats, generator: np.random.Generator | None) -> Floats:
        """What a client sends for the vectors (n, k): normalised, on the grid, with exact discrete Laplace noise.

        Args:
            vectors: one row a text.
            generator: for runs that can be repeated; None draws from the operating system.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise PrivacyError(f"vectors are {vectors.shape}; allowed: (n, {self.dimensions})")
        drawn = discrete_laplace(len(vectors) * self.noise_width, self.noise_steps, generator)
        noise = drawn.reshape(len(vectors), self.noise_width)
        return np.asarray((self.on_grid(vectors) + noise) * self.grid_width, dtype=np.float64)

    def guarantee(self, dropout: WordDropout = NO_DROPOUT) -> LocalGuarantee:
        """What one release promises, behind this dropout of words."""
        claimed, proven = self.claimed_sensitivity / self.noise_scale, self.proven_epsilon
        return LocalGuarantee(self.epsilon, dropout.epsilon(claimed), dropout.epsilon(proven), proven)

    def _least_epsilon(self) -> float:
        return self.claimed_sensitivity / (_LARGEST_SCALE * self.grid_width)


class _MinMaxScaled(Mechanism):
    """Every vector scaled to [0, 1] by its own least and largest coordinate, and Laplace(1/ε)."""

    @property
    def sensitivity(self) -> float:
        return float(self.dimensions)

    @property
    def claimed_sensitivity(self) -> float:
        return 1.0

    def normalised(self, vectors: Floats) -> Floats:
        finite = _finite(vectors)
        low = finite.min(axis=1, keepdims=True)
        # Halved first, so that the spread of the largest doubles does not overflow.
        spread = finite.max(axis=1, keepdims=True) / 2 - low / 2
        moved = np.divide(finite / 2 - low / 2, spread, out=np.zeros_like(finite), where=spread > 0)
        return np.clip(moved, 0.0, 1.0)

    def on_grid(self, vectors: Floats) -> Integers:
        return np.rint(self.normalised(vectors) * self.steps).astype(np.int64)


class MinMax(_MinMaxScaled):
    """DPNR, as its paper has it: a noise number for each coordinate."""

    name = "dpnr"


class MinMaxShared(_MinMaxScaled):
    """DPNR's published code: one Laplace(1/ε) number a text, added to all of its coordinates. It hides nothing: what
    is sent, less its least coordinate, is the normalised vector."""

    name = "dpnr-shared"

    @property
    def noise_width(self) -> int:
        return 1

    @property
    def proven_epsilon(self) -> float:
        return math.inf


class _InBall(Mechanism):
    """A vector of length 1 in some norm, and Laplace(2/ε)."""

    @property
    def claimed_sensitivity(self) -> float:
        return 2.0

    @abstractmethod
    def _within(self, steps: Integers) -> npt.NDArray[np.bool_]:
        """Which rows (n, k) of whole steps lie in the ball; exact."""

    def on_grid(self, vectors: Floats) -> Integers:
        """Towards zero, which keeps a vector of the ball in the ball; where a double's last bit put it outside, its
        largest coordinate gives way."""
        steps = np.trunc(self.normalised(vectors) * self.steps).astype(np.int64)
        while (outside := np.flatnonzero(~self._within(steps))).size:
            largest = np.abs(steps[outside]).argmax(axis=1)
            steps[outside, largest] -= np.sign(steps[outside, largest])
        return steps


class UnitL1(_InBall):
    """FEDERATE and Noise: x / ‖x‖₁ and Laplace(2/ε)."""

    name = "l1"

    @property
    def sensitivity(self) -> float:
        return 2.0

    def normalised(self, vectors: Floats) -> Floats:
        scaled = _scaled(vectors)
        length = np.abs(scaled).sum(axis=1, keepdims=True)
        return np.divide(scaled, length, out=np.zeros_like(scaled), where=length > 0)

    def _within(self, steps: Integers) -> npt.NDArray[np.bool_]:
        return np.abs(steps).sum(axis=1) <= self.steps


class UnitL2(_InBall):
    """FEDERATE's published code: x / ‖x‖₂ and Laplace(2/ε); ‖·‖₁ ≤ √k‖·‖₂, and equality occurs."""

    name = "l2"

    @property
    def sensitivity(self) -> float:
        return 2.0 * math.sqrt(self.dimensions)

    def normalised(self, vectors: Floats) -> Floats:
        scaled = _scaled(vectors)
        length = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
        return np.divide(scaled, length, out=np.zeros_like(scaled), where=length > 0)

    def _within(self, steps: Integers) -> npt.NDArray[np.bool_]:
        # ‖x‖₁ ≤ √k is what Δ needs; squares of steps would overflow on the finest grids.
        return np.abs(steps).sum(axis=1) <= math.isqrt(self.dimensions * self.steps**2)


MECHANISMS: dict[str, type[Mechanism]] = {kind.name: kind for kind in (MinMax, MinMaxShared, UnitL1, UnitL2)}


def build_mechanism(name: LayerName, dimensions: int, epsilon: float | None) -> Mechanism | None:
    """The mechanism of that name; None for ``none``, which sends the vector as it is."""
    if name == "none":
        return None
    if name not in MECHANISMS:
        raise PrivacyError(f"layer is {name!r}; allowed: none, {', '.join(MECHANISMS)}")
    if epsilon is None:
        raise PrivacyError(f"epsilon is missing; layer {name!r} needs a number above 0")
    return MECHANISMS[name](dimensions, epsilon)


def guarantee_of(mechanism: Mechanism | None, dropout: WordDropout = NO_DROPOUT) -> LocalGuarantee:
    """What is promised; without a mechanism nothing is, whatever words are dropped."""
    if mechanism is None:
        return LocalGuarantee(math.inf, math.inf, math.inf, math.inf)
    return mechanism.guarantee(dropout)


def discrete_laplace(size: int, scale: int, generator: np.random.Generator | None) -> Integers:
    """Independent n with P(n) = (e^(1/t) − 1)/(e^(1/t) + 1)·e^(−|n|/t), t = ``scale``, int64 (size,).

    Exact up to the uniform whole numbers it is made of (Canonne, Kamath and Steinke 2020, algorithm 2); no
    logarithm, no division.
    """
    if scale < 1:
        raise PrivacyError(f"scale is {scale}; allowed: an integer of at least 1")
    found = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while missing.size:
        draws = np.full(missing.size, scale, dtype=np.int64)
        remainder = _below(draws, generator)
        accepted = _exponential_coins(remainder, scale, generator)
        magnitude = remainder + scale * _successes(missing.size, generator)
        negative = _below(np.full(missing.size, 2, dtype=np.int64), generator) == 1
        accepted &= ~(negative & (magnitude == 0))  # else zero would come twice as often
        found[missing[accepted]] = np.where(negative, -magnitude, magnitude)[accepted]
        missing = missing[~accepted]
    return found


def _exponential_coins(
    numerators: Integers, denominator: int, generator: np.random.Generator | None
) -> npt.NDArray[np.bool_]:
    """Coins that are heads with probability e^(−numerator/denominator), numerators in [0, denominator]."""
    trials = np.ones(numerators.size, dtype=np.int64)
    going = np.arange(numerators.size)
    while going.size:
        more = _below(denominator * trials[going], generator) < numerators[going]
        going = going[more]
        trials[going] += 1
    return trials % 2 == 1


def _successes(size: int, generator: np.random.Generator | None) -> Integers:
    """How many coins of e^(−1) in a row come up heads, (size,)."""
    counts = np.zeros(size, dtype=np.int64)
    going = np.arange(size)
    while going.size:
        heads = _exponential_coins(np.ones(going.size, dtype=np.int64), 1, generator)
        going = going[heads]
        counts[going] += 1
    return counts


def _below(bounds: Integers, generator: np.random.Generator | None) -> Integers:
    """Uniform whole numbers in [0, bound) for each of ``bounds``, by rejection, so without rounding."""
    if generator is not None:
        return generator.integers(0, bounds)
    wide = bounds.astype(np.uint64)
    limit = (np.uint64(2**64 - 1) // wide) * wide
    words = _system_words(bounds.size)
    while (again := np.flatnonzero(words >= limit)).size:
        words[again] = _system_words(again.size)
    return (words % wide).astype(np.int64)


def _system_words(count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)


def _finite(vectors: Floats) -> Floats:
    """Rows with a coordinate that is no finite number become zero."""
    whole = np.asarray(vectors, dtype=np.float64)
    return np.where(np.isfinite(whole).all(axis=1, keepdims=True), whole, 0.0)


def _scaled(vectors: Floats) -> Floats:
    """Rows divided by their largest coordinate, so that no sum or square of doubles over- or underflows."""
    finite = _finite(vectors)
    largest = np.abs(finite).max(axis=1, keepdims=True)
    return np.divide(finite, largest, out=np.zeros_like(finite), where=largest > 0)
