"""Measure what one user can do to the models that an app releases, on neighbours with the same draws.

The attacked user is of the last node. Two trials with one seed draw the same cohort (without that user, or with another
one in its place) and the same noise, so the difference of what they release is the user's effect alone.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fl_sim.auditing.lower_bounds import Scores, epsilon_lower_bound, gaussian_epsilon, gaussian_lower_bound
from fl_sim.checking.app_folder import AppFolder, CheckError
from fl_sim.checking.app_process import AppProcess
from fl_sim.checking.observed_app import PRIVATE_TEXT
from fl_sim.checking.stated import Stated, names_privacy, stated_by
from fl_sim.checking.trials import Answer, Arrays, Seen, Trial, Unit, flat, signs
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency

Sampling = Literal["all", "same", "fixed", "poisson"]
Floats = npt.NDArray[np.float64]

LONG, HUGE, TINY = 1e3, 1e6, 1e-9
"""Lengths of pushed updates, as multiples of the longest update of the app's own."""

CLIPS = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
"""The mods of Flower that clip."""

CONFIDENCE = 0.95
_REAL_ROUNDS = 2
_SEEDS = range(1, 401)
_USER_DRAWS = 1500  # draws of users from which a sampling rate is estimated
_MOST_SEEDS = 200
_LONELY = 60  # trials after which the attacked user may train alone
_NOISE_DRAWS = 2000  # coordinates of noise from which a standard deviation is estimated
_MOST_ARRAYS = 12
_PAIRS = 30  # of trials where noise does not cancel
_OTHER_NOISE = (1, 2, 3)  # draws that all change a metric which noise protects
_ATTACKS = 100
_ATTACKED_ROUNDS = 10
_PLAIN = 20.0  # an effect of so many standard deviations is seen in a few trials
_SURELY = 1e5  # so many standard deviations are no privacy at all
_PART = 1e-4  # of a length, below which a part of it is none
_BLUR = 1e-3  # noise of this share of a difference does not blur it
GROWS = 10.0
"""A thousand times longer update moves what is bounded less than so many times as far."""
_SHAPE_DEVIATION = math.sqrt(1 - 3 / math.pi)  # of a Gaussian's absolute deviation over its standard one, of one value
_SAME_SHAPE = 0.01  # a Laplace distribution differs by 0.09, a uniform one by 0.07
_LEAST_NOISE = 1e-2  # noise multipliers below it are accounted for by the formula of the Gaussian


