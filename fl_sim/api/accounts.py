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
1.05
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import Clipping, RoundEvent, Strategy, Unknown
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.guarantee import Guarantee, Known
from fl_sim.strategies.primitives.limits import MOST_COUNTED, SMALLEST_NOISE, require
from fl_sim.strategies.uedp import GradientClipping

if TYPE_CHECKING:
    from fl_sim.api.runs import Run
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

EntityBound = ContributionBound | tuple[int, int] | tuple[int, int, int | None]
Unit = Literal["user", "user_entity", "user_entity_robust", "both"]
Figures = dict[str, Any]

DELTA = 1e-5
"""δ unless another is stated, as in a run."""

_OF_TEXT = frozenset({"releases_robust", "epsilon_any", "known", "epsilon_user_entity", "epsilon_user_entity_robust"})
"""Figures that runs of Flower apps, which know users alone, do not have."""


def account(
    strategy: Strategy = "uedp",
    *,
    noise_multiplier: float,
    rounds: int,
    delta: float = 1e-5,
    q_u: float | None = None,
    q_e: float = 1.0,
    q_s: float = 1.0,
    user_cap: float = 1.0,
    clipping: GradientClipping = "sentence",
    known: Known = "nothing",
    entity_bound: int | None = None,
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    epoch_rounds: int | None = None,
    users: int | None = None,
) -> Figures:
    """Return ε of a training, with the figures and the names of ``fl-sim account mechanism --json``.

    With the settings of a run, its bounds and what it takes as known, ε is that of the run, in all digits.

    Args:
        strategy: The mechanism that trains: uedp, or user_level.
        noise_multiplier: The noise multiplier z: the standard deviation of the noise on the sum / the user clip.
        rounds: The number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        q_u: The probability that a user is sampled in a round (1 by default; 1/t under random allocation).
        q_e: The probability that an entity is sampled in a round.
        q_s: The probability that a sentence is sampled in a round.
        user_cap: The user clip ŵ, in sentence clips.
        clipping: What is clipped besides the user's sum: every sentence's gradient (sentence, automatic), or nothing
            (user).
        known: What may be known, as privacy.known of a run, by which bounds are enforced: counts, graph, or nothing.
        entity_bound: The bound k of every entity, as privacy.entity_bound of a run; no bound by default.
        user_sentences: The bound m on every user, as privacy.user_sentences of a run; where nothing is known, the
            protected user's number of sentences n'.
        entity: The contribution bound of the protected entity.
        epoch_rounds: The t of random allocation (user_level only): each user takes part in one of every t rounds,
            chosen uniformly. By default users are sampled independently.
        users: The number of users N, for delta_times_users, and at most so many mention an entity.

    Returns:
        With ``entity_bound``, ``epsilon_any`` of any user with any entity (``epsilon_stated`` where nothing is known).
        ``epsilon_user``, ``epsilon_user_entity`` and ``epsilon_user_entity_robust`` (which also holds for an entity
        that the tagger missed), inf where nothing can be proven, each with the δ that is proven at it;
        and the settings. With ``users``, ``delta_times_users``: how many users' data a mechanism of the same δ might
        publish outright, on average.

    Raises:
        PrivacyError: a value is impossible, or the strategy does not read it.
    """
    event = _event(
        strategy,
        noise_multiplier=noise_multiplier,
        q_u=q_u,
        q_e=q_e,
        q_s=q_s,
        user_cap=user_cap,
        clipping=clipping,
        epoch_rounds=epoch_rounds,
    )
    check_numbers(rounds=rounds, delta=delta, users=users)
    guarantee = _guarantee(event, known, entity_bound, user_sentences)
    _, asked = adjacencies(user_sentences, entity)
    user = guarantee.with_user(user_sentences)
    both = guarantee.seen(guarantee.with_user(user_sentences, asked.entity_bound))
    figures: Figures = {"strategy": strategy} | settings_of(event) | {"rounds": rounds, "delta": delta}
    figures |= {"known": known, "entity_bound": math.inf if entity_bound is None else entity_bound}
    figures |= _protected(both)
    if entity_bound is not None:
        name = "epsilon_any" if guarantee.covers_any_entity else "epsilon_stated"
        figures |= _largest(name, event, user, guarantee, users or MOST_COUNTED, rounds, delta)
    figures |= _stated("epsilon_user", event, user, rounds, delta)
    figures |= _stated("epsilon_user_entity", event, both, rounds, delta)
    figures |= _stated("epsilon_user_entity_robust", event.robust(), both, rounds, delta)
    return figures | _delta_times(users, delta)


