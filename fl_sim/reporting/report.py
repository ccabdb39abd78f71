"""The report of a run: its guarantee, its utility, and what the guarantee leaves out; as text or as JSON.

Every ε is rounded up when it is printed as text, so that the guarantee is never overstated.

First what a run records of its held-out users, in words: intervals, deciles, users by size, mentions, personal models.

>>> interval({"value": 2.3926, "low": 2.3645, "high": 2.4265}, "bits_per_byte")
'2.39 (2.36 to 2.43)'
>>> interval({"value": 0.125, "low": float("nan"), "high": float("nan")}, "error")
'12.5%'
>>> size_words({"lowest": 4, "highest": 7}), size_words({"lowest": 64, "highest": None})
('4–7', '64 or more')

>>> format_contribution_bound({"users": 3, "sentences_per_user": 2, "sentences": 5})
'an entity in ≤ 3 users, ≤ 2 sentences each, ≤ 5 in all'
>>> has_guarantee(None, {"epsilon_user": 2.5}), has_guarantee(None, {"epsilon_user": float("inf")})
(True, False)
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fl_sim.formats import (
    format_at_risk,
    format_delta,
    format_epsilon,
    format_number,
    nonzero,
    percent_down,
    percent_up,
    printable,
    printable_lines,
)
from fl_sim.plugins import PluginError
from fl_sim.settings_origin import Origin
from fl_sim.storage.ledger_check import check_ledger
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, ResultsError, RunFolder, Utility, utility_of
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.messages import REJECTIONS
from fl_sim.strategies.primitives.limits import PrivacyError
from fl_sim.strategies.registry import plan_from_record

_NAMES = {
    "bits_per_byte": ("bits per byte", ",.2f"),
    "perplexity_per_word": ("perplexity per word", ",.1f"),
    "perplexity_per_token": ("perplexity per token", ",.1f"),
    "accuracy": ("tokens guessed right", ".1%"),
    "error": ("error", ".1%"),
}
"""The names of figures in texts, and their form."""

PARTS = {
    "entity_tokens": "entity tokens",
    "other_tokens": "other tokens",
    "with_mention": "sentences with an entity",
    "without_mention": "sentences without",
}
"""The names of the parts of the held-out text."""

PER_TOKEN = "explained by the tokenizer: compare runs of one tokenizer alone"


def held_out_lines(held_out: Mapping[str, Any] | None) -> list[str]:
    """Return what a run's result says by user, one line per subject; none for a run without it."""
    if not held_out:
        return []
    metric = held_out["deciles"]["metric"]
    name = _NAMES[metric][0]
    lines = [
        f"{held_out['sentences']:,} held-out sentences of {held_out['users']:,} users; in brackets 95 % intervals "
        "(percentile bootstrap over users)",
        "; ".join(_figure_words(held_out["figures"])),
    ]
    if held_out["deciles"]["values"]:
        deciles = " ".join(_shown(value, metric) for value in held_out["deciles"]["values"])
        lines.append(f"deciles over users, {name}: {deciles}")
    sizes = [f"{size_words(row)}: {interval(row[metric], metric)}" for row in held_out["by_sentences"]]
    lines.append(f"users by their number of sentences, {name}: {', '.join(sizes)}")
    parts = [
        f"{PARTS[part]} {interval(figures[metric], metric)} ({nonzero(100 * figures['share'], '.0f')} % of all)"
        for part, figures in held_out["by_mention"].items()
    ]
    return [*lines, *([f"{name}: {', '.join(parts)}"] if parts else [])]


