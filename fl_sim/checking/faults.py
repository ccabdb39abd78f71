"""Name what is wrong: the findings that measurements of an app give, and a check as JSON, text and picture.

A finding breaks the ε of the models, leaks something beside the models, or is a note, which contradicts no ε.

>>> from fl_sim.checking.stated import Stated
>>> from fl_sim.checking.trials import Seen
>>> seen = Measured(nodes=10, rounds=5, seen=Seen(), stated=Stated(2.0, 1e-5), parameters=1, noise={"w": 1.0},
...                 effect={"w": 1.0})
>>> for finding in findings(seen):
...     print(finding.name, finding.severity, finding.anchor)
noise-below-claim breaks docs/check.md#noise-below-claim
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from fl_sim.checking.measurements import GROWS, Measured
from fl_sim.formats import aligned, counted, format_delta, format_epsilon, format_lower_bound, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Severity = Literal["breaks", "leaks", "note"]
PAGE = "docs/check.md"

_FURTHER = 1.1  # how many times further is further
_STATED = 1.03  # how many times larger a proven ε must be to contradict a stated one, beside the errors of measurement

_SAMPLED = {
    "all": "every user trains in every round",
    "same": "the same users in every round",
    "fixed": "cohorts of a fixed size",
    "poisson": "cohorts of varying size",
}
_FAILS = {
    "nothing": "counts as zero",
    "lost": "loses the round",
    "ends": "ends the run",
    "moves": "moves the model further than an update",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold a finding.

    Attributes:
        severity: ``breaks``, ``leaks`` or ``note``.
        words: what was found, in a sentence.
        numbers: what was measured.
    """

    name: str
    severity: Severity
    words: str
    numbers: Mapping[str, object]

    @property
    def anchor(self) -> str:
        """Return where the fault is described."""
        return f"{PAGE}#{self.name}"

    def record(self) -> dict[str, object]:
        """Return the finding for JSON."""
        return asdict(self) | {"page": self.anchor}


def findings(found: Measured) -> list[Finding]:
    """Return what is wrong, the worst first."""
    named = [finding for rule in _RULES for finding in rule(found)]
    reasons = (UNLIMITED - {"nan-passes", "failure-shows"}) | {"clip-on-mean"}
    hidden = any(finding.name in reasons for finding in named)
    named += _per_round(found) if hidden or found.seen.opacus else _claims(found)
    named = [_for_examples(finding, found) for finding in named]
    return sorted(named, key=lambda finding: ("breaks", "leaks", "note").index(finding.severity))


UNLIMITED = frozenset({
    "no-noise", "fixed-seed", "noise-reused", "unbounded-update", "unclipped-array", "array-without-noise",
    "nan-passes", "failure-shows", "noise-stops", "noise-in-step",
})  # fmt: skip
"""Faults for which no ε holds at all."""


def proven(found: Measured, named: list[Finding]) -> float:
    """Return ε for what was seen: inf with a fault for which none holds, and at least what the attack shows."""
    unlimited = any(finding.name in UNLIMITED and finding.severity == "breaks" for finding in named)
    of_gaussian = found.epsilon() if found.gaussian else 0.0
    return math.inf if unlimited else max(of_gaussian, found.attacked() or 0.0)


def _no_noise(found: Measured) -> Iterator[Finding]:
    if found.fixed:
        words = "The noise is the same under every seed: whoever runs the code knows it, and subtracts it."
        yield Finding("fixed-seed", "breaks", words, {})
    elif not any(found.noise.values()):
        words = "Two runs with other seeds release the same model, up to rounding: nothing is added to updates."
        yield Finding("no-noise", "breaks", words, {})
    elif found.fresh is False:
        words = "Two rounds add the same noise, so their difference has none."
        yield Finding("noise-reused", "breaks", words, {})
    if not any(found.noise.values()):
        return
    if found.stops:
        least = min(found.stops.values())
        words = f"Round {least} of {found.rounds} adds no noise to {_listed(sorted(found.stops))}, and round 1 does."
        yield Finding("noise-stops", "breaks", words, {"arrays": sorted(found.stops), "round": least})
    for name, lines in found.lines.items():
        words = f"The noise on {name} keeps to {lines} of its directions, and a user moves it across them."
        yield Finding("noise-in-step", "breaks", words, {"array": name, "directions": lines})


