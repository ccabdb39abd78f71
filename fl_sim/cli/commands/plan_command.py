"""``fl-sim plan``: choose the settings of a private run by formula, by trials on public text, or both automatically."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from fl_sim.api import planning
from fl_sim.api.accounts import Figures
from fl_sim.api.planning import CONTRIBUTION_QUANTILES
from fl_sim.cli.flags import configuration_flags, print_json
from fl_sim.cli.from_signature import FILE, options_of
from fl_sim.cli.progress_bar import counting, say
from fl_sim.cli.verbs import VerbGroup, as_json, quiet
from fl_sim.formats import aligned, format_delta, format_epsilon, nonzero, round_down, round_up
from fl_sim.stop_signals import exit_status

if TYPE_CHECKING:
    from fl_sim.search.planner import Tradeoff
    from fl_sim.search.settings_search import Tried
    from fl_sim.settings_origin import Origin, Trial

_WHOLE_FROM = 10_000.0  # signal-to-noise ratios are shown without decimals
_NOT_TUNED = (
    *("privacy.epsilon_budget", "privacy.estimator", "privacy.noise", "privacy.secure_noise"),
    *("engine.name", "engine.nodes", "seed", "out", "anchor"),
)
"""Keys that are no settings of the private run whose settings trials search."""


@click.group(cls=VerbGroup)
def plan() -> None:
    """Choose the settings of a private run: by formula, by trials on public text, or both automatically."""


@plan.command()
@options_of(planning.plan_by_formula, but=("public", "say", "observer"))
@click.option("--public", is_flag=True, help="The corpus is public text, so that its sizes may set what is released.")
@as_json
@quiet
def formula(corpus: str, public: bool, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Propose bounds, sampling rates, cap and noise for a corpus, a target ε and a compute budget."""
    start = time.monotonic()
    with counting("bounds tried", quiet) as show:
        report = planning.plan_by_formula(
            corpus, public=public, say=lambda words: say(words, quiet), observer=show, **settings
        )
    report |= {"command": _command(corpus, settings, report), "seconds": round(time.monotonic() - start, 1)}
    print_json(report) if as_json else print(_text(report))


@plan.command()
@click.option("-c", "--config", type=FILE, metavar="FILE", help="The private run's configuration.")
@options_of(planning.plan_by_trials, but=("config", "say", "weigh", "observer"))
@click.option("--users", metavar="N", help="Its number of users, as privacy.population.")
@configuration_flags(but=_NOT_TUNED)
@as_json
@quiet
def trials(
    config: Path | None,
    users: str | None,
    overrides: dict[str, object],
    out: str,
    as_json: bool,
    quiet: bool,
    **search: Any,
) -> int:
    """Tune settings on public text for a private run of stated size and noise; repeat the command to continue.

    The private corpus is never read. The file tuned.toml in the search's folder has the settings and their origin;
    fl-sim run takes it.
    """
    from fl_sim.config import RunConfig, add_setting
    from fl_sim.search.settings_search import Tried

    if users is not None:
        add_setting(overrides, "privacy.population", users)
    private = RunConfig.load(None if config is None else str(config), overrides)
    ended = planning.plan_by_trials(
        private, out=out, say=lambda words: say(words, quiet), weigh=_weighed(quiet), observer=_shown(quiet), **search
    )
    if isinstance(ended, Tried):
        return _interrupted(ended)
    tuned = RunConfig.load(ended)
    if as_json:
        print_json({"file": ended, **tuned.origin})
    elif tuned.tuned_on is not None:
        print(_tuned_text(ended, tuned.tuned_on))
    return 0


