"""Compute ε of every entity of a corpus from its profile: the number of sentences of each user that mention it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from fl_sim.cli.mechanism_flags import add_mechanism

if TYPE_CHECKING:
    from fl_sim.data_prep.store.corpus import Corpus
    from fl_sim.experiments.entity_report import Training
    from fl_sim.experiments.plan.guarantees import EnforcedBounds

_PRIVATE = (
    "These figures are computed from the private corpus: they are for its owner, and no ε covers their publication."
)
_MECHANISM = ("strategy", "z", "rounds", "delta", "q_u", "q_e", "q_s", "user_cap", "clipping")
_BOUNDS = ("user_sentences", "entity_bound", "entity_bound_by")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``fl-sim entities``."""
    parser.add_argument(
        "--run", metavar="DIR", help="a run's folder, for its corpus, its mechanism and its released rounds"
    )
    parser.add_argument("--corpus", metavar="DIR", help="a folder made by fl-sim prepare, or: bundled, irc")
    parser.add_argument("--split", metavar="NAME", help="the training split (default train)")
    parser.add_argument(
        "--within", type=float, nargs="+", metavar="E", help="print the share of entities within each of these ε"
    )
    parser.add_argument(
        "--evaluations",
        type=int,
        metavar="N",
        help="number of ε to compute, approximately (default 10,000); the others are bounded",
    )
    parser.add_argument(
        "--show-names", action="store_true", help="print the names of the worst entities; the list is private"
    )
    parser.add_argument("--user", metavar="NAME", help="print ε of this user alone, and with --entity")
    parser.add_argument(
        "--entity", metavar="NAME", help="print ε of this entity with --user (default: the user of that name)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    group = add_mechanism(parser, "the mechanism, without --run")
    group.add_argument("--strategy", choices=("uedp", "user_level"), help="the mechanism that trains (default uedp)")
    group.add_argument(
        "--user-sentences", metavar="M", help="m, as privacy.user_sentences (default: the corpus's largest)"
    )
    group.add_argument("--entity-bound", metavar="K", help="k, as privacy.entity_bound (default: no bound)")
    group.add_argument("--entity-bound-by", metavar="RULE", help="as privacy.entity_bound_by: greedy or weights")


def run(args: argparse.Namespace) -> int:
    """Print the report; return the exit code 0."""
    from fl_sim.cli.progress_bar import counting, say
    from fl_sim.experiments import entity_report as entity
    from fl_sim.storage.run_folder import encode

    corpus, split, training, bounds, population = _of_run(args) if args.run else _of_flags(args)
    if args.user is not None or args.entity is not None:
        return _run_pair(args, corpus, split, training, bounds)
    evaluations = entity.EVALUATIONS if args.evaluations is None else args.evaluations
    say("computing ε of every entity from its mentions", args.quiet)
    with counting("ε computed", args.quiet) as show:
        epsilons = entity.bounded_entity_epsilons(bounds, training, population, evaluations, show)
    names = corpus.entities(split)["entity"].tolist() if args.show_names else None
    report = {"corpus": corpus.manifest.name, "split": split} | _settings(training) | bounds.record()
    report["epsilon_any"] = entity.epsilon_of_any(bounds.guarantee, training, population)
    report |= entity.summarise(epsilons, args.within or entity.THRESHOLDS, names)
    if args.json:
        print(json.dumps(encode(report | {"note": _PRIVATE}), ensure_ascii=False, allow_nan=False))
    else:
        print(_text(report))
    return 0


def _run_pair(args: argparse.Namespace, corpus: Corpus, split: str, training: Training, bounds: EnforcedBounds) -> int:
    """Print ε of one user and one entity, who may be the same person."""
    from fl_sim.experiments.entity_report import pair_epsilons
    from fl_sim.storage.run_folder import encode

    user, entity, same = _named(args, corpus, split)
    pair = pair_epsilons(bounds, training, user, entity)
    report = {
        "corpus": corpus.manifest.name,
        "split": split,
        **_settings(training),
        **bounds.record(),
        "user": None if user is None else corpus.users(split)["user"][user],
        "entity": None if entity is None else corpus.entities(split)["entity"][entity],
        "entity_is_user": same,
        "user_sentences_kept": pair.user_sentences,
        "entity_sentences_kept": int(pair.profile.sum()),
        "entity_users_kept": len(pair.profile),
        "epsilon_user": pair.user,
        "epsilon_user_entity": None if entity is None else pair.detected,
        "epsilon_user_entity_robust": None if entity is None else pair.robust,
    }
    if args.json:
        print(json.dumps(encode(report | {"note": _PRIVATE}), ensure_ascii=False, allow_nan=False))
    else:
        print(_pair_text(report))
    return 0


def _named(args: argparse.Namespace, corpus: Corpus, split: str) -> tuple[int | None, int | None, bool]:
    """Return the ids of the user and the entity of the flags, None for none, and whether they are one person.

    Who is named as one of them is the other, too, if the corpus has both.
    """
    from fl_sim.config import ConfigError
    from fl_sim.data_prep.user_entities import NOBODY, entities_of_users, entity_of_name

    entity_of_user = entities_of_users(corpus, split).tolist()
    user = entity = None
    if args.user is not None:
        users = corpus.users(split)["user"].tolist()
        if args.user not in users:
            raise ConfigError(f"--user is '{args.user}'; allowed: the name of a user of split {split}")
        user = users.index(args.user)
        entity = None if entity_of_user[user] == NOBODY else entity_of_user[user]
    if args.entity is not None:
        entity = entity_of_name(corpus, split, args.entity)
        if entity is None:
            raise ConfigError(f"--entity is '{args.entity}'; allowed: the name of an entity of split {split}")
        if user is None and entity_of_user.count(entity) == 1:
            user = entity_of_user.index(entity)
    return user, entity, user is not None and entity is not None and entity_of_user[user] == entity


def _of_flags(args: argparse.Namespace) -> tuple[Corpus, str, Training, EnforcedBounds, int]:
    """Return corpus, split, training, bounds and N of the flags."""
    from fl_sim.config import ConfigError, RunConfig, parse_value
    from fl_sim.data_prep.store.corpus import Corpus
    from fl_sim.experiments.entity_report import Training
    from fl_sim.experiments.plan.guarantees import EnforcedBounds
    from fl_sim.strategies.accounting.accountant import RoundEvent

    for name in ("corpus", "z", "rounds"):
        if getattr(args, name) is None:
            raise ConfigError(f"--{name} is missing; allowed: a value, or --run DIR")
    event = RoundEvent(
        strategy=args.strategy or "uedp",
        noise_multiplier=args.z,
        q_u=_or(args.q_u, 1.0),
        q_e=_or(args.q_e, 1.0),
        q_s=_or(args.q_s, 1.0),
        user_cap=_or(args.user_cap, 1.0),
        clipping=args.clipping or "sentence",
    )
    corpus, split = Corpus.open(args.corpus, verify=True), args.split or "train"
    given = {"entity_bound": "unbounded", "user_sentences": "corpus"}
    given |= {name: getattr(args, name) for name in _BOUNDS if getattr(args, name) is not None}
    privacy = {f"privacy.{name}": parse_value(f"privacy.{name}", text) for name, text in given.items()}
    config = RunConfig.from_mapping(privacy | {"privacy.settings_from_corpus": True})
    bounds = EnforcedBounds.of(config.privacy, corpus.ownership(split), config.seed)
    n = bounds.guarantee.user.user_sentences
    return corpus, split, Training(event, args.rounds, _or(args.delta, 1e-5), n), bounds, bounds.ownership.num_users


def _of_run(args: argparse.Namespace) -> tuple[Corpus, str, Training, EnforcedBounds, int]:
    """Return corpus, split, training, bounds and N of a run, from its ledger."""
    from fl_sim.config import ConfigError
    from fl_sim.experiments.entity_report import Training
    from fl_sim.experiments.privacy_spent import read_ledgers
    from fl_sim.experiments.run_record import Record, recorded_bounds
    from fl_sim.storage.run_folder import ResultsError, RunFolder
    from fl_sim.strategies.accounting.adjacency import Adjacency
    from fl_sim.strategies.ledger import has_repeated_sums

    for name in ("corpus", "split", *_MECHANISM, *_BOUNDS):
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is given with --run; allowed: one of them, because a run has its own {flag}")
    folder = RunFolder.open(args.run)
    record = Record.read(folder)
    config, corpus = record.config, record.open_corpus(folder)
    *ancestors, ledger = read_ledgers([folder.path])
    if not ledger.entries:
        raise ResultsError(f"{folder.path}: no round has been released; allowed: a run of at least one round")
    mechanism, *others = {entry.terms.mechanism for entry in ledger.entries}
    event = mechanism.event()
    if event is None:
        raise ConfigError(
            f"{folder.path}: {mechanism.strategy} guarantees nothing; allowed: runs of a strategy with an ε"
        )
    if mechanism.exposed(Adjacency()) != Adjacency():
        raise ConfigError(
            f"{folder.path}: its weights depend on other users' data, so an entity affects the updates of all users; "
            "allowed: runs without privacy.*_weight_cap"
        )
    if ancestors:
        raise ConfigError(
            f"{folder.path}: starts from a trained model, whose releases are not counted entity by entity; "
            "allowed: a run from a public model"
        )
    if others or has_repeated_sums(ledger.entries):
        raise ConfigError(
            f"{folder.path}: a round was released with {'other settings' if others else 'several sums'}; allowed: runs "
            "of one sum a round (fl-sim account counts all of them)"
        )
    bounds = recorded_bounds(folder, record, corpus, ledger)
    # A round repeated after a crash, with fresh noise, is another release; the ledger has all of them.
    n = bounds.guarantee.user.user_sentences
    training = Training(event, len(ledger.entries), config.privacy.delta, n)
    return corpus, config.corpus.train_split, training, bounds, mechanism.population


def _settings(training: Training) -> dict[str, Any]:
    event = training.event
    return {
        "strategy": event.strategy,
        "noise_multiplier": event.noise_multiplier,
        "q_u": event.q_u,
        "q_e": event.q_e,
        "q_s": event.q_s,
        "user_cap": event.user_cap,
        "clipping": "sentence" if event.clips_sentences else "user",
        "rounds": training.rounds,
        "delta": training.delta,
        "user_sentences": training.user_sentences,
    }


def _text(report: dict[str, Any]) -> str:
    from fl_sim.experiments.entity_report import QUANTILES
    from fl_sim.formats import format_delta, format_epsilon, percent_down

    detected, robust = report["epsilon_user_entity"], report["epsilon_user_entity_robust"]
    lines = [
        f"{report['corpus']}, split {report['split']}: {report['entities']:,} entities, "
        f"{report['distinct_profiles']:,} different profiles; {report['rounds']} rounds",
        f"ε at δ = {format_delta(report['delta'])} of a user with at most {report['user_sentences']:,g} sentences: "
        f"{format_epsilon(report['epsilon_user'])}; together with any entity: {format_epsilon(report['epsilon_any'])}; "
        "together with an entity of this corpus:",
        "",
        f"{'entities':<12}{'detected':>10}{'robust':>10}",
    ]
    for name in QUANTILES:
        lines.append(f"{name:<12}{format_epsilon(detected[name]):>10}{format_epsilon(robust[name]):>10}")
    for bound, share in detected["share_within"].items():
        within = [f"{percent_down(one)} %" for one in (share, robust["share_within"][bound])]
        lines.append(f"{'ε ≤ ' + bound:<12}" + "".join(f"{one:>10}" for one in within))
    lines += ["", *_exactness(detected, robust), "", *_worst_lines(report["worst"]), "", _PRIVATE]
    return "\n".join(lines)


def _pair_text(report: dict[str, Any]) -> str:
    from fl_sim.formats import format_delta, format_epsilon, printable

    who = "any user" if report["user"] is None else f"user {printable(report['user'])}"
    lines = [
        f"{report['corpus']}, split {report['split']}; {report['rounds']} rounds, ε at δ = "
        f"{format_delta(report['delta'])}",
        f"{who}, {report['user_sentences_kept']:,g} sentences that take part: {format_epsilon(report['epsilon_user'])}",
    ]
    if report["entity"] is None:
        lines.append("No sentence mentions an entity of that name.")
    else:
        detected, robust = report["epsilon_user_entity"], report["epsilon_user_entity_robust"]
        lines.append(
            f"together with entity {printable(report['entity'])}{', the same' if report['entity_is_user'] else ''}, in "
            f"{report['entity_sentences_kept']:,} sentences of {report['entity_users_kept']:,} users that take part: "
            f"{format_epsilon(detected)}, robust {format_epsilon(robust)}"
        )
    return "\n".join([*lines, "", _PRIVATE])


def _exactness(detected: dict[str, Any], robust: dict[str, Any]) -> list[str]:
    from fl_sim.formats import percent_down, percent_up

    exact = min(detected["share_computed_exactly"], robust["share_computed_exactly"])
    if exact == 1:
        return ["Every figure is computed from the entity's own profile."]
    over = max(detected["overstated_by"]["max"], robust["overstated_by"]["max"])
    return [
        f"{percent_down(exact)} % of the entities have the ε of their own profile. The others have the ε of a profile "
        f"that dominates theirs and overstates ε by at most {percent_up(over)} %."
    ]


def _worst_lines(worst: list[dict[str, Any]]) -> list[str]:
    from fl_sim.formats import format_epsilon

    lines = [f"{'worst: users':>12}{'sentences':>11}{'most of one':>13}{'entities':>10}{'detected':>10}{'robust':>10}"]
    for row in worst:
        figures = f"{row['users']:>12,}{row['sentences']:>11,}{row['max_per_user']:>13,}{row['entities']:>10,}"
        both = (format_epsilon(row[name]) for name in ("epsilon_user_entity", "epsilon_user_entity_robust"))
        named = "  " + ", ".join(row["names"]) if "names" in row else ""
        lines.append(figures + "".join(f"{epsilon:>10}" for epsilon in both) + named)
    return lines


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
