"""The facts of a run, read once from its folder: every report, page, card, table and plot is a view of them.

:func:`read_facts` alone decides which ε is shown and whether anything is guaranteed. A view takes its figures from
:class:`RunFacts` and computes no ε, so no two views can disagree. An ε that the run's ledger does not support is not in
the facts, in no round.

>>> has_guarantee(None, {"epsilon_user": 2.5}), has_guarantee(None, {"epsilon_user": float("inf")})
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from numbers import Real
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_sim.formats import format_number, printable
from fl_sim.plugins import PluginError
from fl_sim.reporting.held_out import HeldOutFigures
from fl_sim.reporting.recorded import Attacker, CorpusSize, Gradients, Kept, parsed, rejected_in_words
from fl_sim.reporting.without_privacy import WithoutPrivacy, find_without_privacy
from fl_sim.settings_origin import Origin
from fl_sim.storage.ledger_check import check_ledger
from fl_sim.storage.run_claim import is_held
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, UTILITIES, ResultsError, RunFolder, Utility, utility_of
from fl_sim.strategies.accounting.adjacency import ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.mechanism import NUMBERS, Mechanism
from fl_sim.strategies.primitives.limits import PrivacyError
from fl_sim.strategies.registry import plan_from_record

PROVEN, NO_GUARANTEE, UNTRUSTED, NO_ROUND = "proven", "no guarantee", "not trusted", "no round"
"""The states of a run's ε; ``not trusted`` means that its ledger does not support it."""

RUNNING, FINISHED, NOT_STARTED, NOT_FINISHED = "running", "finished", "not started", "not finished"
"""The states of a run besides interrupted and diverged; ``not finished`` is any that has not ended, on a file system
without locks, where nobody can tell whether it is at work."""

STATES = {
    NO_GUARANTEE: "∞: no guarantee",
    UNTRUSTED: "none: the ledger does not support one (see the warnings)",
    NO_ROUND: "none: no round is recorded",
}
"""In words why a run has no finite ε."""

NO_GUARANTEE_WORDS = "no guarantee (ε = ∞)"

UNITS = {
    "any": "any user + any entity",
    "any_robust": "any user + any entity, with missed mentions",
    "stated": "any user + an entity within the stated bound",
    "stated_robust": "any user + an entity within the stated bound, with missed mentions",
    "user": "any user",
    "user_unbounded": "any user, any number of sentences",
    "user_entity_median": "user + entity, median contributions",
    "user_entity_p95": "user + entity, p95 contributions",
    "user_entity_max": "user + entity, max. contributions",
    "user_entity_robust_median": "user + entity, median contributions, robust",
    "user_entity_robust_p95": "user + entity, p95 contributions, robust",
    "user_entity_robust_max": "user + entity, max. contributions, robust",
}
"""The unit of privacy of the metric ``epsilon_<unit>``, in words."""

_OF_USERS = ("epsilon_user", "epsilon_user_unbounded")

AT_PUBLIC_BOUNDS = ("any", "any_robust", "stated", "stated_robust", "user")
"""The units whose ε may be published with a model: no percentile of the corpus is in them."""

QUANTILES = {"median": "median", "p95": "95th pctl", "max": "maximum"}
"""The percentiles of contribution in the names of the metrics, in words."""

HIDES = {
    "counts": (
        "ε hides what the protected user wrote, what was said with the protected entity, that these sentences exist, "
        "and who mentions whom."
    ),
    "graph": "ε hides what the protected user wrote and what was said with the protected entity.",
    "nothing": (
        "ε hides what the protected user wrote, what was said with the protected entity, and whether they exist."
    ),
}
HIDES_OF_A_USER = {
    "counts": "ε hides what the protected user wrote, that these sentences exist, and whom they mention.",
    "graph": "ε hides what the protected user wrote.",
    "nothing": "ε hides what the protected user wrote, and whether it exists.",
}
OF_NO_ENTITY = "No entity is protected: what several users say of one is not hidden."
TAKES_AS_KNOWN = {
    "counts": "It takes as known how many sentences each user has, and how many mention each entity.",
    "graph": "It takes as known the mention graph: that these sentences exist, whose they are and whom they mention.",
    "nothing": "It takes nothing as known but N.",
}
ENTITIES = {
    "any": "Any entity: each one that {tagger} finds, and each sentence in which it finds none.",
    "stated": "An entity within the stated bound: one that {tagger} finds, or a sentence in which it finds none.",
    "percentile": "No bound covers any entity: ε is of one that {tagger} finds, within a percentile of its corpus.",
}
"""Which entities an ε is about, by the kind of bound that it rests on."""