@dataclass(slots=True)
class Measured:
    """Hold what was measured; lengths are those of the model's moves in a round.

    Attributes:
        rounds: of the whole run.
        seen: the whole run.
        stated: what the app says of its privacy.
        parameters: the number of the model's parameters.
        sampling: how users are sampled.
        rate, rate_low: the share of users in a round, and a lower limit of it.
        cohort: the users of the first round of the compared trials.
        noise: the standard deviation of the noise by array.
        noise_error: the relative error of the noise, three standard errors.
        gaussian: whether the noise looks normal.
        fresh: whether two rounds have different noise; None if there is no noise.
        from_global_seed: whether the noise follows from the seeds of the global generators.
        fixed: whether the noise is the same under every seed.
        stops: the first round in which an array that has noise has none, by array.
        lines: the number of directions in which an array has noise, where it leaves a user's effect bare.
        effect: how far one user's presence moves the model, by array.
        present: whether presence was compared with absence; else with the opposite update.
        growth: by how much more a thousand times longer update moves the model, by array; ``""`` is all arrays.
        heavier: how many times further a user with a thousand times the examples, and other metrics, moves it; None if
            not tried.
        of_all: the share of all users' effect that one user has.
        rescaled: how far the others' updates move the model if a user without an update is away, in effects.
        nan: whether a NaN or an infinity reaches the model, or moves it further than any update.
        failure: what a failed user does: ``nothing``, ``lost`` (the round), ``ends`` (the run), ``moves``.
        metrics: names of the metrics that follow from a user's data and leave.
        text: whether the text of a node's exception is logged.
        client_clip: the length at which the train function itself bounds updates; None if it does not.
        scores: of the attack, without and with the user, in standard deviations of the noise.
        unseen: what could not be seen, a sentence each.
        trials: the number of trials.
    """

    nodes: int
    rounds: int
    seen: Seen
    stated: Stated
    parameters: int
    sampling: Sampling = "all"
    rate: float = 1.0
    rate_low: float = 1.0
    cohort: int = 0
    noise: dict[str, float] = field(default_factory=dict)
    noise_error: float = 0.0
    gaussian: bool = True
    fresh: bool | None = None
    from_global_seed: bool = False
    fixed: bool = False
    stops: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    effect: dict[str, float] = field(default_factory=dict)
    present: bool = True
    growth: dict[str, float] = field(default_factory=dict)
    heavier: float | None = None
    of_all: float = 0.0
    rescaled: float = 0.0
    nan: bool = False
    failure: Literal["nothing", "lost", "ends", "moves"] = "nothing"
    metrics: list[str] = field(default_factory=list)
    text: bool = False
    client_clip: float | None = None
    scores: tuple[Floats, Floats] | None = None
    unseen: list[str] = field(default_factory=list)
    trials: int = 0

    @property
    def is_unbounded(self) -> bool:
        """Return whether a longer update of all arrays moves the model as much further."""
        return self.growth.get("", 1.0) > GROWS

    @property
    def length(self) -> float:
        """Return how far one user's presence moves the model."""
        return math.sqrt(sum(value**2 for value in self.effect.values()))

    @property
    def reach(self) -> float:
        """Return :attr:`length`; inf where a longer update moves the model further."""
        return math.inf if self.is_unbounded else self.length

    @property
    def least_noise(self) -> float:
        """Return the smallest standard deviation of the noise on an array that has noise; 0 without any."""
        return min((value for value in self.noise.values() if value), default=0.0)

    @property
    def mu(self) -> float:
        """Return the effect of a user in standard deviations of the noise; inf where an array has none."""
        total = 0.0
        for name, moved in self.effect.items():
            noise = self.noise.get(name, 0.0)
            if moved > 0:
                total += math.inf if noise == 0 or not math.isfinite(moved) else (moved / noise) ** 2
        return math.sqrt(total)

    def epsilon(self, rounds: int | None = None, *, least: bool = False, share: float = 1.0) -> float:
        """Return ε of any user for the effect, noise and sampling that were measured; inf where there is none.

        Args:
            rounds: the number of rounds; by default that of the whole run.
            least: take the limits of what was measured that give the smaller ε.
        """
        mu = share * (self.mu / (1 + self.noise_error) if least else self.mu)
        rate = self.rate_low if least else self.rate
        return epsilon_of(
            mu, rate if self.sampling in ("poisson", "fixed") else 1.0, rounds or self.rounds, self.stated.delta
        )

    def attacked(self) -> float | None:
        """Return the lower bound on ε that the attack shows; None without an attack."""
        if self.scores is None:
            return None
        bounds = [epsilon_lower_bound]
        if self.sampling == "all" and math.isfinite(self.mu) and self.gaussian:
            bounds.append(gaussian_lower_bound)
        each = 1 - (1 - CONFIDENCE) / len(bounds)  # the larger of two fails as often as either
        return max(bound(Scores(*self.scores), self.stated.delta, each) for bound in bounds)


def epsilon_of(mu: float, rate: float, rounds: int, delta: float) -> float:
    """Return ε of rounds in which a user who is sampled moves the release by μ standard deviations of its noise.

    >>> round(epsilon_of(mu=1.0, rate=1.0, rounds=1, delta=1e-5), 2)
    4.38
    >>> round(epsilon_of(mu=1.0, rate=0.1, rounds=1, delta=1e-5), 2)
    1.68
    """
    if mu == 0 or mu > _SURELY:
        return 0.0 if mu == 0 else math.inf
    if rate >= 1 or 1 / mu < _LEAST_NOISE:
        return gaussian_epsilon(mu * math.sqrt(rounds), delta)
    return epsilon(RoundEvent("user_level", 1 / mu, q_u=rate), Adjacency(), rounds=rounds, delta=delta)


def measure(
    app: AppFolder, nodes: int, seconds: float, say: Callable[[str], None], prepare: Callable[[], None] | None = None
) -> Measured:
    """Run an app's trials, and return what they show.

    Raises:
        CheckError: the app cannot be checked.
    """
    deadline = time.monotonic() + seconds
    for _ in range(3):
        with AppProcess(app, nodes, deadline, prepare) as process:
            series = _Series(process, say)
            waits_for = series.first()
            if waits_for is None:
                return series.measured()
            nodes = waits_for
    raise CheckError(f"{app.path}: it waits for more than {nodes} nodes; allowed: `nodes` as it needs")