def personal_lines(personal: Mapping[str, Any] | None) -> list[str]:
    """Return what a comparison with personal models says, one line per subject; none without one."""
    if not personal:
        return []
    metric, figures, trained = personal["metric"], personal["figures"], personal["trained"]
    words = {
        "start": "the start",
        "run": "this run",
        "alone": f"the start trained on the user alone ({trained['alone']})",
        "continued": f"this run trained on the user ({trained['continued']})",
        "personal": f"this run trained on the user ({trained.get('personal')})",
    }
    shown = ", ".join(f"{words[name]} {interval(figure, metric)}" for name, figure in figures.items())
    lines = [
        f"on the second half of the sentences of {personal['users']:,} held-out users, {metric_words(metric)}: {shown}",
    ]
    for name, difference in personal["differences"].items():
        if name in personal["better"]:
            better = f"better than this run for {nonzero(100 * personal['better'][name], '.0f')} % of these users"
            lines.append(f"{words[name]}: {interval(difference, metric)} from this run; {better}")
    rates = " and ".join(f"{rate:g}" for rate in dict.fromkeys(personal["learning_rate"].values()))
    steps = f"{personal['steps']:,} steps of Adam at {rates} on the first half"
    return [*lines, f"personal models: {steps}, without noise; no ε covers them"]


def interval(figure: Mapping[str, float], name: str) -> str:
    """Return a figure with its interval: "2.39 (2.36 to 2.43)"; without the interval if it is undefined."""
    value = _shown(figure["value"], name)
    if math.isnan(figure["low"]):
        return value
    return f"{value} ({_shown(figure['low'], name)} to {_shown(figure['high'], name)})"


def size_words(row: Mapping[str, Any]) -> str:
    """Return the numbers of sentences of a class of users: "1", "4–7", "64 or more"."""
    lowest, highest = row["lowest"], row["highest"]
    if highest is None:
        return f"{lowest} or more"
    return str(lowest) if lowest == highest else f"{lowest}–{highest}"


def metric_words(name: str) -> str:
    """Return the name of a figure in words."""
    return _NAMES[name][0]