DETECTED = "Mentions that it misses are outside the bound; privacy.missed_mentions states a number of them."
MISSED = "Mentions that it misses, up to {missed} of an entity, as stated, count in the ε of missed mentions alone."

SEQUENCE_OF_MODELS = "The guarantee covers the sequence of models, against an adversary who observes all of them."
PUBLIC_INPUTS = (
    "The guarantee assumes public inputs: vocabulary, tokenizer, {weights}N and all rates must not be "
    "derived from the private sentences."
)
"""``weights`` names the initial ones where they must be public, too: not those of earlier private runs."""

CLASSES_ARE_PUBLIC = "The classes, their names and their number are public inputs, too."
"""What a reader of a classifier's ε has to know besides."""

_OUTSIDE = (
    "Not covered by ε: training loss, realised cohort sizes, clipped fractions and norms, entity lists, "
    "what the bounds kept, percentiles of contribution and ε at them, held-out metrics, and a decision to stop by "
    "hand. They are for the owner of this corpus.",
    "Robust: also if the tagger missed the entity, at true contributions within the percentile.",
)
_OF_APPS = (
    "The guarantee covers the models of all rounds, against an adversary who observes all of them.",
    "Not covered by ε: realised cohort sizes, clipped fractions and norms, what the app measured on private data, and "
    "a decision to stop by hand.",
    "The guarantee assumes that {weights}N and all rates are not derived from private data, that every node "
    "runs the clipping mod, and that nobody who sees the models sees which users took part in a round.",
)
"""What a reader of the ε of a run of any Flower app has to know (fl_sim.flower); ``weights`` as above."""

_APP_USERS = "one user: all of the user's data"
"""Whom a run of any Flower app protects."""

_STOPPED = {
    "rounds": "finished",
    "epsilon_budget": "stopped: one more round would exceed the ε budget",
    INTERRUPTED: "interrupted; it can be resumed",
    DIVERGED: "diverged: the model is no longer finite, and is of no use",
}
_LIMITS = {
    "entity_bound": "sentences with an entity",
    "entity_users": "users with an entity",
    "user_sentences": "sentences of a user",
}
_MEASURED_AT_AN_END = ("perplexity_per_word", "bits_per_byte", "initial_bits_per_byte", "accuracy", "initial_accuracy")
_OF_ITS_ROUNDS = ("stopped", "rounds", "attacker", "held_out", "failed_nodes", "measured", *_MEASURED_AT_AN_END)


@dataclass(frozen=True, slots=True)
class Headline:
    """The ε that leads; every ε is None unless ``state`` is ``proven``.

    Attributes:
        state: one of :data:`PROVEN`, :data:`NO_GUARANTEE`, :data:`UNTRUSTED` and :data:`NO_ROUND`.
        unit, unit_words: the protected unit that leads, a key of :data:`UNITS`, and in words.
        epsilon_missed: the same with mentions missed by the tagger, as stated.
        epsilon_user: of any user alone.
        delta: at which every ε is stated.
        known: what ε takes as known: ``counts``, ``graph`` or ``nothing``; None if it is not recorded.
    """

    state: str
    unit: str
    unit_words: str
    epsilon: float | None
    epsilon_missed: float | None
    epsilon_user: float | None
    delta: float | None
    known: str | None