def calibrate(
    target_epsilon: float,
    strategy: Strategy = "uedp",
    *,
    delta: float = 1e-5,
    solve_for: Unknown = "noise_multiplier",
    unit: Unit | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    **mechanism: Any,
) -> float:
    """Return the noise multiplier, or another setting, that meets a target ε.

    Args:
        target_epsilon: The ε to stay within.
        strategy: The mechanism that trains: uedp, or user_level.
        delta: The δ at which ε is stated, in (0, 1).
        solve_for: The setting to find; its own argument is left out.
        unit: Whose ε the target bounds; both means the user's, and that of the user with the entity. By default what
            the strategy protects: user under user_level, else both.
        noise_multiplier: The noise multiplier z; needed unless it is solved for.
        rounds: The number of rounds T; needed unless it is solved for.
        user_sentences: The bound n' on the protected user's sentences.
        entity: The contribution bound of the protected entity.
        mechanism: The other settings of a round, as for :func:`account`: q_u, q_e, q_s, user_cap, clipping and
            epoch_rounds.

    Returns:
        The smallest noise multiplier or user cap, or the largest rate or number of rounds; ε ends at most 0.5 % below
        the target where the setting is no whole number. Where users are sampled and the entity is of a few sentences, a
        still larger q_s or smaller cap may do, for which another proof gives a smaller ε.

    Raises:
        PrivacyError: a value is impossible or missing, or no value of the setting meets the target.
    """
    unit = unit or ("user" if strategy == "user_level" else "both")
    for name, word, allowed in (("unit", unit, get_args(Unit)), ("solve_for", solve_for, get_args(Unknown))):
        if word not in allowed:
            raise PrivacyError(f"{name} is {word!r}; allowed: {', '.join(allowed)}")
    check_settings(mechanism, "epoch_rounds")
    check_numbers(target_epsilon=target_epsilon, delta=delta, noise_multiplier=noise_multiplier, rounds=rounds)
    z, count = _given("noise_multiplier", noise_multiplier, solve_for), _given("rounds", rounds, solve_for)
    accountant.check_rounds([count])
    event = _event(strategy, noise_multiplier=z, **mechanism)
    user, both = adjacencies(user_sentences, entity)
    adjacencies_of_unit = {"user": [user], "both": [user, both]}.get(unit, [both])
    judged = event.robust() if unit == "user_entity_robust" else event
    return accountant.solve(solve_for, judged, adjacencies_of_unit, int(count), delta, target_epsilon)


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
        settings: The training as the paper describes it.
        rounds: The number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        user_sentences: The bound n' on the protected user's sentences.
        entity: The contribution bound of the protected entity; by default one sentence of every user.

    Returns:
        ``epsilon_as_published``, ``epsilon_user`` and ``epsilon_user_entity``, and the settings, as
        ``fl-sim account published --json`` prints them; inf where nothing can be proven.

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
    return figures | _stated("epsilon_user_entity", event, both, rounds, delta) | _delta_times(settings.users, delta)