def _unclipped(found: Measured) -> Iterator[Finding]:
    if found.client_clip is not None:
        return
    loose = sorted(name for name, growth in found.growth.items() if name and growth > GROWS)
    arrays = sum(1 for name in found.growth if name)
    if found.is_unbounded and len(loose) == arrays:
        words = (
            f"An update a thousand times longer moves the model {found.growth['']:.0f} times as far: nothing bounds it."
        )
        yield Finding("unbounded-update", "breaks", words, {"growth": found.growth[""]})
    elif loose or found.is_unbounded:
        words = f"The clip leaves out {_listed(loose)}: a user moves it without a bound."
        yield Finding("unclipped-array", "breaks", words, {"arrays": loose})


def _bare_arrays(found: Measured) -> Iterator[Finding]:
    across = {f"{name} across its noise" for name in found.lines}
    bare = sorted(name for name, moved in found.effect.items() if moved > 0 and not found.noise.get(name, 0.0))
    bare = [name for name in bare if name not in across]
    if bare and any(found.noise.values()):
        words = f"No noise is added to {_listed(bare)}, which nodes change."
        yield Finding("array-without-noise", "breaks", words, {"arrays": bare})


def _whole_mean(found: Measured) -> Iterator[Finding]:
    if found.cohort > 2 and found.of_all > 0.9 and not found.is_unbounded:
        words = f"One user moves the model as far as all {found.cohort} together: the mean is clipped, not each update."
        yield Finding("clip-on-mean", "breaks", words, {"share": found.of_all, "cohort": found.cohort})


def _weights(found: Measured) -> Iterator[Finding]:
    if found.heavier is not None and found.heavier > _FURTHER:
        words = (
            "A user who reports a thousand times the examples, or other metrics, moves the model "
            f"{found.heavier:.1f} times as far."
        )
        yield Finding("example-weights", "breaks", words, {"times": found.heavier})


def _nan(found: Measured) -> Iterator[Finding]:
    if found.nan:
        words = "One NaN or infinity of one user makes the model NaN, or moves it further than any update."
        yield Finding("nan-passes", "breaks", words, {})


def _failure(found: Measured) -> Iterator[Finding]:
    words = {
        "lost": "A node that fails loses the round: the model does not move at all, and the failure is seen.",
        "ends": "What one node sends or does ends the run, so that its end tells of that node.",
        "moves": "A node that fails moves the model further than its own update could.",
    }
    if found.failure != "nothing":
        yield Finding("failure-shows", "breaks", words[found.failure], {"outcome": found.failure})


def _denominator(found: Measured) -> Iterator[Finding]:
    if found.rescaled > 0.2 and found.present:
        words = "The sum is divided by the number of users who took part: if one is away, all others count for more."
        short = _contradicts(found)
        yield Finding("realised-denominator", "breaks" if short else "note", words, {"effects": found.rescaled})


def _beside(found: Measured) -> Iterator[Finding]:
    names = [name.removeprefix("evaluate ") for name in found.metrics]
    if names:
        words = f"Metrics of nodes leave without noise: {_listed(sorted(set(names)))}."
        yield Finding("metrics-leave", "leaks", words, {"metrics": found.metrics})
    if found.text:
        words = "The text of a node's exception, which may quote its data, is in the server's log."
        yield Finding("exception-text", "note", words, {})


_RULES: tuple[Callable[[Measured], Iterator[Finding]], ...] = (
    _no_noise, _unclipped, _bare_arrays, _whole_mean, _weights, _nan, _failure, _denominator, _beside,
)  # fmt: skip


def _contradicts(found: Measured, share: float = 1.0) -> bool:
    """Return whether the stated ε is below that of a share of the effect, errors of measurement apart."""
    stated = found.stated.epsilon
    return found.gaussian and stated is not None and found.epsilon(least=True, share=share) > _STATED * stated