@dataclass(frozen=True, slots=True)
class ContributionFigures:
    """ε of a user with an entity at one percentile of the corpus.

    Attributes:
        bound: what an entity contributes there; None if it is not recorded.
        share: of the corpus's entities within the bound.
    """

    words: str
    bound: ContributionBound | None
    epsilon: float | None
    robust: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Why no ε can be trusted (None if it can), and what a reader should know of a ledger in order."""

    problem: str | None
    notes: list[str]


@dataclass(frozen=True, slots=True)
class UtilityFigures:
    """The model's figures on held-out text, at the start and at the end, beside those of a reference.

    Attributes:
        measured_round: the round after which ``final`` was measured.
    """

    metric: str
    initial: float | None
    final: float | None
    measured_round: int | None
    reference: float | None
    reference_words: str
    reference_bits_per_byte: float | None
    perplexity_per_word: float | None
    bits_per_byte: float | None
    initial_bits_per_byte: float | None
    accuracy: float | None
    initial_accuracy: float | None

    @property
    def kind(self) -> Utility:
        """Return the task's metric: its words and its form."""
        return next(utility for utility in UTILITIES.values() if utility.column == self.metric)

    def ends_in_words(self) -> str | None:
        """Return the figure at the start and at the end; None if one of them is not recorded."""
        if self.initial is None or self.final is None:
            return None
        return f"{self.metric} {self.kind.show(self.initial)} → {self.kind.show(self.final)}"


LEFT_OUT = (
    "No ε covers the other text that the initial model was trained on; its owner states that it shares no user and no "
    "entity with this corpus."
)


OF_A_SWEEP = "One of the runs of a sweep: its ε covers no choice among them, that of all in the sweep's table does."
CHOSEN = "Settings chosen on this corpus: not covered by ε."


class MechanismSettings(BaseModel):
    """The settings of a run's mechanism, its population N and its seed; None where they are not recorded."""

    model_config = ConfigDict(frozen=True)

    seed: int | None
    population: int | float | None
    q_u: int | float | None
    q_e: int | float | None
    q_s: int | float | None
    clip_norm: int | float | None
    user_cap: int | float | None
    noise_multiplier: int | float | None
    options: Any
    adaptive: Any