def account_runs(
    runs: Sequence[Run | str | Path],
    *,
    delta: float | None = None,
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    joined_at: int | None = None,
    users: int | None = None,
) -> Figures:
    """Return ε of all that runs on one corpus released together, from their ledgers alone.

    Args:
        runs: The runs, open or as the paths of their folders.
        delta: The δ at which ε is stated; that of the runs by default, or 1e-5 where they have none in common.
        user_sentences: The bound n' on the protected user's sentences.
        entity: The contribution bound of the protected entity.
        joined_at: The round in which the protected user and entity joined, of a single run only: no sentence of the
            user, and none that mentions the entity, detected or not, was in the corpus before. The robust figure does
            not rely on detection, so it counts all releases (``releases_robust``).
        users: The number of users, for delta_times_users.

    Returns:
        ``epsilon_user``, ``epsilon_user_entity`` and ``epsilon_user_entity_robust``, inf where nothing can be proven,
        with the numbers of releases, as ``fl-sim account ledger --json`` prints them. Runs of Flower apps have
        ``epsilon_user`` alone.

    Raises:
        LedgerError: a ledger is missing or was changed, or the runs are not independent.
        PrivacyError: a value is impossible.
    """
    from fl_sim.experiments.privacy_spent import account_for, are_of_apps, read_ledgers
    from fl_sim.storage.run_folder import listed, path_of

    user, both = adjacencies(user_sentences, entity)
    folders = [path_of(run) for run in listed(runs)]
    if not folders:
        raise PrivacyError("runs is empty; allowed: at least one run")
    delta = shared_delta(folders) or DELTA if delta is None else delta
    ledgers = read_ledgers(folders)
    figures: Figures = {"ledger": [str(ledger.folder) for ledger in ledgers]}
    if joined_at is not None:
        figures["joined_at"] = joined_at
    if not are_of_apps(folders):
        figures |= _protected(both) | account_for(ledgers, user, both, delta, joined_at)
        return figures | _delta_times(users, delta)
    if (user_sentences, both.entity_bound) != (math.inf, ContributionBound(1, 1)):
        raise PrivacyError("a contribution bound is given for runs of Flower apps; allowed: none, they protect users")
    of_users = account_for(ledgers, user, user, delta, joined_at)
    figures |= {name: value for name, value in of_users.items() if name not in _OF_TEXT}
    return figures | _delta_times(users, delta)


def shared_delta(folders: Sequence[str | Path]) -> float | None:
    """Return the δ of the runs' configurations; None if they differ, or a folder has a ledger alone."""
    from fl_sim.storage.run_folder import RunFolder

    deltas = set()
    for folder in folders:
        try:
            deltas.add(RunFolder.open(folder).setting("delta"))
        except (ValueError, OSError):  # whatever is wrong with the folder, the ledger decides
            deltas.add(None)
    return deltas.pop() if len(deltas) == 1 else None


def adjacencies(user_sentences: float, entity: EntityBound) -> tuple[Adjacency, Adjacency]:
    """Return the adjacency of the user alone, and of the user with the entity.

    Raises:
        PrivacyError: a bound is impossible.
    """
    if not isinstance(entity, ContributionBound | tuple | list) or (
        isinstance(entity, tuple | list) and len(entity) not in (2, 3)
    ):
        raise PrivacyError(
            f"entity is {entity!r:.60}; allowed: (users, sentences of each) or (users, sentences of each, in all)"
        )
    entity_bound = entity if isinstance(entity, ContributionBound) else ContributionBound(*entity)
    check_numbers(user_sentences=user_sentences)
    return Adjacency(user_sentences), Adjacency(user_sentences, entity_bound)


def _guarantee(event: RoundEvent, known: Known, entity_bound: int | None, user_sentences: float) -> Guarantee:
    """Return the bounds of a run; where nothing is known, that on a user is no bound of the run's."""
    check_numbers(entity_bound=entity_bound, user_sentences=user_sentences)
    if entity_bound is not None and known == "counts" and not event.clips_sentences:
        raise PrivacyError(
            f"entity_bound is {entity_bound} without a clip on every sentence; allowed: known = graph, because by "
            "counts all users who mention an entity keep a weight"
        )
    enforced = known != "nothing" and Adjacency(user_sentences).user_sentences < math.inf
    user_bound = int(user_sentences) if enforced else None
    return Guarantee(known=known, entity_bound=entity_bound, user_sentences=user_bound)