def _figure_words(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    notes = {"perplexity_per_token": f", {PER_TOKEN}"}
    return [f"{_NAMES[name][0]} {interval(figure, name)}{notes.get(name, '')}" for name, figure in figures.items()]


def _shown(value: float, name: str) -> str:
    return nonzero(value, _NAMES[name][1]) if math.isfinite(value) else "not finite"


CONTRIBUTION_QUANTILES = {"median": "median", "p95": "95th pctl", "max": "maximum"}
"""The contribution bounds in the names of the metrics, in words."""

NO_GUARANTEE = "no guarantee (ε = ∞)"

SETTINGS_FROM_CORPUS = "settings chosen on this corpus: not covered"

GRAPH_IS_PUBLIC = (
    "Mention graph public: ε hides what the protected user wrote and what was said with the protected entity, not "
    "that these sentences exist, whose they are and which entities they mention."
)
GRAPH_IS_PRIVATE = (
    "Mention graph private: ε also hides whether the protected user and the sentences with the protected entity exist."
)
GRAPH_IN_WORDS = {"public": GRAPH_IS_PUBLIC, "private": GRAPH_IS_PRIVATE}
DETECTED = (
    "Any entity: each one that the tagger finds, and each sentence in which it finds none. Mentions that it misses are "
    "outside the bound; privacy.missed_mentions states a number of them."
)
MISSED = "Any entity, with up to {missed} of its mentions missed by the tagger, as stated."

NOT_COVERED = (
    "The guarantee covers the sequence of models, against an adversary who observes all of them.",
    "Not covered by ε: training loss, realised cohort sizes, clipped fractions and norms, entity lists, "
    "what the bounds kept, percentiles of contribution and ε at them, held-out metrics, and a decision to stop by "
    "hand. They are for the owner of this corpus.",
    "Robust: also if the tagger missed the entity, at true contributions within the percentile.",
    "The guarantee assumes public inputs: vocabulary, tokenizer, {weights}N and all rates must not be "
    "derived from the private sentences.",
)
"""What a reader of an ε has to know about it; ``weights`` names the initial ones where they must be public, too."""

NOT_COVERED_OF_APPS = (
    "The guarantee covers the models of all rounds, against an adversary who observes all of them.",
    "Not covered by ε: realised cohort sizes, clipped fractions and norms, what the app measured on private data, and "
    "a decision to stop by hand.",
    "The guarantee assumes that the initial model, N and all rates are not derived from private data, that every node "
    "runs the clipping mod, and that nobody who sees the models sees which users took part in a round.",
)
"""The same for a run of any Flower app (fl_sim.flower)."""

APP_USERS = "one user: all of the user's data"
"""Whom a run of any Flower app protects."""

CLASSES_ARE_PUBLIC = "The classes, their names and their number are public inputs, too."
"""What a reader of a classifier's ε has to know besides."""

_STOPPED = {
    "rounds": "finished",
    "epsilon_budget": "stopped: one more round would exceed the ε budget",
    INTERRUPTED: "interrupted; it can be resumed",
    DIVERGED: "diverged: the model is no longer finite, and is of no use",
    None: "not finished",
}
_SETTINGS = (
    *("seed", "population", "q_u", "q_e", "q_s", "clip_norm", "user_cap", "noise_multiplier"),
    *("options", "adaptive", "published"),
)
_NUMBERS = ("q_u", "q_e", "q_s", "clip_norm", "user_cap", "noise_multiplier")
_WIDTH = 80
_LABEL = 12


_AS_RECORDED = (
    "kept", "most_mentions", "public_entities", "mentions_of_public_names", "settings_from_corpus", "forecast",
    "attacker", "user_sentences", "reach", "reach_coverage", "stopped", "corpus", "gradients", "held_out",
    "failed_nodes", "measured",
)  # fmt: skip
"""What a report shows as the run recorded it."""


def report(run: RunFolder) -> dict[str, Any]:
    """Return the facts behind :func:`summary`, JSON-ready (``fl-sim report --json``).

    ``epsilon`` has the last round's ε under the names of the metrics, each an upper bound at ``delta``. A value that
    the run did not record is None.

    ``ledger`` has the ``problem`` of a run whose ledger does not support its ε, which is left out then, and ``notes``.

    Raises:
        ResultsError: the metrics are corrupt.
    """
    result = run.result or {}
    metrics, ledger = run.metrics(), check_ledger(run)
    last = {str(name): value for name, value in metrics.iloc[-1].items()} if len(metrics) else {}
    utility = _utility_facts(run)
    classifies, app = utility["metric"] == "error", run.config.get("app")
    bounds = None if app else _bounds(run, ledger.ledger)
    mechanism = mechanism_of(run)
    # A run that lost rounds in a crash and could not repeat them released more than its metrics have rows.
    spent = result if run.finished else {}
    names = (name for name in last if name.startswith("epsilon_") and name != AS_PUBLISHED)
    epsilon = {name: max(last[name], spent.get(name, last[name])) for name in names}
    recorded = {name: result.get(name) for name in _AS_RECORDED}
    if ledger.problem and has_guarantee(mechanism, epsilon):
        epsilon, recorded["attacker"] = {}, None
    return {
        "run": run.path.name,
        "app": app,
        "strategy": strategy_of(run),
        "protects": APP_USERS if app else mechanism and mechanism.protects,
        "guarantee": has_guarantee(mechanism, epsilon),
        "delta": run.setting("delta"),
        "epsilon": epsilon,
        "epsilon_as_published": last.get(AS_PUBLISHED),
        "epsilon_any": epsilon.get("epsilon_any"),
        "bounds": bounds,
        **recorded,
        "ledger": {"problem": ledger.problem, "notes": list(ledger.notes)},
        "origin": _origin(run),
        "rounds_done": run.last_round,
        "rounds": result.get("plan", {}).get("rounds") or run.setting("rounds"),
        "settings": {name: run.setting(name) for name in _SETTINGS},
        "coverage": (result.get("corpus") or {}).get("coverage"),
        "not_looked_for": (result.get("corpus") or {}).get("not_looked_for"),
        "task": "classification" if classifies else "next-word",
        "utility": utility,
        "personal": run.personal,
        "perplexity": None if classifies else _perplexity(utility),
        "not_covered": list(NOT_COVERED_OF_APPS) if app else _not_covered_of_text(run, bounds, classifies=classifies),
        "warnings": [
            *result.get("warnings", []),
            *filter(None, [_rejected(result), run.truncated_tail, ledger.problem]),
            *ledger.notes,
        ],
    }


def _utility_facts(run: RunFolder) -> dict[str, Any]:
    """Return the model's figures on held-out text, at the start and at the end, beside those of a reference."""
    result, utility = run.result or {}, utility_of(run)
    measured = run.measured(utility.column)
    return {
        "metric": utility.column,
        "initial": measured[0] if measured else None,
        "final": measured[-1] if measured else None,
        "reference": result.get(utility.reference),
        "reference_words": utility.reference_words,
        **{name: result.get(name) for name in ("perplexity_per_word", "bits_per_byte", "accuracy", "initial_accuracy")},
    }


def _perplexity(utility: Mapping[str, Any]) -> dict[str, Any]:
    """Return the perplexities of a next-word model."""
    return {"initial": utility["initial"], "final": utility["final"], "unigram": utility["reference"]}


def _rejected(result: Mapping[str, Any]) -> str | None:
    """Return how many replies of nodes counted as zero, and why; None if none did.

    >>> _rejected({"failed_nodes": {"too_large": 2, "silent": 1}})
    '3 replies of nodes discarded, as zero: 2 for a norm above the bound; 1 for silence'
    """
    rejected = result.get("failed_nodes") or {}
    if not rejected:
        return None
    reasons = "; ".join(f"{count} for {REJECTIONS.get(kind, kind)}" for kind, count in rejected.items())
    replies = sum(rejected.values())
    return f"{format_number(replies)} {'reply' if replies == 1 else 'replies'} of nodes discarded, as zero: {reasons}"


def summary(run: RunFolder) -> str:
    """Return the report as text that fits one screen and ends with a newline."""
    facts = report(run)
    utility = [*_utility(facts, utility_of(run)), *_by_user(facts)]
    blocks = [_head(facts, mechanism_of(run)), _privacy(facts), utility, _warnings(facts)]
    return printable_lines("\n".join("\n".join(block) + "\n" for block in blocks if block))


def strategy_of(run: RunFolder) -> str:
    """Return the name of the run's strategy, "unknown" if the folder does not record it."""
    return str(run.setting("strategy") or "unknown")


def mechanism_of(run: RunFolder) -> Mechanism | None:
    """Return the mechanism that the run recorded; None if it recorded none, or its strategy cannot be loaded here."""
    for tree in (run.result or {}, run.config):
        plan = tree.get("plan")
        if isinstance(plan, dict):
            try:
                return plan_from_record(plan).mechanism
            except (PluginError, PrivacyError, TypeError, KeyError, ValueError):
                continue
    return None


def has_guarantee(mechanism: Mechanism | None, row: Mapping[str, Any]) -> bool:
    """Return whether a run guarantees anything after the round of ``row``.

    Args:
        mechanism: of the run; None if it is not known.
        row: metrics of the round; some ε must be finite.
    """
    epsilon = [value for name, value in row.items() if name.startswith("epsilon_") and name != AS_PUBLISHED]
    guarantees_nothing = mechanism is not None and mechanism.event() is None
    return not guarantees_nothing and any(math.isfinite(value) for value in epsilon)


def format_contribution_bound(entity_bound: Mapping[str, Any] | None) -> str:
    """Return a contribution bound in words: "an entity in ≤ 3 users, ≤ 2 sentences each, ≤ 5 in all"."""
    if not entity_bound:
        return "an entity (its contribution bound is not recorded)"
    users, each, total = (
        entity_bound.get("users"),
        entity_bound.get("sentences_per_user"),
        entity_bound.get("sentences"),
    )
    if users == 1 or each is None:
        sentences = total if total is not None else each
        return f"an entity in ≤ {_count(users, 'user')}, ≤ {_count(sentences, 'sentence')}"
    words = f"an entity in ≤ {_count(users, 'user')}, ≤ {_count(each, 'sentence')} each"
    return words if total is None or total >= users * each else f"{words}, ≤ {total:,} in all"


def _count(number: int | None, noun: str) -> str:
    return f"{format_number(number)} {noun}" + ("" if number == 1 else "s")


def _field(label: str, text: str) -> list[str]:
    """Return lines with ``label`` in the margin and ``text`` wrapped beside it."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
    )


def how_it_ended(stopped: str | None) -> str:
    """Return in words why a run stopped, from ``stopped`` in its result; None is a run without one."""
    return str(_STOPPED.get(stopped, stopped))


def _head(facts: Mapping[str, Any], mechanism: Mechanism | None) -> list[str]:
    done, planned = format_number(facts["rounds_done"]), format_number(facts["rounds"])
    ended = how_it_ended(facts["stopped"])
    return [
        *_field("Run", f"{printable(facts['run'])}: {done} of {planned} rounds, {ended}"),
        *_field("Protects", facts["protects"] or "unknown"),
        *_field("Strategy", f"{facts['strategy']}: {_settings(facts, mechanism)}"),
        *(_field("Settings", printable(facts["origin"])) if facts["origin"] else []),
        *([] if facts["app"] else _field("Corpus", _corpus(facts["corpus"]))),
        *_gradients(facts["gradients"]),
    ]


def _corpus(corpus: Mapping[str, Any] | None) -> str:
    if not corpus:
        return "not recorded"
    owners = f"{_count(corpus.get('users'), 'user')}, {_count(corpus.get('sentences'), 'sentence')}"
    return f"{printable(corpus.get('name', 'unnamed'))}: {owners}"


def _gradients(gradients: Mapping[str, Any] | None) -> list[str]:
    """Return the line on how gradients of single sentences were computed; none if none were, or it is not recorded."""
    if not gradients:
        return []
    slow = f"slow path, one sentence at a time: {printable(gradients.get('reason', 'unknown'))}"
    return _field("Gradients", "fast path, many sentences in one pass" if gradients["path"] == "fast" else slow)


def _origin(run: RunFolder) -> str | None:
    """Return where the settings of a run come from, in words; None if its configuration does not say."""
    configured = run.config.get("run") or {}
    recorded = configured.get("origin")
    if not recorded:
        return None
    try:
        return Origin.model_validate(recorded).in_words(configured)
    except ValidationError:  # of another version
        return f"tuned on public text, {recorded.get('corpus')}"


def _settings(facts: Mapping[str, Any], mechanism: Mechanism | None) -> str:
    values = facts["settings"]
    if mechanism is None:  # its strategy cannot be loaded here: the settings as recorded
        words = [f"{name} {format_number(values[name])}" for name in _NUMBERS if values[name] is not None]
    else:
        words = list(mechanism.describe().settings)
    return ", ".join([*words, f"N {format_number(values['population'])}, seed {values['seed']}"])


def _privacy(facts: Mapping[str, Any]) -> list[str]:
    epsilon = facts["epsilon"]
    if not epsilon and facts["ledger"]["problem"]:
        return ["Privacy: no ε can be trusted, because the ledger does not support it (see the warning)."]
    if not epsilon:
        return ["Privacy: no round is recorded."]
    if not facts["guarantee"]:
        return [f"Privacy: {NO_GUARANTEE}. Do not release this model, or any of its rounds.", *_claim(facts)]
    rows = _headline(facts)
    rows += _by_contribution(facts)
    rows += _claim(facts)
    extra = [_coverage(facts["coverage"], facts["most_mentions"]), _unsought(facts["not_looked_for"])]
    notes = [*facts["not_covered"], *filter(None, extra)]
    return rows + [line for note in notes for line in _wrap_note(note)]


def _by_contribution(facts: Mapping[str, Any]) -> list[str]:
    """Return ε of a user with an entity at percentiles of the corpus; nothing where no entity is mentioned."""
    rows = []
    for name, words in CONTRIBUTION_QUANTILES.items():
        entity_bound = (facts["reach"] or {}).get(name)
        if entity_bound and entity_bound.get("users") == 0:
            continue
        entity = format_contribution_bound(entity_bound).removeprefix("an entity in ")
        plain, robust = (facts["epsilon"].get(f"epsilon_user_entity{kind}_{name}") for kind in ("", "_robust"))
        rows += _row(f"  {words}{_share(facts, name)}: {entity}", format_epsilon(plain), format_epsilon(robust))
    if facts["app"]:
        return []
    head = _row("  + an entity, by contribution, read off this corpus (covers)", "ε", "ε robust")
    return [*head, *rows] if rows else []


def _bounds(run: RunFolder, ledger: Ledger | None) -> dict[str, Any] | None:
    """Return the public bounds of a run, ended or not, as its releases state them; None if it did not record them.

    Raises:
        ResultsError: nothing is released, and the run's configuration states bounds that no release may have.
    """
    recorded = (run.result or {}).get("guarantee") or run.config.get("guarantee")
    if not recorded:
        return None
    if ledger is not None and ledger.entries:
        return ledger.entries[-1].terms.guarantee.record()
    try:
        return Guarantee.from_record(recorded).record()
    except (PrivacyError, TypeError) as error:
        raise ResultsError(f"{run.config_file}: {error}") from error


def _basis(bounds: Mapping[str, Any] | None) -> list[str]:
    """Return what the headline ε of a run rests on, one sentence each; none for runs without recorded bounds."""
    if not bounds:
        return []
    missed = bounds.get("missed_mentions")
    return [GRAPH_IN_WORDS[bounds["mention_graph"]], DETECTED if missed is None else MISSED.format(missed=missed)]


def _not_covered_of_text(run: RunFolder, bounds: Mapping[str, Any] | None, *, classifies: bool) -> list[str]:
    """Return what ε rests on, what it does not cover, and its assumptions, of a run on a corpus.

    Initial weights of earlier private runs need not be public.
    """
    trained = ((run.result or {}).get("initial_model") or {}).get("composed")
    notes = [note.format(weights="" if trained else "initial weights, ") for note in NOT_COVERED]
    return [*_basis(bounds), *notes, *([CLASSES_ARE_PUBLIC] if classifies else [])]


def _headline(facts: Mapping[str, Any]) -> list[str]:
    """Return the rows of the ε that leads: of any user with any entity, or of the bound that is stated."""
    epsilon, bounds = facts["epsilon"], facts["bounds"] or {}
    if facts["app"]:
        head = _row(f"Privacy at δ = {format_delta(facts['delta'])}", "ε", "")
        return [*head, *_row("  any user", format_epsilon(epsilon.get("epsilon_user")), "")]
    stated = "epsilon_stated" in epsilon
    name = "epsilon_stated" if stated else "epsilon_any"
    figures = format_epsilon(epsilon.get(name)), format_epsilon(epsilon.get(f"{name}_robust"))
    graph = f", mention graph {bounds['mention_graph']}" if bounds else ""
    rows = _row(f"Privacy at δ = {format_delta(facts['delta'])}{graph}", "ε", "ε missed")
    unit = "any user + an entity within the stated bound" if stated else "any user + any entity"
    rows += _row(f"  {unit}", *figures)
    rows += _row(f"  any user{_user_bound(facts)}", format_epsilon(epsilon.get("epsilon_user")), "")
    rows += [line for note in [*bounds_in_words(facts), *attacker_in_words(facts)] for line in _wrap_note(note)]
    return rows


def attacker_in_words(facts: Mapping[str, Any]) -> list[str]:
    """Return what an attacker can reach, and δ·N; nothing for runs that did not record it."""
    attacker = facts["attacker"]
    if not attacker:
        return []
    whom = "a user and an entity" if attacker["unit"] == "any" else "a user"
    rates = attacker["largest_tpr_at_fpr"]
    shares = " and ".join(
        f"{percent_up(rate)} % (at {100 * float(at):g} % false positives)" for at, rate in rates.items()
    )
    at_risk = format_at_risk(facts["delta"], facts["settings"]["population"])
    return [f"A test for {whom} finds at most {shares} of them. δ·N is {at_risk}."]


def bounds_in_words(facts: Mapping[str, Any]) -> list[str]:
    """Return the bounds of a run and what they kept, one sentence each."""
    bounds, kept = facts["bounds"] or {}, facts["kept"] or {}
    words = []
    limits = {
        "entity_bound": "sentences with an entity",
        "entity_users": "users with an entity",
        "user_sentences": "sentences of a user",
    }
    set_bounds = [f"≤ {format_number(bounds[name])} {what}" for name, what in limits.items() if bounds.get(name)]
    if set_bounds:
        how = "stated, not enforced" if bounds["bound_by"] == "stated" else f"enforced ({bounds['bound_by']})"
        words.append(f"Bounds, {how}: {', '.join(set_bounds)}.")
    elif bounds:
        words.append("No bound on entities or users is set.")
    if kept and kept.get("weight", 1.0) < 1:
        kinds = ", ".join(f"{kind} {percent_down(share)} %" for kind, share in kept.get("mentions_by_kind", {}).items())
        words.append(
            f"Kept: {percent_down(kept['sentences'])} % of the sentences (weight {percent_down(kept['weight'])} %), "
            f"{percent_down(kept['mentions'])} % of the mentions{f' ({kinds})' if kinds else ''}."
        )
    if facts["public_entities"]:
        share = percent_up(facts["mentions_of_public_names"] or 0)
        words.append(
            f"Not protected: entities on a list of public names ({facts['public_entities']:,}, {share} % of the "
            "mentions)."
        )
    if facts["settings_from_corpus"]:
        words.append(f"{SETTINGS_FROM_CORPUS[0].upper()}{SETTINGS_FROM_CORPUS[1:]}.")
    return words


def _coverage(coverage: Mapping[str, Any] | None, most_mentions: int | None) -> str | None:
    """Return the note on the tagger's measured coverage, on which plain ε of entities depends; None if not measured.

    Args:
        coverage: as measured.
        most_mentions: the sentences in which the tagger found the most mentioned entity, before any bound.
    """
    if not coverage:
        return None
    flagged, mentions = (_percent(coverage.get(name)) for name in ("sensitive_sentences", "mentions_with_coin"))
    return (
        f"Coverage, measured on {coverage.get('gold')} ({coverage.get('split')}): the tagger flags {flagged} of the "
        f"sentences with an entity; {mentions} of the mentions are sampled together with their entity. A bound on "
        f"entities holds for mentions that the tagger found{_missed(coverage, most_mentions)}."
    )


def _missed(coverage: Mapping[str, Any], most_mentions: int | None) -> str:
    """Return how many sentences of the most mentioned entity are missed at the measured share; empty if unknown."""
    found = (coverage.get("mentions_with_coin") or {}).get("value")
    if not found or most_mentions is None:
        return ""
    missed = math.ceil(most_mentions * (1 - found) / found)
    return (
        f"; at this share about {missed:,} sentences with the most mentioned one are missed (privacy.missed_mentions)"
    )


def _unsought(kinds: Sequence[str] | None) -> str | None:
    """Return the note on the kinds of personal data that nobody looked for; None if there is none, or no record."""
    return f"Nobody looked for: {', '.join(kinds)}. Plain ε of an entity covers none of these." if kinds else None


def _percent(figure: Mapping[str, Any] | None) -> str:
    """Return a share with its 95 % interval, rounded down: "94.1 % (93.0 to 95.2)"."""
    if not figure or figure.get("value") is None:
        return "an unknown share"
    low, high = figure.get("low"), figure.get("high")
    share = f"{percent_down(figure['value'])} %"
    return share if low is None or high is None else f"{share} ({percent_down(low)} to {percent_down(high)})"


def _claim(facts: Mapping[str, Any]) -> list[str]:
    """Return the row of the paper's own figure, which always follows the proven ones; none without such a figure."""
    claimed = facts["epsilon_as_published"]
    if claimed is None:
        return []
    return _row("  as published, any user + any entity: a claim, no guarantee", format_epsilon(claimed), "")


def _row(words: str, epsilon: str, robust: str) -> list[str]:
    """Return a row of the table of ε; words that leave no room for the figures begin a line above them."""
    room = _WIDTH - len(_figures("", ""))
    *above, last = textwrap.wrap(words, room - 1, subsequent_indent=" " * 6, break_on_hyphens=False)
    return [*above, f"{last:<{room}}{_figures(epsilon, robust)}".rstrip()]


def _figures(epsilon: str, robust: str) -> str:
    return f"{epsilon:>7}{robust:>9}"


def _user_bound(facts: Mapping[str, Any]) -> str:
    """Return the bound on a user's sentences: ", ≤ 32 sentences", or nothing without a bound."""
    bound = facts["user_sentences"]
    return "" if bound is None or bound == math.inf else f", ≤ {_count(bound, 'sentence')}"


def _share(facts: Mapping[str, Any], entity_bound: str) -> str:
    """Return the share of the corpus's entities within a contribution bound, rounded down: " (95 %)"."""
    share = (facts["reach_coverage"] or {}).get(entity_bound)
    if share is None:
        return ""
    return f" ({math.floor(100 * share) if share >= 0.01 else percent_down(share)} %)"


def _wrap_note(note: str) -> list[str]:
    return textwrap.wrap(note, _WIDTH, initial_indent="  · ", subsequent_indent="    ", break_on_hyphens=False)


def _utility(facts: Mapping[str, Any], utility: Utility) -> list[str]:
    if facts["app"]:
        words = f"Measured by the app: {measured_in_words(facts['measured']) or 'nothing'}"
        return textwrap.wrap(words, _WIDTH, subsequent_indent="  ")
    values = {name: value for name, value in facts["utility"].items() if value is not None}
    if "final" not in values:
        return [f"Utility: no {utility.column} is recorded."]
    parts = [f"{utility.show(values['initial'])} at the start, {utility.show(values['final'])} at the end"]
    if "perplexity_per_word" in values:
        parts[0] += f" ({utility.show(values['perplexity_per_word'])} per word)"
    if "reference" in values:
        parts.append(f"{utility.show(values['reference'])} by {utility.reference_words}")
    return textwrap.wrap(f"Utility: {utility.words} {'; '.join(parts)}", _WIDTH, subsequent_indent="  ")


def measured_in_words(measured: Mapping[str, Sequence[float]] | None) -> str:
    """Return what a Flower app measured, at the start and at the end; empty if it measured nothing.

    >>> measured_in_words({"accuracy": [0.1, 0.875]})
    'accuracy 0.1 → 0.875'
    """
    return "; ".join(f"{printable(name)} {ends[0]:.4g} → {ends[-1]:.4g}" for name, ends in (measured or {}).items())


def _by_user(facts: Mapping[str, Any]) -> list[str]:
    """Return what the run recorded of its held-out users, as notes."""
    notes = [*held_out_lines(facts["held_out"]), *personal_lines(facts["personal"])[:1]]
    return [line for note in notes for line in _wrap_note(note)]


def _warnings(facts: Mapping[str, Any]) -> list[str]:
    return [line for text in facts["warnings"] for line in _field("Warning", str(text))]