class RunFacts(BaseModel):
    """Everything that is said of a run; a value that the run did not record is None.

    Attributes:
        run: the name of its folder.
        state: running, finished, interrupted (also by a kill), diverged, not started or not finished.
        app: the kind of a run of any Flower app; None for a run on a corpus.
        strategy: its name; "unknown" if the folder does not record it.
        protects: whom the mechanism protects; None if it cannot be loaded here.
        guarantee: whether some ε is proven and finite.
        delta: δ at which every ε is stated.
        epsilon: the last round's ε by the names of the metrics; empty if the ledger does not support them.
        epsilon_as_published: the claim of the paper of the published algorithm, and no guarantee.
        bounds: the public bounds of the guarantee, as the releases state them.
        reach, reach_coverage: contributions at percentiles of the corpus, and the shares of entities within them.
        origin: where the settings come from, in words.
        rounds_done, rounds: the last round, and the number planned.
        settings: of the mechanism, by name.
        mechanism_settings: the same as the mechanism describes itself; None if it cannot be loaded here.
        utility: held-out figures.
        not_covered: what ε rests on and what it leaves out.
        composed: the number of earlier private trainings of the initial model, which ε includes.
        left_out: whether the initial model was trained on other text, which no ε includes.
        find_twin: looks for the noiseless twin (:attr:`without_privacy`).
        by_round: columns of the metrics; those of ε only if it is proven, and with :attr:`epsilon` at the end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    state: str
    app: str | None
    strategy: str
    protects: str | None
    guarantee: bool
    delta: float | None
    epsilon: dict[str, float]
    epsilon_as_published: float | None
    bounds: Guarantee | None
    kept: Kept | None
    most_mentions: int | None
    public_entities: int | None
    mentions_of_public_names: float | None
    settings_from_corpus: bool | None
    attacker: Attacker | None
    user_sentences: float | None
    reach: dict[str, ContributionBound] | None
    reach_coverage: dict[str, float] | None
    stopped: str | None
    corpus: CorpusSize | None
    gradients: Gradients | None
    held_out: HeldOutFigures | None
    failed_nodes: dict[str, int] | None
    measured: dict[str, list[float]] | None
    ledger: LedgerState
    origin: str | None
    rounds_done: int | None
    rounds: int | None
    settings: MechanismSettings
    task: str
    utility: UtilityFigures
    not_covered: list[str]
    warnings: list[str]
    mechanism_settings: tuple[str, ...] | None = Field(exclude=True)
    composed: int = Field(exclude=True)
    left_out: bool = Field(exclude=True)
    find_twin: Callable[[], WithoutPrivacy | None] = Field(exclude=True, repr=False)
    by_round: dict[str, list[Any]] = Field(exclude=True, repr=False)

    def record(self) -> dict[str, object]:
        """Return the facts as JSON values (``fl-sim report --json``)."""
        twin = self.without_privacy and asdict(self.without_privacy)
        derived = {"seconds": self.seconds, "without_privacy": twin, "headline": asdict(self.headline)}
        return {**self.model_dump(), **derived}

    @cached_property  # it looks into every folder beside the run, so only where somebody asks
    def without_privacy(self) -> WithoutPrivacy | None:
        """The held-out figures of the noiseless twin; None if there is none beside the run."""
        return None if self.app else self.find_twin()

    @property
    def headline(self) -> Headline:
        """Return the ε that leads: of any user with any entity, of the stated bound, or of any user of an app."""
        unit = "user" if self.app else "stated" if "epsilon_stated" in self.epsilon else "any"
        shown = self.epsilon if self.guarantee else {}
        return Headline(
            state=self._state,
            unit=unit,
            unit_words=UNITS[unit] + self.apart(unit),
            epsilon=shown.get(f"epsilon_{unit}"),
            epsilon_missed=shown.get(f"epsilon_{unit}_robust"),
            epsilon_user=shown.get("epsilon_user"),
            delta=self.delta,
            known=self.bounds.known if self.bounds else None,
        )

    def apart(self, unit: str) -> str:
        """Return what the words of a unit leave open: that each run has to keep its bound, and public names."""
        every = " in each of its runs" if self.composed and unit not in ("any", "user", "user_unbounded") else ""
        listed = unit in ("any", "stated") and self.bounds is not None and self.bounds.public_names
        return every + (", public names apart" if listed else "")

    @property
    def _state(self) -> str:
        if self.guarantee:
            return PROVEN
        if self.epsilon:
            return NO_GUARANTEE
        return UNTRUSTED if self.ledger.problem else NO_ROUND

    @property
    def seconds(self) -> float | None:
        """Return the seconds that the recorded rounds took, their measurements included; None if none are recorded."""
        recorded = [value for value in self.by_round.get("seconds", ()) if isinstance(value, Real)]
        taken = [float(value) for value in recorded if math.isfinite(value)]
        return math.fsum(taken) if taken else None

    @property
    def problem(self) -> str | None:
        """Return why no ε of the run can be trusted; None if its ledger supports what it recorded."""
        return self.ledger.problem if not self.epsilon else None

    @property
    def at_public_bounds(self) -> dict[str, float]:
        """Return the proven, finite ε that may be published with the model, by unit; empty without a guarantee."""
        values = {unit: self.epsilon.get(f"epsilon_{unit}", math.inf) for unit in AT_PUBLIC_BOUNDS}
        return {unit: value for unit, value in values.items() if self.guarantee and math.isfinite(value)}

    def contributions(self) -> Iterator[ContributionFigures]:
        """Yield ε at percentiles of contribution; nothing of a corpus in which no entity is mentioned.

        After earlier runs it is of an entity within the percentile in each of them: this corpus has no share of those.
        """
        for name, words in QUANTILES.items():
            bound = (self.reach or {}).get(name)
            if self.app or (bound and bound.users == 0):
                continue
            plain, robust = (self.epsilon.get(f"epsilon_user_entity{kind}_{name}") for kind in ("", "_robust"))
            share = (self.reach_coverage or {}).get(name)
            if self.composed:
                words, share = f"{words} in each run, here", None
            yield ContributionFigures(words, bound, plain, robust, share)

    def app_figure(self) -> tuple[str, list[float]] | None:
        """Return the first figure that a Flower app measured: its name, and its values at the start and at the end."""
        return next(((name, ends) for name, ends in (self.measured or {}).items() if ends), None)

    def ended(self) -> str:
        """Return how far the run came: "6 of 6 rounds, finished"."""
        done, planned = format_number(self.rounds_done), format_number(self.rounds)
        said = None if self.state == RUNNING else self.stopped  # an interrupted run that goes on keeps its result
        return f"{done} of {planned} rounds, {self.state if said is None else _STOPPED.get(said, said)}"

    def settings_in_words(self) -> list[str]:
        """Return the settings of the mechanism, N and the seed."""
        words = self.mechanism_settings
        if words is None:
            recorded = {name: getattr(self.settings, name) for name in NUMBERS}
            words = tuple(f"{name} {format_number(value)}" for name, value in recorded.items() if value is not None)
        return [*words, f"N {format_number(self.settings.population)}", f"seed {self.settings.seed}"]

    def bounds_in_words(self) -> str | None:
        """Return the public bounds of the guarantee; None if they are not recorded."""
        if self.bounds is None:
            return None
        limits = {words: getattr(self.bounds, name) for name, words in _LIMITS.items()}
        said = [f"≤ {format_number(limit)} {words}" for words, limit in limits.items() if limit]
        if not said:
            return "No bound on entities or users is set."
        ways = {"nothing": "stated, not enforced", "counts": "enforced as sums of weights", "graph": "enforced"}
        how = ways[self.bounds.known]
        return f"Bounds, {how}: {', '.join(said)}."

    @property
    def unsought(self) -> str | None:
        """Return the kinds of personal data that nobody looked for, in words; None if there is none, or no record."""
        kinds = self.corpus.not_looked_for if self.corpus else None
        return f"Nobody looked for: {', '.join(kinds)}" if kinds else None

    @property
    def of_entities(self) -> bool:
        """Return whether some ε is of an entity and finite, if only at a percentile of the corpus."""
        return any(math.isfinite(value) for name, value in self.epsilon.items() if name not in _OF_USERS)

    def in_short(self) -> list[str]:
        """Return what ε hides, what it takes as known, and which entities it is about, in two sentences."""
        if self.bounds is None:
            return []
        hides, taken, of_whom = self.basis(self.of_entities)
        hidden = f"{hides.removesuffix('.')}; {taken[0].lower()}{taken[1:]}"
        if not self.of_entities:
            return [hidden, of_whom]
        missed = self.bounds.missed_mentions
        found = f"Entities are those that {self._tagger} found"
        if missed is not None:
            found += f", in “ε missed” with up to {missed} mentions missed of each"
        unsought = f"; {self.unsought[0].lower()}{self.unsought[1:]}" if self.unsought else ""
        return [hidden, f"{found}{unsought}."]

    def basis(self, of_entities: bool) -> list[str]:
        """Return whom the ε of a run with recorded bounds protects against what, one sentence each."""
        if self.bounds is None:
            return []
        known, missed = self.bounds.known, self.bounds.missed_mentions
        if not of_entities:
            return [HIDES_OF_A_USER[known], TAKES_AS_KNOWN[known], OF_NO_ENTITY]
        finite = (kind for kind in ("any", "stated") if math.isfinite(self.epsilon.get(f"epsilon_{kind}", math.inf)))
        kind, of_missed = next(finite, "percentile"), DETECTED if missed is None else MISSED.format(missed=missed)
        whom = ENTITIES[kind].format(tagger=self._tagger)
        return [HIDES[known], TAKES_AS_KNOWN[known], whom if kind == "percentile" else f"{whom} {of_missed}"]

    @property
    def _tagger(self) -> str:
        """Return who found the entities: of a name that the tagger of one run never marks no limit holds."""
        return "the tagger of each of its runs" if self.composed else "the tagger"


def has_guarantee(mechanism: Mechanism | None, row: Mapping[str, float]) -> bool:
    """Return whether a run guarantees anything after the round of ``row``.

    Args:
        mechanism: of the run; None if it is not known.
        row: metrics of the round; some ε must be finite, and a paper's claim is none.
    """
    epsilon = [value for name, value in row.items() if name.startswith("epsilon_") and name != AS_PUBLISHED]
    guarantees_nothing = mechanism is not None and mechanism.event() is None
    return not guarantees_nothing and any(math.isfinite(value) for value in epsilon)


def read_facts(run: RunFolder) -> RunFacts:
    """Return the facts of a run, finished or not.

    Raises:
        ResultsError: the metrics, the result or the bounds of the run are corrupt.
    """
    result = _result_of(run)
    metrics, ledger = run.metrics(), check_ledger(run)
    last = {str(name): value for name, value in metrics.iloc[-1].items()} if len(metrics) else {}
    mechanism, utility = _mechanism_of(run), utility_of(run)
    app, classifies = run.config.get("app"), utility.column == "error"
    bounds = None if app else _bounds(run, ledger.ledger)
    begun: Mapping[str, Any] = result or run.config  # of a run at work, or killed: what ε does not hold for
    initial = begun.get("initial_model") or {}
    composed = initial.get("composed")
    # A run that lost rounds in a crash and could not repeat them released more than its metrics have rows.
    spent = {name: value for name, value in result.items() if value is not None} if run.finished else {}
    names = (name for name in last if name.startswith("epsilon_") and name != AS_PUBLISHED)
    epsilon = {name: max(last[name], spent.get(name, last[name])) for name in names}
    recorded = {name: result.get(name) for name in RunFacts.model_fields}
    recorded |= {name: begun.get(name) for name in ("public_entities", "mentions_of_public_names")}
    if ledger.problem and has_guarantee(mechanism, epsilon):
        epsilon, recorded["attacker"] = {}, None
    guarantee = has_guarantee(mechanism, epsilon)
    hidden = [] if guarantee else [name for name in metrics if str(name).startswith("epsilon_")]
    by_round = {str(name): list(column) for name, column in metrics.drop(columns=hidden).items()}
    by_round |= {name: [*by_round[name][:-1], epsilon[name]] for name in epsilon.keys() & by_round.keys()}
    facts = {
        **recorded,
        "run": run.path.name,
        "state": state_of(run),
        "app": app,
        "strategy": strategy_of(run),
        "protects": _APP_USERS if app else mechanism and mechanism.protects,
        "guarantee": guarantee,
        "delta": run.setting("delta"),
        "epsilon": epsilon,
        "epsilon_as_published": last.get(AS_PUBLISHED),
        "bounds": bounds,
        "ledger": LedgerState(ledger.problem, list(ledger.notes)),
        "origin": _origin(run),
        "rounds_done": run.last_round,
        "rounds": begun.get("plan", {}).get("rounds") or run.setting("rounds"),
        "settings": {name: run.setting(name) for name in MechanismSettings.model_fields},
        "task": "classification" if classifies else "next-word",
        "utility": _utility(run, utility, result),
        "find_twin": partial(find_without_privacy, run),
        "not_covered": [text.format(weights="" if composed else "the initial model, ") for text in _OF_APPS],
        "settings_from_corpus": run.setting("settings_from_corpus"),
        "warnings": begun.get("warnings", []),
        "mechanism_settings": None if mechanism is None else tuple(mechanism.describe().settings),
        "composed": len(composed) if isinstance(composed, list) else 0,
        "left_out": bool(initial.get("left_out") or initial.get("disjoint")),
        "by_round": by_round,
    }
    read = parsed(RunFacts, facts, run.result_file if result else run.config_file)
    chosen = OF_A_SWEEP if guarantee and run.of_a_sweep else None
    noticed = filter(None, [chosen, rejected_in_words(read.failed_nodes), run.truncated_tail, ledger.problem])
    read = read.model_copy(update={"warnings": [*read.warnings, *noticed, *ledger.notes]})
    if app:
        return read
    assumed = PUBLIC_INPUTS.format(weights="" if composed else "initial weights, ")
    about_classes = [CLASSES_ARE_PUBLIC] if classifies else []
    notes = [*read.basis(read.of_entities), SEQUENCE_OF_MODELS, *_OUTSIDE, assumed, *about_classes]
    return read.model_copy(update={"not_covered": notes})


def state_of(run: RunFolder) -> str:
    """Return whether a run is running, has ended and how, or was never begun.

    A run that was killed has neither a result nor a process that holds its folder: it is interrupted.
    """
    held = False if run.closing else is_held(run.path)  # before the result, which a run writes last
    if run.finished:
        return DIVERGED if run.diverged else FINISHED
    if held is None:
        return NOT_FINISHED
    if held:
        return RUNNING
    return NOT_STARTED if run.last_round is None and run.result is None else INTERRUPTED


def strategy_of(run: RunFolder) -> str:
    """Return the name of the run's strategy; "unknown" if the folder does not record it."""
    return str(run.setting("strategy") or "unknown")