class _Series:
    """Run the trials of one app."""

    def __init__(self, process: AppProcess, say: Callable[[str], None]) -> None:
        self._process, self._say = process, say
        self._trials = 0
        self._seconds = 0.0
        self._target: Unit = (0, "")
        self._seed = 0
        self._long = self._huge = self._tiny = 1.0
        self._partial: dict[str, tuple[Floats, npt.NDArray[np.bool_]]] = {}  # draws of noise that leave out numbers

    def first(self) -> int | None:
        """Run the app as a whole; return the number of nodes for which it waits, if it does.

        Raises:
            CheckError: the app cannot be checked.
        """
        self._say("the whole run")
        path = self._process.app.path
        whole = self._run(Trial(seed=1, entropy=1, rounds=None, steady=False, real=_REAL_ROUNDS))
        if whole.error is not None and whole.error[0] == "waits":
            return max(whole.waits_for, self._process.nodes + 1) + 1
        if whole.error is not None and (whole.error[0] == "absent" or not whole.steps):
            before = "its nodes fail: " if whole.error[0] == "node" else ""
            raise CheckError(f"{path}: {before}{whole.error[1]}")
        if not any(whole.cohorts):
            raise CheckError(f"{path}: it never asks its nodes to train")
        if not whole.steps:
            raise CheckError(f"{path}: it never aggregates what its nodes return")
        self._whole = whole
        self._target = max(unit for cohort in whole.cohorts for unit in cohort)
        return self._without_a_node()

    def _without_a_node(self) -> int | None:
        """Warm the process; return the number of nodes with which one may be away, if it may not with these."""
        self._run(Trial(real=1, warm=True, rounds=min(_ATTACKED_ROUNDS, len(self._whole.steps))))
        away = self._run(self._trial(rounds=0, absent=True))
        self._may_be_away = away.error is None and bool(away.cohorts)
        waits = away.error is not None and away.error[0] == "waits" and not self._target[1]
        return self._process.nodes + 1 if waits and away.waits_for == self._process.nodes else None

    def measured(self) -> Measured:
        """Return what all trials show."""
        whole = self._whole
        found = Measured(
            nodes=self._process.nodes,
            rounds=max(1, len(whole.steps)),
            seen=whole,
            stated=stated_by(whole, self._process.app.config),
            parameters=sum(value.size for value in whole.start.values()),
        )
        self._say("sampling")
        self._sampling(found)
        self._lengths(found)
        self._say("noise")
        self._noise(found)
        self._say("neighbours")
        self._neighbours(found)
        self._say("faults of a user")
        self._one_user(found)
        self._beginning(found)
        if math.isfinite(found.mu) and found.mu > 0:
            self._say("attack")
            self._attack(found)
        found.unseen += [f"No ε is read in the line: {line[:100]}" for line in found.stated.unread]
        if whole.error is not None:
            found.unseen.append(f"The whole run ended early: {whole.error[1]}.")
        found.trials = self._trials
        return found

    def _run(self, trial: Trial) -> Seen:
        seen = self._process.run(trial)
        self._trials += 1
        if trial.rounds is not None and not trial.real:
            self._seconds = max(seen.seconds / max(1, trial.rounds), self._seconds * 0.8)
        return seen

    def _trial(self, **changes: Any) -> Trial:
        return replace(Trial(seed=self._seed, entropy=self._seed, target=self._target), **changes)

    def _affordable(self, most: int, share: float, least: int = 3) -> int:
        """Return how many trials of a round fit into a share of the time that is left."""
        left = self._process.deadline - time.monotonic()
        return max(least, min(most, int(share * left / max(self._seconds, 1e-3))))

    def _sampling(self, found: Measured) -> None:
        """Find how users are sampled, and a seed under which the attacked user is."""
        ours = next((s["sampling_rate"] for _, s in self._whole.strategy if "sampling_rate" in s), None)
        many_users = bool(self._target[1])
        runs = [self._whole.cohorts[: len(self._whole.steps)]]
        wanted = 1 if ours is not None else self._affordable(-(-_USER_DRAWS // self._process.nodes), 0.15, least=12)
        hits = dict[int, int]()
        for seed in _SEEDS:
            cohort = self._run(self._trial(rounds=0, seed=seed, entropy=seed)).cohorts[:1]
            runs.append([list(dict.fromkeys(units)) for units in cohort])
            if cohort and many_users and not hits and cohort[0]:
                self._target = max(cohort[0])
            if cohort and self._target in cohort[0]:
                hits[seed] = len(cohort[0])
            everybody = len(runs) > 5 and all(len(cohort) == self._process.nodes for run in runs for cohort in run)
            company = max(hits.values(), default=0) > 2 or (hits and len(runs) > _LONELY)
            if company and (len(runs) > wanted or everybody):
                break
        if not hits:
            raise CheckError(f"{self._process.app.path}: its last node never trains; allowed: more `nodes`")
        self._seed = max(hits, key=lambda seed: min(hits[seed], 3))
        found.sampling, found.rate = _sampling_of(runs, self._process.nodes, many_users)
        draws = sum(len(run) for run in runs) * self._process.nodes
        found.rate_low = max(0.0, found.rate - 3 * math.sqrt(found.rate * (1 - found.rate) / draws))
        if found.sampling == "fixed":
            found.rate_low = found.rate
        if ours is not None:
            found.sampling, found.rate, found.rate_low = "poisson" if ours < 1 else "all", float(ours), float(ours)

    def _lengths(self, found: Measured) -> None:
        """Set the lengths of pushes; a train function that bounds its updates itself is not pushed beyond."""
        base = self._run(self._trial())
        norms = [reply["update norm"] for reply in base.replies.values() if "update norm" in reply]
        norms += [reply["update norm"] for reply in self._whole.replies.values() if "update norm" in reply]
        if not base.replies and not self._whole.replies:
            reason = f": {self._whole.error[1]}" if self._whole.error is not None else ""
            raise CheckError(
                f"{self._process.app.path}: no node returns a model{reason}; allowed: an app whose train function works"
            )
        longest = max([norm for norm in norms if math.isfinite(norm)], default=1.0) or 1.0
        modded = any(name in CLIPS for name, _ in base.mods)
        if not modded and _bounds(norms, longest):
            found.client_clip = longest
        self._long, self._huge = longest * LONG, longest * HUGE
        self._tiny = longest * TINY
        if found.client_clip is not None:
            self._long = self._huge = longest
            found.unseen.append(
                "The train function bounds updates itself, so no longer ones and no NaN were put in below it."
            )
        found.cohort = len(base.cohorts[0]) if base.cohorts else 0

    def _noise(self, found: Measured) -> None:
        """Measure the noise: by seeds, over rounds, and of one seed of the global generators."""
        still = Answer("push", scale=self._tiny)
        answer = still if found.sampling == "poisson" else Answer("same")
        both = self._trial(attacked=answer, others=answer, steady=False)
        released = (self._step(replace(both, seed=seed, entropy=seed)) for seed in range(101, 101 + _MOST_SEEDS))
        drawn = filter(None, released)  # without the rounds of empty cohorts
        steps = list(itertools.islice(drawn, 3))
        if len(steps) < 3:
            raise CheckError(f"{self._process.app.path}: its rounds have no users; allowed: more `nodes`, or of them")
        size = sum(value.size for value in steps[0].values())
        still_same = all(np.allclose(flat(step), flat(steps[0]), rtol=1e-5, atol=1e3 * self._tiny) for step in steps)
        more = 0 if still_same else min(_MOST_SEEDS, self._affordable(-(-_NOISE_DRAWS // max(1, size)), 0.2))
        steps += itertools.islice(drawn, max(0, more - 3))
        shapes: list[tuple[float, int]] = []
        for name in steps[0]:
            draws = np.stack([np.ravel(step[name]) for step in steps if name in step])
            spread = float(np.sqrt(np.mean(np.var(draws, axis=0, ddof=1)))) if draws.size else 0.0
            largest = float(np.abs(draws).max()) if draws.size else 0.0
            floor = max(1e-6 * largest, self._rounding(name), 1e3 * self._tiny if found.sampling == "poisson" else 0.0)
            found.noise[name] = spread if spread > floor else 0.0
            small = max(self._rounding(name), 100 * self._tiny)
            if found.noise[name] and (_bare(draws, small).any() or _directions(draws) is not None):
                self._partial[name] = draws, _bare(draws, small)
            elif found.noise[name]:
                shapes.append(_shape(draws))
        found.gaussian = _is_gaussian(shapes)
        if not found.gaussian:
            found.unseen.append("The noise is not Gaussian: ε for what was seen is what the attack shows, and no more.")
        _pool(found.noise, {name: (len(steps) - 1) * value.size for name, value in steps[0].items()})
        found.noise_error = 3 / math.sqrt(2 * max(1, (len(steps) - 1) * size))
        if any(found.noise.values()):
            self._later_noise(found, both)
        rounds = self._run(self._trial(attacked=still, others=still, steady=False, rounds=3, seed=7, entropy=7)).steps
        others = self._run(self._trial(attacked=still, others=still, steady=False, rounds=1, seed=7, entropy=8)).steps
        first = flat(rounds[0]) if rounds else np.zeros(1)
        rounding = math.sqrt(sum(self._rounding(name) ** 2 * value.size for name, value in self._whole.start.items()))
        has_noise = float(np.linalg.norm(first)) > max(self._tiny * 1e4, rounding)
        if has_noise and len(rounds) > 1:
            found.fresh = _correlation(first, flat(rounds[1])) < 0.99
        if has_noise and others:
            found.from_global_seed = _correlation(first, flat(others[0])) > 0.999
        found.fixed = has_noise and not any(found.noise.values())

    def _later_noise(self, found: Measured, trial: Trial) -> None:
        """Look for a round, up to the last, in which no noise is added to an array that has some in the first."""
        tried = min(found.rounds, self._affordable(found.rounds, 0.03, least=2))
        number = self._affordable(4, 0.1 / tried)
        runs = [
            self._run(replace(trial, seed=seed, entropy=seed, rounds=tried)).steps for seed in range(301, 301 + number)
        ]
        if tried < found.rounds:
            found.unseen.append(f"Noise after round {tried} of {found.rounds} was not looked at.")
        for name in [name for name, noise in found.noise.items() if noise]:
            reach = 0.0
            for place in range(tried):
                steps = [np.ravel(run[place][name]) for run in runs if len(run) > place and name in run[place]]
                moved = [step for step in steps if step.any()]  # a round may be skipped, of an empty cohort
                if len(moved) < min(3, number):
                    continue
                kind = self._whole.start.get(name, moved[0]).dtype
                units = 8 * float(np.finfo(kind).eps) if kind.kind == "f" else 0.0
                reach += max(float(np.abs(step).max()) for step in steps)
                floor = max(100 * self._tiny, self._rounding(name), units * reach)
                if float(np.sqrt(np.mean(np.var(moved, axis=0, ddof=1)))) <= floor < 0.1 * found.noise[name]:
                    found.stops.setdefault(name, place + 1)

    def _bare_numbers(self, found: Measured) -> None:
        """Take apart the arrays that have noise in some of their numbers, or along some directions, alone.

        The effect that has no noise counts as that of an array of its own.
        """
        for name, (draws, bare) in self._partial.items():
            moved = np.ravel(self._direction[name]).astype(np.float64)
            left, lines = np.where(bare, 0.0, moved), _directions(draws)
            outside = left if lines is None else left - lines.T @ (lines @ left)
            length = float(np.linalg.norm(moved))
            parts = {f"{bare.sum()} of {bare.size} numbers of {name}": float(np.linalg.norm(moved - left))}
            if lines is not None and float(np.linalg.norm(outside)) > _PART * length:
                found.lines[name] = len(lines)
                parts[f"{name} across its noise"] = float(np.linalg.norm(outside))
            for part, size in parts.items():
                if size > _PART * length:
                    found.effect[part], found.noise[part] = size, 0.0
                    found.effect[name] = math.sqrt(max(0.0, found.effect[name] ** 2 - size**2))

    def _rounding(self, name: str) -> float:
        """Return how far apart two sums of an array may be by rounding alone; 0 for our own average."""
        values = self._whole.start.get(name)
        if values is None or values.dtype.kind != "f" or not values.size:
            return 0.0
        return 8 * float(np.finfo(values.dtype).eps) * float(np.abs(values).max())

    def _neighbours(self, found: Measured) -> None:
        """Measure the effect of a user's presence."""
        long, against = Answer("push", scale=self._long), Answer("push", scale=-self._long)
        self._pair = self._trial(others=long, attacked=against)
        trial = self._pair
        present = self._run(trial)
        found.present = self._may_be_away
        other = _neighbour(trial, found)
        if found.present:
            away = self._run(other)
            same = [unit for unit in present.cohorts[0] if unit != self._target] if present.cohorts else []
            shifted = not away.cohorts or len(away.cohorts[0]) not in (len(same), len(present.cohorts[0]))
            if shifted or away.error is not None:
                found.present = False
                other = _neighbour(trial, found)
        if not found.present:
            found.unseen.append("A user's absence could not be compared: the opposite update stands for it.")
        difference = self._difference(trial, other, found)
        still = Answer("push", scale=self._tiny)
        alone = replace(trial, others=still, attacked=long)
        by_itself = self._difference(alone, replace(other, others=still, attacked=still), found)
        if _length(by_itself) > 0.99 * _length(difference):  # others who do nothing hide less
            difference, self._pair = by_itself, alone
        huge = replace(trial, others=Answer("push", scale=self._huge), attacked=Answer("push", scale=-self._huge))
        longer = self._difference(huge, _neighbour(huge, found), found)
        found.growth[""] = _length(longer) / max(_length(difference), 1e-300)
        stronger = replace(trial, attacked=huge.attacked)
        if found.growth[""] < GROWS and _length(turned := self._difference(stronger, other, found)) > 1.01 * _length(
            difference
        ):
            difference, self._pair = turned, stronger
        found.effect = {name: float(np.linalg.norm(value)) for name, value in difference.items()}
        self._direction = difference
        self._bare_numbers(found)
        model = self._whole.start
        names = [name for name, value in model.items() if value.dtype.kind == "f"][:_MOST_ARRAYS]
        for name in names if len(names) > 1 else ():
            one = [
                self._effect_of(found, Answer("push", scale=scale, array=name)) for scale in (self._long, self._huge)
            ]
            found.growth[name] = one[1] / max(one[0], 1e-300) if one[1] > self._tiny else 1.0
        if found.client_clip is None:
            whole_numbers = [name for name, value in model.items() if value.dtype.kind in "iu"]
            for name in whole_numbers[:_MOST_ARRAYS]:
                if self._effect_of(found, Answer("push", scale=1e6, array=name)) > 0:
                    found.effect[name] = max(found.effect.get(name, 0.0), 1.0)
        for name, moved in found.effect.items():
            if (
                found.noise.get(name, 0.0) * _SURELY < moved
                and max(found.growth[""], found.growth.get(name, 0)) < GROWS
            ):
                found.noise[name] = 0.0  # such as the rounding of SecAgg+, which is random

    def _effect_of(self, found: Measured, answer: Answer) -> float:
        still = Answer("push", scale=self._tiny)
        one = self._trial(attacked=answer)
        return _length(self._difference(one, replace(one, attacked=still), found))

    def _one_user(self, found: Measured) -> None:
        """Try what one user may do: weigh more, send NaN, fail, be the only one."""
        long, against = Answer("push", scale=self._long), Answer("push", scale=-self._long)
        still = Answer("push", scale=self._tiny)
        trial = self._trial(others=long, attacked=against)
        other = _neighbour(trial, found)
        effect = max(found.length, 1e-300)
        self._weights(found, trial, other, effect)
        if found.cohort > 2:
            silent = self._trial(others=still, attacked=still)
            one = _length(self._difference(replace(silent, attacked=long), silent, found))
            everybody = _length(self._difference(replace(silent, attacked=long, others=long), silent, found))
            found.of_all = one / max(everybody, 1e-300)
        if found.present and found.sampling != "fixed":
            idle = replace(trial, attacked=still)
            found.rescaled = _length(self._difference(idle, other, found)) / effect
        if found.client_clip is None:
            for bad in (replace(trial, attacked=Answer("nan")), replace(trial, attacked=Answer("inf"))):
                finite = np.isfinite(flat(self._step(bad))).all()
                found.nan |= bool(not finite or _length(self._difference(bad, other, found)) > 1.1 * effect)
        fails = replace(trial, attacked=Answer("fail"))
        failed = self._run(fails)
        found.text = PRIVATE_TEXT in failed.log
        if failed.error is not None:
            found.failure = "ends"
        elif failed.steps and _length(failed.steps[0]) == 0:
            found.failure = "lost"
        elif found.present and _length(self._difference(fails, other, found)) > 1.1 * effect:
            found.failure = "moves"

    def _weights(self, found: Measured, trial: Trial, other: Trial, effect: float) -> None:
        own, heavy = (self._run(self._trial(weight=weight)) for weight in (1.0, 1e3))
        weights = [value for each in own.replies.values() for name, value in each.items() if name != "update norm"]
        pushed = self._run(self._trial(attacked=Answer("push", scale=self._long)))
        noisy = {name for noise in _OTHER_NOISE for name in _changed(own, self._run(self._trial(noise=noise)))}
        changed = (_changed(own, heavy) | _changed(own, pushed)) - noisy | self._logged()
        measured = {name for metrics in self._whole.metrics for name in metrics if name.startswith("evaluate ")}
        leaving = {name.partition("[")[0] for name in changed | measured}  # of a list the name
        found.metrics = sorted(name for name in leaving if not names_privacy(name.removeprefix("evaluate ")))
        if all(weight == 1 for weight in weights):
            return
        if heavy.error is not None:
            found.failure = "ends"
            return
        found.heavier = _length(self._difference(replace(trial, weight=1e3), other, found)) / effect

    def _logged(self) -> set[str]:
        """Return "lines of the log" if some follow from a user's metrics, and not from the models."""
        own, again, heavy = (self._run(self._trial(rounds=2, weight=weight)) for weight in (1.0, 1.0, 1e3))
        if any(not np.array_equal(flat(one), flat(other)) for one, other in zip(own.steps, heavy.steps, strict=False)):
            return set()
        lines = zip(*(seen.log.splitlines() for seen in (own, again, heavy)), strict=False)
        return {"lines of the log" for line, repeated, other in lines if line == repeated != other}

    def _beginning(self, found: Measured) -> None:
        """See whether nodes' answers make the initial model another one without a user.

        The older API may take it from any one node.
        """
        if not (asked := self._whole.asked):
            return
        found.unseen.append(f"What nodes answer to {', '.join(sorted(asked))} may leave beside the models.")
        trials = [self._trial(rounds=0, absent=absent) for absent in (False, False, True)]
        here, again, away = (flat(self._run(trial).start) for trial in trials)
        if (
            self._may_be_away
            and "get_parameters" not in asked
            and np.array_equal(here, again)
            and here.size == away.size
        ):
            found.effect["the initial model"] = float(np.linalg.norm(here - away))

    def _attack(self, found: Measured) -> None:
        """Score trials with and without the user by the direction of its effect."""
        weights = {
            name: value / found.noise[name] ** 2 for name, value in self._direction.items() if found.noise.get(name)
        }
        rounds = min(found.rounds, _ATTACKED_ROUNDS)
        most = 2 * _ATTACKS if found.mu < _PLAIN else _ATTACKS
        number = self._affordable(most, 0.5 / rounds, least=40) // 2
        trial = replace(self._pair, rounds=rounds, steady=False)
        twin = _neighbour(trial, found)
        scores: list[list[float]] = [[], []]
        for place, each in enumerate((twin, trial)):
            for seed in range(1000, 1000 + number):
                steps = self._run(replace(each, seed=seed + place * 10**6, entropy=seed + place * 10**6)).steps
                score = sum(
                    float(np.vdot(weights[name], step[name])) for step in steps for name in weights if name in step
                )
                scores[place].append(score / found.mu / math.sqrt(rounds))
        found.scores = (np.array(scores[0]), np.array(scores[1]))

    def _difference(self, trial: Trial, other: Trial, found: Measured) -> Arrays:
        """Return by how much two trials differ in what their first round released.

        Where the noise of two trials does not cancel, the mean over pairs is taken, along the pushed direction alone.
        """
        first, second = self._step(trial), self._step(other)
        difference = {name: value - second[name] for name, value in first.items() if name in second}
        if self._noise_length(first, found) < _BLUR * _length(difference) or self._cancels(found):
            return difference
        along = [self._along(difference)]
        for seed in range(500, 500 + self._affordable(_PAIRS, 0.1)):
            first = self._step(replace(trial, seed=seed, entropy=seed))
            second = self._step(replace(other, seed=seed, entropy=seed))
            along.append(self._along({name: value - second[name] for name, value in first.items()}))
        mean, error = float(np.mean(along)), float(np.std(along)) / math.sqrt(len(along))
        kept = mean if abs(mean) > 3 * error else 0.0
        return {name: kept * value for name, value in self._pushed(difference).items()}

    def _cancels(self, found: Measured) -> bool:
        """Return whether two trials of one seed have the same noise though their sums differ."""
        if not hasattr(self, "_noise_cancels"):
            small = self._long / LONG * 1e-3
            trials = [self._trial(attacked=Answer("push", scale=scale)) for scale in (small, 2 * small)]
            steps = [self._step(trial) for trial in trials]
            apart = flat({name: steps[0][name] - steps[1].get(name, 0.0) for name in steps[0]})
            noise = self._noise_length(steps[0], found)
            self._noise_cancels = noise == 0 or float(np.linalg.norm(apart)) < 0.3 * noise
            if not self._noise_cancels:
                found.unseen.append("Noise depends on the sum, so effects are means over pairs of trials.")
        return self._noise_cancels

    def _noise_length(self, step: Arrays, found: Measured) -> float:
        return math.sqrt(sum(found.noise.get(name, 0.0) ** 2 * value.size for name, value in step.items()))

    def _pushed(self, step: Arrays) -> Arrays:
        """Return the direction of a push, of length 1, by the arrays of a step."""
        floats = {name: value for name, value in self._whole.start.items() if value.dtype.kind == "f"}
        way: Arrays = {name: signs(name, value.shape) for name, value in floats.items()}
        if not set(way) <= set(step):  # the average of our own strategy is one vector
            way = dict.fromkeys(step, flat(way))
        return {name: value / math.sqrt(sum(each.size for each in way.values())) for name, value in way.items()}

    def _along(self, step: Arrays) -> float:
        return sum(float(np.vdot(value, step[name])) for name, value in self._pushed(step).items())

    def _step(self, trial: Trial) -> Arrays:
        steps = self._run(trial).steps
        return steps[0] if steps else {}


def _changed(seen: Seen, other: Seen) -> set[str]:
    """Return the names of metrics that differ in two trials."""
    pairs = zip(seen.metrics, other.metrics, strict=False)
    return {name for before, after in pairs for name in after if before.get(name) != after[name]}


def _sampling_of(runs: Sequence[Sequence[Sequence[Unit]]], nodes: int, many_users: bool) -> tuple[Sampling, float]:
    """Return how users are sampled, and the share of them in a round, from the cohorts of runs."""
    cohorts = [frozenset(cohort) for run in runs for cohort in run]
    sizes = {len(cohort) for cohort in cohorts}
    if many_users:
        return "poisson" if len(sizes) > 1 else "all", 1.0
    if sizes == {nodes}:
        return "all", 1.0
    rate = _largest_rate(runs, nodes)
    of_first_rounds = {frozenset(run[0]) for run in runs if run}
    within = [len({frozenset(cohort) for cohort in run}) for run in runs if len(run) > 1]
    if len(of_first_rounds) == 1 or (within and max(within) == 1):
        return "same", rate
    return ("fixed" if len(sizes) == 1 else "poisson"), rate


def _largest_rate(runs: Sequence[Sequence[Sequence[Unit]]], nodes: int) -> float:
    """Return the share of users in a round: that of first or of later rounds, or of a user, where it differs by more
    than chance.
    """
    first, later = [run[0] for run in runs if run], [cohort for run in runs for cohort in run[1:]]
    counts = Counter(itertools.chain.from_iterable(first + later))
    draws = max(1, len(first) + len(later))
    rate = sum(counts.values()) / draws / nodes
    parts = [(sum(map(len, part)), len(part) * nodes) for part in (first, later) if part]
    parts += [(number, draws) for number in counts.values()]
    further = 4 * math.sqrt(rate * (1 - rate))
    return max([rate, *(hits / tries for hits, tries in parts if hits / tries > rate + further / math.sqrt(tries))])


def _bounds(norms: Sequence[float], longest: float) -> bool:
    """Return whether updates look clipped: many of them have the same largest length, though they differ."""
    equal = sum(norm > longest * 0.999 for norm in norms)
    differ = len({round(norm, 12) for norm in norms}) > 1
    return differ and equal >= max(2, len(norms) / 2) and (equal < len(norms) or equal >= 4)


def _pool(noise: dict[str, float], draws: dict[str, int]) -> None:
    """Give arrays whose noise differs by no more than chance the same standard deviation."""
    noisy = {name: number for name, number in draws.items() if noise[name]}
    total = sum(noisy.values())
    if total:
        pooled = math.sqrt(sum(noise[name] ** 2 * number for name, number in noisy.items()) / total)
        for name, number in noisy.items():
            if abs(noise[name] / pooled - 1) < 4 / math.sqrt(2 * number):
                noise[name] = pooled


def _bare(draws: Floats, small: float) -> npt.NDArray[np.bool_]:
    """Return which numbers are the same in all draws of noise, (draws, numbers), though others are not.

    None where chance might do it: of many numbers a few are nearly the same in a few draws.
    """
    spread = np.std(draws, axis=0, ddof=1)
    chance = (1e-4 / spread.size) ** (1 / (len(draws) - 1))
    return np.asarray((spread <= small) & (small < min(_PART, chance) * spread.max()))


def _shape(draws: Floats) -> tuple[float, int]:
    """Return how far noise, (draws, numbers), is from a Gaussian's mean absolute deviation in standard deviations.

    The second is the number of values (Geary 1935). Deviations are those of a draw, or of a number with many draws.
    """
    values = draws - draws.mean(axis=0)
    axis, freedom = (1, values.shape[1]) if values.shape[1] >= len(values) else (0, len(values) - 1)
    lengths = np.sqrt(np.mean(values**2, axis=axis))
    ratios = np.mean(np.abs(values), axis=axis)[lengths > 0] / lengths[lengths > 0]
    mean_length = math.sqrt(2 / freedom) * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    return float(ratios.mean()) - math.sqrt(2 / math.pi) / mean_length, values.size


def _is_gaussian(shapes: Sequence[tuple[float, int]]) -> bool:
    """Return whether differences from a Gaussian's shape, each of so many values, are within chance.

    >>> rng = np.random.default_rng(0)
    >>> [_is_gaussian([_shape(draw(size=(200, 1)))]) for draw in (rng.normal, rng.laplace, rng.uniform)]
    [True, False, False]
    """
    values = sum(number for _, number in shapes)
    difference = sum(apart * number for apart, number in shapes) / max(values, 1)
    return abs(difference) <= max(_SAME_SHAPE, 3 * _SHAPE_DEVIATION / math.sqrt(max(values, 1)))


def _directions(draws: Floats) -> Floats | None:
    """Return orthogonal directions of length 1, (directions, numbers), to which draws of noise keep; None if to none.

    >>> one = np.random.default_rng(0).normal(size=(5, 1)) * np.ones(3)
    >>> _directions(one).round(2).tolist(), _directions(one + np.random.default_rng(1).normal(size=(5, 3)))
    ([[0.58, 0.58, 0.58]], None)
    """
    rows = np.diff(draws, axis=0)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > _PART**2 * values[-1]
    if 2 * kept.sum() > min(rows.shape):
        return None
    lines = (vectors[:, kept] / np.sqrt(values[kept])).T @ rows
    return np.asarray(lines * np.sign(lines.sum(axis=1, keepdims=True)), np.float64)


def _length(step: Arrays) -> float:
    return float(np.linalg.norm(flat(step)))


def _neighbour(trial: Trial, found: Measured) -> Trial:
    """Return the trial without the attacked user; with the update of the others, if nobody may be away."""
    return replace(trial, absent=True) if found.present else replace(trial, attacked=trial.others)


def _correlation(one: Floats, other: Floats) -> float:
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    if len(one) != len(other) or lengths == 0:
        return 0.0
    if len(one) < 4:
        return 1.0 if np.allclose(one, other, rtol=1e-6) else 0.0
    return float(np.vdot(one, other)) / lengths
