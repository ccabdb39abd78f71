"""Compute ε of a mechanism or of runs, and the setting that meets a target ε.

Whom ε protects is a user with at most ``user_sentences`` sentences, and that user together with an entity of the
contribution bound ``entity``: (users that mention it, sentences of each[, sentences in all]).

>>> import fl_sim
>>> rates = {"q_e": 0.5, "q_s": 0.1}
>>> figures = fl_sim.account(noise_multiplier=4, user_cap=2, rounds=30, user_sentences=40, **rates)
>>> round(figures["epsilon_user"], 2)
5.99
>>> z = fl_sim.calibrate(2.0, "user_level", q_u=0.05, rounds=30)
>>> round(z, 2)
1.82
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import Clipping, RoundEvent, Strategy, Unknown
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError

if TYPE_CHECKING:
    from fl_sim.api.runs import Run
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

EntityBound = ContributionBound | tuple[int, int] | tuple[int, int, int | None]
Unit = Literal["user", "user_entity", "user_entity_robust", "both"]
Figures = dict[str, Any]

LEAST_NOISE = 1e-3
"""Below this noise multiplier ε is of hundreds of thousands, and no grid is fine enough for it."""

_OF_TEXT = frozenset(
    {"releases_robust", "epsilon_any", "mention_graph", "epsilon_user_entity", "epsilon_user_entity_robust"}
)
"""Figures that runs of Flower apps, which know users alone, do not have."""

_PLACEHOLDER = 1.0  # stands for the value that is being solved for


def account(
    strategy: Strategy = "uedp",
    *,
    noise_multiplier: float,
    rounds: int,
    delta: float = 1e-5,
    q_u: float = 1.0,
    q_e: float = 1.0,
    q_s: float = 1.0,
    user_cap: float = 1.0,
    clipping: Clipping = "sentence",
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    epoch_rounds: int | None = None,
) -> Figures:
    """Return ε of a training, with the figures and the names of ``fl-sim account --json``.

    Args:
        strategy: "uedp" or "user_level".
        noise_multiplier: z, the standard deviation of the noise on the sum divided by the user clip.
        rounds: T.
        delta: δ, in (0, 1).
        q_u: the probability that a user is sampled in a round.
        q_e: the probability that an entity is active in a round.
        q_s: the probability that a sentence is active in a round.
        user_cap: ŵ, the user clip in sentence clips.
        clipping: what is clipped besides the user's sum: "sentence", or "user" for nothing.
        user_sentences: n', the bound on the protected user's sentences.
        entity: the contribution bound of the protected entity.
        epoch_rounds: t of random allocation ("user_level" only): each user takes part in one of every t rounds, so that
            q_u is 1/t. By default users are sampled independently.

    Returns:
        ``epsilon_user``, ``epsilon_user_entity`` and ``epsilon_user_entity_robust`` (which also holds for an entity
        that the tagger missed), inf where nothing can be proven, each with the δ that is proven at it;
        ``epsilon_user_rdp``, a second opinion (not under random allocation); and the settings.

    Raises:
        PrivacyError: a value is impossible.
    """
    if 0 < noise_multiplier < LEAST_NOISE:
        raise PrivacyError(f"noise_multiplier is {noise_multiplier:g}; allowed: at least {LEAST_NOISE:g}, as in a run")
    q_u = _user_rate(q_u, epoch_rounds)
    event = RoundEvent(strategy, noise_multiplier, q_u, q_e, q_s, user_cap, clipping, epoch_rounds)
    user, both = adjacencies(user_sentences, entity)
    figures: Figures = {"strategy": strategy} | _settings(event) | {"rounds": rounds, "delta": delta}
    figures |= _protected(both)
    figures |= _stated("epsilon_user", event, user, rounds, delta)
    figures |= _stated("epsilon_user_entity", event, both, rounds, delta)
    figures |= _stated("epsilon_user_entity_robust", event.robust(), both, rounds, delta)
    return figures | _second_opinion(event, user, rounds, delta)


def calibrate(
    target_epsilon: float,
    strategy: Strategy = "uedp",
    *,
    delta: float = 1e-5,
    solve_for: Unknown = "noise_multiplier",
    unit: Unit = "both",
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    q_u: float = 1.0,
    q_e: float = 1.0,
    q_s: float = 1.0,
    user_cap: float = 1.0,
    clipping: Clipping = "sentence",
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    epoch_rounds: int | None = None,
) -> float:
    """Return the noise multiplier, or another setting, that meets a target ε.

    Args:
        target_epsilon: ε to stay within.
        strategy: "uedp" or "user_level".
        delta: δ, in (0, 1).
        solve_for: the setting to find; its own argument is not read.
        unit: whose ε the target bounds; "both" means the user's, and that of the user with the entity.
        noise_multiplier: z; needed unless it is solved for.
        rounds: T; needed unless it is solved for.
        q_u: as for :func:`account`, like all arguments that follow.

    Returns:
        The smallest noise multiplier or user cap, or the largest rate or number of rounds; ε ends at most 0.5 % below
        the target where the setting is no whole number.

    Raises:
        PrivacyError: a value is impossible or missing, or no value of the setting meets the target.
    """
    z = _PLACEHOLDER if solve_for == "noise_multiplier" else _needed("noise_multiplier", noise_multiplier, solve_for)
    count = 1 if solve_for == "rounds" else int(_needed("rounds", rounds, solve_for))
    if 0 < z < LEAST_NOISE:
        raise PrivacyError(f"noise_multiplier is {z:g}; allowed: at least {LEAST_NOISE:g}, as in a run")
    q_u = _user_rate(q_u, epoch_rounds)
    event = RoundEvent(strategy, z, q_u, q_e, q_s, user_cap, clipping, epoch_rounds)
    user, both = adjacencies(user_sentences, entity)
    adjacencies_of_unit = {"user": [user], "both": [user, both]}.get(unit, [both])
    judged = event.robust() if unit == "user_entity_robust" else event
    return accountant.solve(solve_for, judged, adjacencies_of_unit, count, delta, target_epsilon)


def account_published(
    settings: PublishedSettings,
    *,
    rounds: int,
    delta: float = 1e-5,
    user_sentences: float = math.inf,
    entity: EntityBound | None = None,
) -> Figures:
    """Return ε of the UeDP paper's algorithm: what its paper claims (no guarantee), and what is proven.

    Args:
        settings: the training as the paper describes it.
        rounds: T.
        delta: δ, in (0, 1).
        user_sentences: n', the bound on the protected user's sentences.
        entity: the contribution bound of the protected entity; by default one sentence of every user.

    Returns:
        ``epsilon_as_published``, ``epsilon_user`` and ``epsilon_user_entity``, and the settings, as
        ``fl-sim account --strategy published --json`` prints them; inf where nothing can be proven.

    Raises:
        PrivacyError: a value is impossible.
    """
    from fl_sim.strategies.accounting import paper_model

    event = paper_model.proven_event(settings)
    user, both = adjacencies(user_sentences, entity or (settings.users, 1))
    figures: Figures = {"strategy": "published", "estimator": settings.estimator, "rounds": rounds, "delta": delta}
    figures |= {"q_u": settings.q_u, "claimed_rate": settings.claimed_rate}
    figures |= {"noise_multiplier": settings.noise_multiplier, "noise_per_user_clip": event.noise_multiplier}
    figures |= _protected(both)
    figures["epsilon_as_published"] = paper_model.epsilon_as_published(settings, rounds, delta)
    figures |= _stated("epsilon_user", event, user, rounds, delta)
    return figures | _stated("epsilon_user_entity", event, both, rounds, delta)


def account_runs(
    runs: Sequence[Run | str | Path],
    *,
    delta: float = 1e-5,
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    joined_at: int | None = None,
) -> Figures:
    """Return ε of all that runs on one corpus released together, from their ledgers alone.

    Args:
        runs: open, or as the paths of their folders.
        delta: δ, in (0, 1).
        user_sentences: n', the bound on the protected user's sentences.
        entity: the contribution bound of the protected entity.
        joined_at: the round in which the protected user and entity joined, of a single run only: no sentence of the
            user, and none that mentions the entity, detected or not, was in the corpus before. The robust figure does
            not rely on detection, so it counts all releases (``releases_robust``).

    Returns:
        ``epsilon_user``, ``epsilon_user_entity`` and ``epsilon_user_entity_robust``, inf where nothing can be proven,
        with the numbers of releases, as ``fl-sim account --ledger --json`` prints them. Runs of Flower apps have
        ``epsilon_user`` alone.

    Raises:
        LedgerError: a ledger is missing or was changed, or the runs are not independent.
        PrivacyError: a value is impossible.
    """
    from fl_sim.experiments.privacy_spent import account_for, are_of_apps, read_ledgers

    user, both = adjacencies(user_sentences, entity)
    folders = [run if isinstance(run, str | Path) else run.path for run in runs]
    ledgers = read_ledgers(folders)
    figures: Figures = {"ledger": [str(ledger.folder) for ledger in ledgers]}
    if joined_at is not None:
        figures["joined_at"] = joined_at
    if not are_of_apps(folders):
        return figures | _protected(both) | account_for(ledgers, user, both, delta, joined_at)
    if (user_sentences, both.entity_bound) != (math.inf, ContributionBound(1, 1)):
        raise PrivacyError("a contribution bound is given for runs of Flower apps; allowed: none, they protect users")
    of_users = account_for(ledgers, user, user, delta, joined_at)
    return figures | {name: value for name, value in of_users.items() if name not in _OF_TEXT}


def adjacencies(user_sentences: float, entity: EntityBound) -> tuple[Adjacency, Adjacency]:
    """Return the adjacency of the user alone, and of the user with the entity.

    Raises:
        PrivacyError: a bound is impossible.
    """
    entity_bound = entity if isinstance(entity, ContributionBound) else ContributionBound(*entity)
    return Adjacency(user_sentences), Adjacency(user_sentences, entity_bound)


def _user_rate(q_u: float, epoch_rounds: int | None) -> float:
    """Return q_u, which random allocation sets to 1/t unless it is given."""
    return q_u if epoch_rounds is None or q_u != 1 else 1 / max(epoch_rounds, 1)


def _needed(name: str, value: float | None, solve_for: str) -> float:
    if value is None:
        raise PrivacyError(f"{name} is missing; allowed: a value is needed to solve for {solve_for}")
    return value


def _stated(name: str, event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float) -> Figures:
    """ε under ``name``, and beside it the δ that is proven at this ε."""
    epsilon = accountant.epsilon(event, adjacency, rounds, delta)
    at = accountant.delta(event, adjacency, rounds, epsilon) if math.isfinite(epsilon) else 1.0
    return {name: epsilon, name.replace("epsilon", "delta", 1): at}


def _second_opinion(event: RoundEvent, user: Adjacency, rounds: int, delta: float) -> Figures:
    from fl_sim.strategies.accounting import rdp

    if event.epoch_rounds is not None:
        return {}
    return {"epsilon_user_rdp": float(rdp.epsilon_curve(event, user, [rounds], delta)[0])}


def _settings(event: RoundEvent) -> Figures:
    names = ("noise_multiplier", "q_u", "q_e", "q_s", "user_cap")
    clipping = "sentence" if event.clips_sentences else "user"
    epochs = {} if event.epoch_rounds is None else {"epoch_rounds": event.epoch_rounds}
    return {name: getattr(event, name) for name in names} | {"clipping": clipping} | epochs


def _protected(adjacency: Adjacency) -> Figures:
    return {
        "user_sentences": adjacency.user_sentences,
        "reach_users": adjacency.entity_bound.users,
        "reach_sentences": adjacency.entity_bound.sentences_per_user,
        "reach_total": adjacency.entity_bound.total,
    }
