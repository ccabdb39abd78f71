"""A comparison of runs as text of 80 columns; every ε is rounded up.

>>> from fl_sim.reporting.bootstrap import PairedDifference
>>> difference_words(PairedDifference("perplexity", -5.17, -6.94, -3.48, 40, 0.9))
'perplexity -5.2 (-6.9 to -3.5); better for 90 % of 40 users'
>>> difference_words(PairedDifference("error", 0.1, float("nan"), float("nan"), 1, 0.0))
'error +10.0 points; better for 0 % of 1 users'
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from fl_sim.formats import format_delta, format_epsilon, printable, printable_lines
from fl_sim.reporting.bootstrap import PairedDifference
from fl_sim.reporting.comparison import ComparedRun, Comparison, Pair, by_value
from fl_sim.reporting.held_out import interval, metric_words
from fl_sim.reporting.recorded import measured_in_words, setting_in_words
from fl_sim.reporting.run_facts import PROVEN, STATES, RunFacts

_WIDTH = 80
_FORMS = {"perplexity": ("{:+,.1f}", "", 1.0), "error": ("{:+.1f}", " points", 100.0)}


def comparison_text(compared: Comparison) -> str:
    """Return a comparison as text that ends with a newline."""
    runs = compared.runs
    blocks = [_heads(runs), _privacy(runs), _utility(runs), _paired(compared.paired), _settings(compared)]
    blocks += [_labelled("Note", compared.notes), _labelled("Warning", _warnings(compared))]
    return printable_lines("\n".join("\n".join(block) + "\n" for block in map(list, blocks) if block))


def end_figures(facts: RunFacts) -> dict[str, str]:
    """Return the held-out figures at a run's end by name, each with its interval; empty if none was recorded."""
    figures = facts.held_out.figures if facts.held_out else {}
    return {metric_words(name): interval(figure, name) for name, figure in figures.items()}


def pair_words(pair: Pair) -> str:
    """Return a paired difference in words, or why there is none."""
    return f"none: {pair.reason}" if pair.difference is None else difference_words(pair.difference)


def difference_words(found: PairedDifference) -> str:
    """Return a difference with its sign and interval (of errors: in points of percent), and for whom it is better."""
    form, unit, scale = _FORMS[found.metric]
    ends = f" ({form.format(scale * found.low)} to {form.format(scale * found.high)})"
    figure = f"{form.format(scale * found.value)}{'' if math.isnan(found.low) else ends}{unit}"
    return f"{found.metric} {figure}; better for {100 * found.better_for:.0f} % of {found.users:,} users"


def _heads(runs: Sequence[ComparedRun]) -> Iterator[str]:
    for run in runs:
        yield from _hanging(f"{run.key}  ", f"{printable(run.name)}: {run.facts.strategy}, {run.facts.ended()}")


def _privacy(runs: Sequence[ComparedRun]) -> Iterator[str]:
    yield f"{'Privacy':<9}{'ε':>9}{'ε missed':>10}{'any user':>10}  {'δ':<8}{'mentions':<10}ε of any user with"
    for run in runs:
        head = run.facts.headline
        if head.state != PROVEN:
            yield f"  {run.key:<7}{'':>3}{STATES[head.state]}"
            continue
        epsilons = map(format_epsilon, (head.epsilon, head.epsilon_missed, head.epsilon_user))
        figures = "{:>9}{:>10}{:>10}".format(*epsilons)
        yield f"  {run.key:<7}{figures}  {format_delta(head.delta):<8}{head.mention_graph or '–':<10}{_entity(run)}"


def _entity(run: ComparedRun) -> str:
    """Return which entity the leading ε protects."""
    bounds, unit = run.facts.bounds, run.facts.headline.unit
    stated = f"an entity in ≤ {bounds.entity_bound if bounds else None}, stated"
    return {"any": "any entity", "user": "no entity"}.get(unit, stated)


def _utility(runs: Sequence[ComparedRun]) -> Iterator[str]:
    yield "Utility, held-out (95 % intervals by bootstrap over users)"
    for run in runs:
        utility, kind = run.facts.utility, run.facts.utility.kind
        if utility.initial is None or utility.final is None:
            yield from _hanging(f"  {run.key:<3}", measured_in_words(run.facts.measured) or "none is recorded")
            continue
        ends = f"{kind.column} {kind.show(utility.initial)} → {kind.show(utility.final)}"
        figures = [f"{name} {words}" for name, words in end_figures(run.facts).items()]
        yield from _hanging(f"  {run.key:<3}", "; ".join([ends, *figures]))


def _paired(pairs: Sequence[Pair]) -> Iterator[str]:
    if pairs:
        yield f"Difference to {pairs[0].baseline} on the same held-out users (below 0: better)"
    for pair in pairs:
        yield from _hanging(f"  {pair.run:<3}", pair_words(pair))


def _settings(compared: Comparison) -> Iterator[str]:
    if compared.settings:
        yield "Settings that differ"
    keys = [run.key for run in compared.runs]
    for name, values in compared.settings.items():
        yield from _hanging(f"  {name}: ", by_value(dict(zip(keys, map(setting_in_words, values), strict=True))))


def _warnings(compared: Comparison) -> list[str]:
    return [f"{', '.join(keys)}: {warning}" for warning, keys in compared.warnings.items()]


def _labelled(label: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from _hanging(f"{label:<9}", text)


def _hanging(label: str, text: str) -> list[str]:
    """Return lines of 80 columns with ``label`` in front, the others indented."""
    indent = " " * min(len(label), 9)
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False)