def _result_of(run: RunFolder) -> Mapping[str, Any]:
    """Return the result of a run, without what it says of its rounds if the run was interrupted then and went on."""
    result, done = run.result or {}, run.last_round or 0
    went_on = not run.finished and result.get("rounds", done) < done
    return {name: value for name, value in result.items() if not (went_on and name in _OF_ITS_ROUNDS)}


def _mechanism_of(run: RunFolder) -> Mechanism | None:
    """Return the mechanism that the run recorded; None if it recorded none, or its strategy cannot be loaded here."""
    for tree in (run.result or {}, run.config):
        plan = tree.get("plan")
        if isinstance(plan, dict):
            try:
                return plan_from_record(plan).mechanism
            except (PluginError, PrivacyError, TypeError, KeyError, ValueError):
                continue
    return None


def _bounds(run: RunFolder, ledger: Ledger | None) -> Guarantee | None:
    """Return the public bounds of a run, ended or not, as its releases state them; None if it did not record them.

    Raises:
        ResultsError: nothing is released, and the run's configuration states bounds that no release may have.
    """
    recorded = run.setting("guarantee")
    if not recorded:
        return None
    if ledger is not None and ledger.entries:
        return ledger.entries[-1].terms.guarantee
    try:
        return Guarantee.from_record(recorded)
    except (PrivacyError, TypeError) as error:
        raise ResultsError(f"{run.config_file}: {error}") from error