def _per_round(found: Measured) -> Iterator[Finding]:
    """Look at the stated ε alone, where it is that of an example, or nothing hides a user."""
    by_round = found.stated.by_round
    if found.seen.opacus and len(by_round) > 1 and math.isclose(by_round[0], by_round[1], rel_tol=1e-3):
        words = f"The nodes' ε of an example is the same after two rounds, {format_epsilon(by_round[0])}: that of one."
        yield Finding("accountant-reset", "breaks", words, {"by_round": list(by_round[:2])})


def _claims(found: Measured) -> Iterator[Finding]:
    """Compare the stated ε with the one that is proven, and name the reason of a difference."""
    stated, by_round = found.stated.epsilon, found.stated.by_round
    if stated is None or not _contradicts(found):
        if found.sampling == "same" and stated is None:
            yield Finding("same-cohort", "note", "The same users train in every round and under every seed.", {})
        shown = found.attacked()
        if stated is not None and shown is not None and shown > stated:
            words = f"{format_epsilon(stated)} is stated, and an attack shows at least {format_lower_bound(shown)}"
            if found.gaussian:  # else nothing is proven of the first round
                words += ": a later round has a larger effect or less noise than the first, which was measured"
            yield Finding("attack-above-claim", "breaks", f"{words}.", {"stated": stated, "attack": shown})
        return
    least, numbers = found.epsilon(), {"stated": stated, "seen": found.epsilon()}
    least_words = f"{format_epsilon(stated)} is stated, {format_epsilon(least)} is proven for what was seen"
    constant = len(by_round) > 1 and max(by_round) - min(by_round) < 1e-3 * max(by_round)
    if constant and stated >= found.epsilon(1, least=True) * 0.9:
        words = f"ε is that of one round, the same after each of {found.rounds}: {least_words}."
        yield Finding("accountant-reset", "breaks", words, numbers)
    elif found.sampling == "same":
        words = f"The same users train in every round, so sampling amplifies nothing: {least_words}."
        yield Finding("same-cohort", "breaks", words, numbers)
    elif found.sampling == "fixed":
        words = (
            f"Cohorts have a fixed size, so who joins takes another's place, which moves two updates: {least_words}."
        )
        yield Finding("fixed-cohort", "breaks", words, numbers)
    elif found.rescaled <= 0.2 or _contradicts(found, share=0.5):
        words = f"The noise is {1 / found.mu:.3g} times the effect of a user: {least_words}."
        yield Finding("noise-below-claim", "breaks", words, numbers | {"noise_multiplier": 1 / found.mu})


def _for_examples(finding: Finding, found: Measured) -> Finding:
    """Return a finding on users as a note where the stated ε is that of an example, by Opacus on the nodes."""
    if not found.seen.opacus or finding.name in ("accountant-reset", "metrics-leave", "exception-text"):
        return finding
    words = f"{finding.words} The stated ε is that of an example, not of a user."
    return replace(finding, severity="note", words=words)