@plan.command()
@options_of(planning.plan_automatically, but=("config", "say", "weigh", "observer"))
@configuration_flags(but=("out", "anchor"))
@as_json
@quiet
def auto(out: str, overrides: dict[str, object], as_json: bool, quiet: bool, **search: Any) -> int:
    """Choose bounds, rates, noise, clip norm and optimizer by trials on public text, for ε 8 or --target-epsilon.

    The file tuned.toml in the folder has the settings; fl-sim run takes it. Repeat the command to continue.
    """
    from fl_sim.api.early_checks import check_early
    from fl_sim.config import ConfigError, RunConfig
    from fl_sim.search.automatic import CHOSEN
    from fl_sim.search.settings_search import TUNED_FILE, Tried

    for key in overrides:
        if key in CHOSEN:
            raise ConfigError(f"{key} is given with fl-sim plan auto, which chooses it; allowed: one of them")
    config = RunConfig.load(None, overrides)
    check_early(config)
    ended = planning.plan_automatically(
        config, out=out, say=lambda words: say(words, quiet), weigh=_weighed(quiet), observer=_shown(quiet), **search
    )
    if isinstance(ended, Tried):
        return _interrupted(ended)
    file = Path(out) / TUNED_FILE
    if as_json:
        print_json({"file": file, "notes": ended.notes})
    else:
        print("\n".join([*ended.notes, f"Run it: fl-sim run {shlex.quote(str(file))}"]))
    return 0


def _shown(quiet: bool) -> Any:
    """Return a function that shows a trial that ended."""
    console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)

    def show(tried: Tried) -> None:
        reason = f" ({tried.reason})" if tried.reason else ""
        console.print(f"{tried.name}: {_in_words(tried.trial)}{reason}", markup=False)

    return show


def _weighed(quiet: bool) -> Callable[[Sequence[Tradeoff]], None]:
    """Return a function that shows what bounds cost and keep, on standard error."""

    def show(trades: Sequence[Tradeoff]) -> None:
        for line in _bounds_table([planning.trade_of(trade) for trade in trades]):
            say(line, quiet)

    return show


def _interrupted(tried: Tried) -> int:
    print("interrupted; continue with the same command", file=sys.stderr)
    return exit_status(tried.reason)


def _command(corpus: str, settings: Mapping[str, object], report: Figures) -> str:
    """Return the ``fl-sim run`` command of the proposal; the run computes the noise for the target again."""
    best = report["proposal"]
    words = ["fl-sim", "run", "--corpus", corpus, "--strategy", "uedp", "--rounds", str(best["rounds"])]
    for name in ("q_u", "q_e", "q_s", "user_cap"):
        words += [f"--{name.replace('_', '-')}", f"{best[name]!r}"]
    words += ["--delta", f"{report['delta']!r}", "--target-epsilon", f"{report['target_epsilon']!r}"]
    words += ["--set", f"server.learning_rate={report['learning_rate']}"]
    words += ["--target-unit", report["target_unit"], "--known", report["known"]]
    for name in ("entity_bound", "user_sentences"):
        if bound := settings[name] or report[name]:  # or as searched
            words += [f"--{name.replace('_', '-')}", str(bound)]
    stated = {
        "counts": settings["counts"],
        "settings_from_corpus": report["settings_from_corpus"],
        "round_counts": settings["round_counts"],
    }
    for name, value in stated.items():
        if value:
            words += ["--set", f"privacy.{name}={'true' if value is True else value}"]
    if report["split"] != "train":
        words += ["--set", f"corpus.train_split={report['split']}"]
    return shlex.join(words)


def _in_words(trial: Trial) -> str:
    """Return a trial in one line: "291.5 with rounds 2, clip_norm 1.0"."""
    settings = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in trial.settings.items())
    return f"{'no score' if trial.score is None else f'{trial.score:g}'} with {settings}"


def _tuned_text(file: Path, origin: Origin) -> str:
    target = f"ε ≤ {format_epsilon(origin.epsilon)} ({origin.unit}) at δ {format_delta(origin.delta)}"
    if origin.epsilon is None:
        target = "no noise"
    last = max(trial.rung for trial in origin.trials)
    final = [trial for trial in origin.trials if trial.rung == last and trial.score is not None]
    return "\n".join(
        [
            f"Tuned on {origin.corpus} for {origin.users:,} users, about {origin.sentences:,.0f} sentences a round, "
            f"{target}; {origin.metric} on held-out public users:",
            *(f"  {_in_words(trial)}" for trial in sorted(final, key=lambda trial: trial.score or 0.0)),
            f"Run it: fl-sim run {file}",
        ]
    )