def _utility(run: RunFolder, utility: Utility, result: Mapping[str, Any]) -> dict[str, object]:
    by_round = run.measured_by_round(utility.column)
    measured = list(by_round.values())
    return {
        "metric": utility.column,
        "initial": measured[0] if measured else None,
        "final": measured[-1] if measured else None,
        "measured_round": max(by_round, default=None),
        "reference": result.get(utility.reference),
        "reference_words": utility.reference_words,
        "reference_bits_per_byte": result.get("unigram_bits_per_byte"),
        **{name: result.get(name) for name in _MEASURED_AT_AN_END},
    }


def _origin(run: RunFolder) -> str | None:
    """Return where the settings of a run come from, in words; None if its configuration does not say."""
    configured, recorded = run.section("run"), run.section("run", "origin")
    if not recorded:
        return None
    try:
        return Origin.model_validate(recorded).in_words(configured)
    except ValidationError:  # of another version
        return f"tuned on public text, {recorded.get('corpus')}"


def pooled(texts_of: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return every text once, with the keys that have it.

    >>> pooled({"A": ["loud", "slow"], "B": ["slow"]})
    {'loud': ['A'], 'slow': ['A', 'B']}
    """
    found: dict[str, list[str]] = {}
    for key, texts in texts_of.items():
        for text in texts:
            found.setdefault(printable(text), []).append(key)
    return found