def _listed(names: list[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


_NEVER_SEEN = (
    "Effects of updates that were not tried; nodes that share memory; noise that can be predicted; the network and the "
    "clock."
)


@dataclass(frozen=True)
class Check:
    """Hold what a check found.

    Attributes:
        app: The name of the app's folder.
        measured: What was measured.
        findings: What is wrong, the worst first.
        seconds: The time that it took.
    """

    app: str
    measured: Measured
    findings: list[Finding]
    seconds: float

    @property
    def holds(self) -> bool:
        """Tell whether nothing was found that contradicts an ε, or leaves beside it."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def epsilon(self) -> float:
        """Return ε of any user for what was seen; inf if there is none."""
        return proven(self.measured, self.findings)

    @property
    def unseen(self) -> list[str]:
        """Return what could not be seen, a sentence each."""
        return [*self.measured.unseen, _NEVER_SEEN]

    def record(self) -> dict[str, object]:
        """Return the check for JSON."""
        found = self.measured
        without, present = ([], []) if found.scores is None else (part.tolist() for part in found.scores)
        return {
            "app": self.app,
            "nodes": found.nodes,
            "rounds": found.rounds,
            "trials": found.trials,
            "seconds": round(self.seconds, 1),
            "holds": self.holds,
            "epsilon_stated": found.stated.epsilon,
            "epsilon_proven": self.epsilon,
            "epsilon_attack": found.attacked(),
            "measured": {
                "sampling": found.sampling,
                "rate": found.rate,
                "effect": found.reach,
                "present": found.present,
                "noise": found.least_noise,
                "mu": found.mu,
                "fresh": found.fresh,
                "from_global_seed": found.from_global_seed,
                "heavier": found.heavier,
                "nan": found.nan,
                "failure": found.failure,
            },
            "read": {
                "strategy": [name for name, _ in found.seen.strategy],
                "mods": [name for name, _ in found.seen.mods],
                "delta": found.stated.delta,
                "delta_stated": found.stated.delta_stated,
            },
            "unseen": self.unseen,
            "scores": {"without": without, "with": present},
            "findings": [finding.record() for finding in self.findings],
        }

    def text(self) -> str:
        """Return the check as text: what was measured, what was read, what could not be seen, the findings."""
        found, stated = self.measured, self.measured.stated
        strategy, mods = (", ".join(name for name, _ in part) for part in (found.seen.strategy, found.seen.mods))
        lines = [f"{self.app}: {counted(found.nodes, 'node')}, {counted(found.rounds, 'round')}, "
                 f"{found.trials} trials in {round(self.seconds, 1):.0f} s", "", "measured"]  # fmt: skip
        lines += _table([
            ("users in a round", f"{_SAMPLED[found.sampling]}, {100 * found.rate:.3g} % of them"),
            ("effect of a user", _length(found.reach) + ("" if found.present else ", of the opposite update")),
            ("noise", _length(found.least_noise) + " on a parameter" + _fresh(found)),
            ("effect in noise", f"{found.mu:.3g} standard deviations a round" if found.least_noise else "none"),
            ("a user of a thousand times the examples", _times(found.heavier)),
            ("a NaN", "reaches the model" if found.nan else "does not reach the model"),
            ("a failure", _FAILS[found.failure]),
        ])  # fmt: skip
        lines += ["", "read"]
        lines += _table([("strategy", printable(strategy or "none of Flower's")),
                         ("mods", printable(mods or "none")),
                         ("δ", format_delta(stated.delta) + ("" if stated.delta_stated else ", by default")),
        ])  # fmt: skip
        lines += ["", f"ε {'stated':>10} {'for what was seen':>20} {'shown by the attack':>22}"]
        lines += [f"  {_stated(stated.epsilon):>10} {format_epsilon(self.epsilon):>20} "
                  f"{_shown(found.attacked(), found.mu):>22}", ""]  # fmt: skip
        lines += ["could not be seen", *(f"  {printable(words)}" for words in self.unseen), ""]
        lines += [f"{each.severity}: {each.name} ({each.anchor})\n  {printable(each.words)}" for each in self.findings]
        return "\n".join(lines + ([] if self.findings else ["nothing found"]))

    def picture(self) -> Figure:
        """Return a picture: what a user's presence does to the model, beside what ε allows."""
        from fl_sim.checking.check_picture import check_picture

        return check_picture(self.app, self.measured, self.epsilon if self.measured.gaussian else None)


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]


def _fresh(found: Measured) -> str:
    if not found.least_noise or found.fresh is None:
        return ""
    source = ", from the global generators" if found.from_global_seed else ""
    return (", fresh in every round" if found.fresh else ", the same in every round") + source


def _times(times: float | None) -> str:
    """Return how far an update moves the model in words.

    >>> _times(5.96), _times(None)
    ('moves the model 5.96 times as far', 'not tried: all weights are 1')
    """
    return "not tried: all weights are 1" if times is None else f"moves the model {times:.3g} times as far"


def _length(value: float) -> str:
    return "without a bound" if not math.isfinite(value) else f"{value:.3g}"


def _shown(attack: float | None, mu: float) -> str:
    if attack is None:
        return "–" if math.isfinite(mu) else "told with certainty"
    return f"at least {format_lower_bound(attack)}"


def _stated(value: float | None) -> str:
    return "none" if value is None else format_epsilon(value)