def _text(report: Figures) -> str:
    """Return a proposal as text: what is public first, then what is for the owner."""
    owner, kept = report["owner"], report["owner"]["kept"]
    lines = [
        f"{report['corpus']}: ε ≤ {report['target_epsilon']:g} for {report['target_unit']} at δ = "
        f"{format_delta(report['delta'])}, about {report['sentences_per_round']:,g} sentences a round, "
        f"at most {report['rounds']} rounds",
        "",
        *_bounds_table(report["bounds"]),
        "",
        *_settings_table(report),
        "",
        *_epsilon_table(report),
        "",
        f"Run it: {report['command']}",
        "",
        f"Learning rate {report['learning_rate']}: {report['learning_rate_from']}.",
        "",
        report["note"],
        "",
        "For the owner of the corpus alone, because no ε covers what follows: the proposal computes about "
        f"{nonzero(owner['expected_sentences'], ',.0f')} sentences a round, and its bounds keep "
        f"{nonzero(kept['sentences'], '.1%')} of the sentences and {nonzero(kept['mentions'], '.1%')} of the "
        "mentions, in weight.",
        *([f"On this machine the run takes {owner['cost']}."] if "cost" in owner else []),
        "",
        *_owner_table(report),
    ]
    return "\n".join(lines)


def _bounds_table(trades: Sequence[Figures]) -> list[str]:
    """Return what bounds cost and keep, as a table of at most 80 columns."""
    rows = [["bounds", "D/(√T·z·ŵ)", "noise", "z", "q_e", "different", "sentences", "mentions"]]
    for trade in trades:
        k, m = ("∞" if trade[name] is None else str(trade[name]) for name in ("entity_bound", "user_sentences"))
        ratio = nonzero(trade["different_to_noise"], ".1f" if trade["different_to_noise"] < _WHOLE_FROM else ".0f")
        noise = [round_up(trade["noise_per_sentence"], 3), round_up(trade["noise_multiplier"], 4)]
        noise.append(f"{trade['q_e']:g}")
        kept = [nonzero(trade[name], ".1%") for name in ("kept_sentences", "kept_mentions")]
        rows.append([f"k {k}, m {m}", ratio, *noise, nonzero(trade["different_sentences"], ",.0f"), *kept])
    return aligned(rows)


def _named_rows(report: Figures) -> list[tuple[str, Figures]]:
    """Return the proposed settings and the others, each with its name."""
    others = [(f"alternative {number}", row) for number, row in enumerate(report["alternatives"], start=1)]
    return [("proposed", report["proposal"]), *others, *(("other rounds", row) for row in report["fewer_rounds"])]


def _settings_table(report: Figures) -> list[str]:
    """Return the settings of each proposal as a table of at most 80 columns."""
    table = [["settings", "SNR", "q_u", "q_s", "q_e", "ŵ", "z", "T", "sentences"]]
    for label, row in _named_rows(report):
        snr = nonzero(row["signal_to_noise"], ".1f" if row["signal_to_noise"] < _WHOLE_FROM else ".0f")
        rates = [round_down(row[name], 3) for name in ("q_u", "q_s", "q_e")]
        noise = [f"{row['user_cap']:g}", round_up(row["noise_multiplier"], 4)]
        sentences = nonzero(row["expected_sentences"], ",.0f")
        table.append([label, snr, *rates, *noise, str(row["rounds"]), sentences])
    return aligned(table)


def _epsilon_table(report: Figures) -> list[str]:
    """Return ε of each proposal at the bounds: of the target's unit, and of any user."""
    table = [["ε at the bounds", "ε", "ε user"]]
    for label, row in _named_rows(report):
        table.append([label, *(format_epsilon(row[name]) for name in ("epsilon_target", "epsilon_user"))])
    return aligned(table)


def _owner_table(report: Figures) -> list[str]:
    """Return ε of each proposal at the corpus's own contributions."""
    table = [["ε by contribution", "ε p95", "robust", "ε max", "robust"]]
    shown = [f"epsilon_user_entity_{kind}{name}" for name in CONTRIBUTION_QUANTILES for kind in ("", "robust_")]
    for (label, _), row in zip(_named_rows(report), report["owner"]["epsilons"], strict=True):
        table.append([label, *(format_epsilon(row[name]) for name in shown)])
    return aligned(table)
