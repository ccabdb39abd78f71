"""Write what attacks found in trained models as one page, beside what is proven of each.

The page shows what the record holds and chooses nothing: every run, every attack, in the order given.

>>> figure = {"value": 0.6, "low": 0.55, "high": 0.65}
>>> attack = {"auc": figure, "advantage": figure, "tpr_at_fpr": {"0.01": figure}, "members": 9, "non_members": 9,
...           "bound": {"proven": True, "unit": "one user", "largest_tpr_at_fpr": {"0.01": 0.7},
...                     "largest_advantage": 0.8}, "verdict": {"state": "within"}}
>>> run = {"run": "runs/a", "strategy": "uedp", "rounds": 3, "delta": 1e-5, "epsilon": {"epsilon_any": 2.0},
...        "raw_text": False, "attacks": {"users": attack}}
>>> "at most 70% is possible" in leak_page({"runs": [run], "beyond": [], "note": "Private."})
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_sim.formats import format_delta, format_epsilon, round_up
from fl_sim.reporting.leak_words import is_remembered
from fl_sim.reporting.pages.charts import IntervalRow, Scale, Series, interval_chart, line_chart
from fl_sim.reporting.pages.html_page import Page

_AREA = Scale(0.4, 1.0, (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), "{:.3g}", guess=0.5)
_RATE = Scale(0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "{:.1%}")
_INDENT = "\u00a0" * 4  # SVG drops ordinary spaces
_EPSILONS = ("epsilon_any", "epsilon_stated", "epsilon_user")
_NAMES = {"uedp": "uedp", "user_level": "user-level DP", "noiseless": "no protection", "published": "published"}

_MEMBERSHIP = {
    "users": (
        "Was this person in the training text?",
        "The attacker has some of a person's text and the model, and asks whether that person's messages trained it "
        "(Kandpal et al. 2023, user inference).",
    ),
}


def leak_page(record: Mapping[str, Any]) -> str:
    """Return the page of a record of ``fl-sim leak`` as HTML.

    Args:
        record: ``Leakage.record()``.
    """
    runs = record["runs"]
    page = Page("What do these models give away?")
    page.paragraph(record["note"], "note")
    for attack in record["beyond"]:
        page.paragraph(f"{attack} is beyond its bound: what its ledger proves is not so.", "note alarm")
    for attack in record.get("above", ()):
        page.paragraph(f"{attack} is above its bound, if scores of one model are independent.", "note alarm")
    page.table(("run", "strategy", "rounds", "ε", "δ", "attacked text"), [_run_row(run) for run in runs])
    page.paragraph(
        "ε is that of the run's own guarantee. A red bar marks the most that any attack can reach by it, on one "
        "person; a run without a bar proves nothing. Intervals: 95 %. Point at a mark for its figures.",
        "soft",
    )
    for name, (heading, words) in _MEMBERSHIP.items():
        found = [(run, run["attacks"][name]) for run in runs if "auc" in run["attacks"].get(name, {})]
        if found:
            page.heading(heading).paragraph(words)
            _membership(page, name, found)
    exposed = [(run, run["attacks"]["canaries"]) for run in runs if "groups" in run["attacks"].get("canaries", {})]
    if exposed:
        _canaries(page, exposed)
    named = [(run, run["attacks"]["entities"]) for run in runs if "groups" in run["attacks"].get("entities", {})]
    if named:
        _entities(page, named)
    _left_out(page, runs)
    return page.html()


def label_of(run: Mapping[str, Any]) -> str:
    """Return a short name for a run: what protects it, with ε, and its folder."""
    words = _NAMES.get(run["strategy"], run["strategy"])
    words += ", names removed" if run["raw_text"] else ""
    epsilon = _epsilon_of(run)
    return f"{words}{f', ε {epsilon}' if epsilon != '–' else ''} ({Path(run['run']).name})"


def _epsilon_of(run: Mapping[str, Any]) -> str:
    given = [run["epsilon"][name] for name in _EPSILONS if run["epsilon"].get(name) is not None]
    return format_epsilon(float(given[0])) if given else "–"


def _run_row(run: Mapping[str, Any]) -> list[str]:
    text = "as it was before names were removed" if run["raw_text"] else "as it trained"
    strategy = _NAMES.get(run["strategy"], run["strategy"])
    return [run["run"], strategy, f"{run['rounds']:,}", _epsilon_of(run), format_delta(run["delta"]), text]


def _membership(page: Page, name: str, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Add the areas, the rates at 1 % and a table of one attack."""
    areas = [IntervalRow(label_of(run), *_ends(attack["auc"])) for run, attack in found]
    page.figure(interval_chart(areas, _AREA), "Area under the curve; 0.5 is guessing.")
    page.paragraph(_conclusion(name, found), "note")
    at_one = [(run, attack) for run, attack in found if attack["tpr_at_fpr"]["0.01"] is not None]
    if at_one:
        rates = [
            IntervalRow(label_of(run), *_ends(attack["tpr_at_fpr"]["0.01"]), *_bound_of(attack))
            for run, attack in at_one
        ]
        caption = "Share of members found, where 1 % of the others are taken for members. Guessing finds 1 %."
        page.figure(interval_chart(rates, _RATE), caption)
    header = ("run", "area", *(f"found at {rate}" for rate in _rates(found)), "advantage", "at most", "verdict")
    page.table(header, [_membership_row(run, attack) for run, attack in found])