def round_event(
    strategy: Strategy = "uedp",
    *,
    noise_multiplier: float,
    q_u: float | None = None,
    q_e: float = 1.0,
    q_s: float = 1.0,
    user_cap: float = 1.0,
    clipping: GradientClipping = "sentence",
) -> RoundEvent:
    """Return the event of a round by the settings that :func:`account` names.

    Raises:
        PrivacyError: a value is impossible, or the strategy does not read it.
    """
    check_numbers(noise_multiplier=noise_multiplier, q_u=q_u, q_e=q_e, q_s=q_s, user_cap=user_cap)
    if 0 < noise_multiplier < SMALLEST_NOISE:
        raise PrivacyError(
            f"noise_multiplier is {noise_multiplier:g}; allowed: at least {SMALLEST_NOISE:g}, as in a run"
        )
    require(clipping in get_args(GradientClipping), "clipping", repr(clipping), ", ".join(get_args(GradientClipping)))
    if strategy == "user_level" and (user_cap, clipping) != (1.0, "sentence"):  # its caller expects another guarantee
        name, value = ("user_cap", f"{user_cap:g}") if user_cap != 1 else ("clipping", clipping)
        raise PrivacyError(f"{name} is {value} with user_level; allowed: nothing, because it clips users alone")
    clips: Clipping = "user" if clipping == "user" else "sentence"
    return RoundEvent(strategy, noise_multiplier, 1.0 if q_u is None else q_u, q_e, q_s, user_cap, clips)


def _event(
    strategy: Strategy, *, q_u: float | None = None, epoch_rounds: int | None = None, **others: Any
) -> RoundEvent:
    """Return the event of a round; random allocation sets q_u to 1/t unless it is given."""
    whole = epoch_rounds is None or (isinstance(epoch_rounds, numbers.Real) and epoch_rounds % 1 == 0)
    require(whole, "epoch_rounds", repr(epoch_rounds), "an integer, or nothing")
    if q_u is None and epoch_rounds is not None:
        q_u = 1 / max(epoch_rounds, 1)
    return replace(round_event(strategy, q_u=q_u, **others), epoch_rounds=epoch_rounds)


def check_settings(mechanism: Iterable[str], *others: str) -> None:
    """Refuse a name that neither :func:`round_event` nor its caller has.

    Raises:
        PrivacyError: names it, and the settings of a round.
    """
    allowed = [
        name for name in inspect.signature(round_event).parameters if name not in ("strategy", "noise_multiplier")
    ]
    for name in mechanism:
        if name not in (*allowed, *others):
            raise PrivacyError(f"'{name}' is no setting of a round; allowed: {', '.join([*allowed, *others])}")


def check_numbers(**values: float | None) -> None:
    """Refuse a value that is no number, such as a text, or beyond all floats; None is left to the caller.

    Raises:
        PrivacyError: names the argument.
    """
    for name, value in values.items():
        try:
            require(value is None or isinstance(value, numbers.Real), name, repr(value), "a number")
            float(value or 0)
        except OverflowError as error:
            raise PrivacyError(f"{name} is {value!r:.20}…; allowed: a number of at most 1e308") from error


def _given(name: str, value: float | None, solve_for: str) -> float:
    """Return a setting that is needed unless it is solved for; then it must not be given, and 1 stands for it."""
    if (value is None) == (name == solve_for):
        return 1.0 if value is None else value
    if value is None:
        raise PrivacyError(f"{name} is missing; allowed: a value is needed to solve for {solve_for}")
    raise PrivacyError(f"{name} is {value:g}, but it is solved for; allowed: one of them")


def _delta_times(users: int | None, delta: float) -> Figures:
    require(users is None or users >= 1, "users", users, "at least 1")
    return {} if users is None else {"delta_times_users": delta * users}


def _stated(name: str, event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float) -> Figures:
    """ε under ``name``, and beside it the δ that is proven at this ε."""
    epsilon = accountant.epsilon(event, adjacency, rounds, delta)
    at = min(delta, accountant.delta(event, adjacency, rounds, epsilon)) if math.isfinite(epsilon) else 1.0
    return {name: epsilon, name.replace("epsilon", "delta", 1): at}


def _largest(
    name: str, event: RoundEvent, user: Adjacency, guarantee: Guarantee, population: int, rounds: int, delta: float
) -> Figures:
    """The largest ε of the units of a guarantee under ``name``, as of a run, with the δ that is proven at it."""
    figures: Figures = {}
    for unit in guarantee.units(clips_sentences=event.clips_sentences, population=population):
        adjacency = replace(unit.adjacency, user_sentences=user.user_sentences)
        found = _stated(name, event.robust() if unit.robust else event, adjacency, rounds, delta)
        figures = max(figures or found, found, key=lambda stated: stated[name])
    return figures


def settings_of(event: RoundEvent) -> Figures:
    """Return the settings of a round by their names."""
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