def _conclusion(name: str, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Say whether an unprotected model is told from guessing, without which no protection shows."""
    unprotected = [attack for _, attack in found if not _is_bounded(name, attack)]
    if not unprotected:
        return "No unprotected run is beside these, so the figures do not show what the protection is worth."
    if any(is_remembered(name, attack) for attack in unprotected):
        return "The unprotected model remembers: this attack does better than guessing on it."
    return (
        "Nothing can be concluded: on the unprotected model, too, this attack does no better than guessing. It does "
        "not show that the model is safe; a better attack may exist."
    )


def _is_bounded(name: str, attack: Mapping[str, Any]) -> bool:
    """Return whether a run's ledger bounds an attack."""
    if name == "canaries":
        return any(bound["proven"] for bound in attack["bounds"])
    return bool(attack["bound"]["proven"])


def _bound_of(attack: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the largest rate that is possible, and in words."""
    if not attack["bound"]["proven"]:
        return None, ""
    rate = attack["bound"]["largest_tpr_at_fpr"]["0.01"]
    return rate, _at_most(rate)


def _at_most(rate: float) -> str:
    return f"{round_up(100 * rate, 3)}%"


def _rates(found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    return [f"{float(rate):.1%}" for rate in found[0][1]["tpr_at_fpr"]]


def _membership_row(run: Mapping[str, Any], attack: Mapping[str, Any]) -> list[str]:
    bound = attack["bound"]
    return [
        label_of(run),
        _shown(attack["auc"], "{:.3f}"),
        *(_shown(figure, "{:.1%}") for figure in attack["tpr_at_fpr"].values()),
        _shown(attack["advantage"], "{:.1%}"),
        _at_most(bound["largest_advantage"]) if bound["proven"] else "no bound",
        attack["verdict"]["state"],
    ]


def _canaries(page: Page, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Add the exposure of canaries by their repetitions."""
    page.heading("Does the model know planted secrets?").paragraph(
        "Made-up secrets were planted in the text, some said once and some often. Exposure is how many bits "
        "of a secret the model gives away (Carlini et al. 2019); one that it never saw has 1.44 bits on average."
    )
    page.paragraph(_conclusion("canaries", found), "note")
    for owner, words in (
        ("user", "Secrets of one person"),
        ("entity", "Secrets about one name, said by several people"),
    ):
        series = [Series(label_of(run), tuple(_by_repetitions(attack, owner))) for run, attack in found]
        series = [line for line in series if line.points]
        if not series:
            continue
        repeated = sorted({point[0] for line in series for point in line.points})
        most = max(attack["largest_exposure"] for _, attack in found)
        x = Scale(repeated[0], max(repeated[-1], 2 * repeated[0]), tuple(repeated), log=True)
        y = Scale(0.0, most, tuple(range(0, int(most) + 1, 2)), "{:.1f}", guess=1.44)
        page.heading(words, 3).figure(
            line_chart(series, x, y, "how often the secret was said", "exposure, bits"),
            f"Mean exposure; dotted: secrets that were left out. No more than {most:.1f} bits can be seen this way.",
        )

    page.table(
        ("run", "owner", "said", "canaries", "exposure", "left out", "any attack at 1 %", "verdict"),
        [row for run, attack in found for row in _canary_rows(run, attack)],
    )


def _canary_rows(run: Mapping[str, Any], attack: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row per owner and number of repetitions, with what any attack can reach on such a canary."""
    exposure = {(g["owner"], g["repetitions"], g["included"]): g for g in attack["groups"]}
    for bound in attack["bounds"]:
        inside, outside = (exposure.get((bound["owner"], bound["repetitions"], side)) for side in (True, False))
        yield [
            label_of(run),
            bound["owner"],
            "once" if bound["repetitions"] == 1 else f"{bound['repetitions']:,} times",
            f"{sum(group['canaries'] for group in (inside, outside) if group):,}",
            *(_shown(group and _known(group["exposure"]), "{:.2f}") for group in (inside, outside)),
            _at_most(bound["largest_tpr_at_fpr"]["0.01"]) if bound["proven"] else "no bound",
            attack["verdict"]["state"],
        ]


def _known(figure: Mapping[str, float | None]) -> Any:
    """Return a figure, None if it is undefined."""
    return None if figure["value"] is None else figure


def _entities(page: Page, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Add how the models rank names."""
    page.heading("Does the model know the names?").paragraph(
        "A name of a training sentence is masked, and the model ranks it among other names of its kind (Lukas et al. "
        "2023). Names that stand in public text are left out. 50 % is guessing; the start is the model before training."
    )
    page.paragraph(_conclusion("entities", found), "note")
    rows = []
    for run, attack in found:
        group = attack["groups"][0]
        rows.append(IntervalRow(label_of(run), *_ends(group["ahead"])))
        rows.append(IntervalRow(f"{_INDENT}at the start", *_ends(group["initial_ahead"])))
    scale = Scale(0.3, 0.9, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), "{:.0%}", guess=0.5)
    page.figure(interval_chart(rows, scale), "Share of the other names that the true one is ranked before.")
    page.table(
        ("run", "kind", "mentions", "names", "ranked before", "by ratio", "gain over the start", "any attack at 1 %"),
        [row for run, attack in found for row in _entity_rows(run, attack)],
    )


def _entity_rows(run: Mapping[str, Any], attack: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for all names, per kind, and per number of mentions."""
    bound = attack["bound"]
    for group in attack["groups"]:
        mentions = group["mentions"]
        yield [
            label_of(run),
            group["kind"] or "all",
            "any" if mentions is None else "–".join(map(str, mentions)),
            f"{group['entities']:,}",
            *(_shown(group[name], "{:.1%}") for name in ("ahead", "ratio_ahead", "gain")),
            _at_most(bound["largest_tpr_at_fpr"]["0.01"]) if bound["proven"] else "no bound",
        ]


def _by_repetitions(attack: Mapping[str, Any], owner: str) -> Iterator[tuple[float, float, float, float]]:
    for group in attack["groups"]:
        figure = group["exposure"]
        wanted = group["owner"] == owner and group["repetitions"] is not None and group["included"]
        if wanted and figure["value"] is not None:
            yield float(group["repetitions"]), *_ends(figure)


def _left_out(page: Page, runs: Sequence[Mapping[str, Any]]) -> None:
    """Add the attacks that were not tried, with the reason."""
    rows = [
        (label_of(run), name, record["left_out"])
        for run in runs
        for name, record in run["attacks"].items()
        if "left_out" in record
    ]
    if rows:
        page.heading("Not tried").table(("run", "attack", "reason"), rows)


def _ends(figure: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return a figure with the ends of its interval: the figure itself where a single case gave none."""
    value = figure["value"]
    return (value, value, value) if figure["low"] is None else (value, figure["low"], figure["high"])


def _shown(figure: Mapping[str, Any] | None, words: str) -> str:
    """Return a figure with its interval, if it has one; a dash for a rate that too few non-members show."""
    if figure is None or figure["value"] is None:
        return "–"
    if figure["low"] is None:
        return words.format(figure["value"])
    return f"{words.format(figure['value'])} ({words.format(figure['low'])}–{words.format(figure['high'])})"
