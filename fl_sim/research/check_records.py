"""Compute random points of records again with the present code, and compare every figure.

The same code gives the same figures to the last digit on one type of machine with one version of torch. On another,
sums of floats are rounded otherwise, and training carries that on: a relative difference of up to ``TOLERANCE`` is
taken for rounding, of an ε or z, which no training is in, up to ``EXACT``. Training may carry more on: where the record
names another machine or library, or z differs in its last digits, on which seeded noise depends, and neither ε nor the
corpus nor the start differ, nothing is decided.

>>> found = compared({"perplexity": 380.88, "ε": {"user": math.inf}}, {"perplexity": 378.67, "ε": {"user": math.inf}})
>>> found.figures, found.name, round(found.difference, 4)
(2, 'perplexity', 0.0058)
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.data_prep.records import CorpusError
from fl_sim.formats import aligned, counted, duration, one_line
from fl_sim.research.figure_points import points_of
from fl_sim.research.representations.representation_experiment import describe_environment
from fl_sim.research.representations.studies import reproductions
from fl_sim.research.study_files import Point
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore
from fl_sim.research.uedp_paper.figure_records import read_record
from fl_sim.strategies.primitives import streams

TOLERANCE, EXACT = 1e-3, 1e-6
SAME, ROUNDING, UNDECIDED, DIFFERS = "the same", "rounding", "undecided", "DIFFERS"
SKIPPED, FAILED = "skipped", "FAILED"
_TIMES = ("seconds", "cpu_seconds")
_COMPUTED = re.compile("ε|epsilon|proven|published|^z$|noise_multiplier")
_HEAD = ("record", "point", "figures", "recorded", "again", "difference", "seconds", "verdict")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many figures were compared, the one that differs most, and texts that differ, as words.

    ``difference`` is relative. An ε that differs comes before all that is measured.
    """

    figures: int
    name: str
    recorded: float | None
    again: float | None
    difference: float
    reasons: tuple[str, ...]

    @property
    def is_computed(self) -> bool:
        """Return whether no training is in the figure."""
        return bool(_COMPUTED.search(self.name))

    @property
    def is_rounding(self) -> bool:
        """Return whether the difference may come from rounding."""
        return self.difference <= (EXACT if self.is_computed else TOLERANCE)


@dataclass(frozen=True, slots=True)
class Checked:
    """A point that was computed again, with reasons of a difference, or of why it was not."""

    record: str
    point: str
    verdict: str
    seconds: float
    comparison: Comparison | None
    reasons: tuple[str, ...]

    def row(self) -> list[str]:
        """Return the cells of its row in the table."""
        cells = ["–"] * 4
        if (one := self.comparison) is not None:
            recorded, again = ("–" if value is None else f"{value:.6g}" for value in (one.recorded, one.again))
            cells = [str(one.figures), f"{one.name} {recorded}", again, f"{one.difference:.1g}"]
        return [self.record, self.point, *cells, f"{self.seconds:.0f}", self.verdict]


@dataclass(frozen=True)
class Check:
    """What is to be checked: ``points`` of each record in ``folder``, or of those of ``names``, drawn with ``seed``.

    ``data`` has the raw corpora, ``corpora`` the prepared ones; runs go to the new folder ``out``.
    """

    folder: Path
    names: tuple[str, ...]
    points: int
    seed: int
    data: Path
    corpora: Path
    out: Path
    say: Callable[..., None] = lambda *_: None


def check(asked: Check) -> Iterator[Checked]:
    """Draw points of the records and yield each, computed again and compared.

    Raises:
        ConfigError: there is no record of that name.
        ResultsError: a file is no record.
    """
    drawn = [(path.stem, *one) for path in _files(asked) for one in _drawn(path, asked)]
    known = [point.seconds for _, _, point in drawn if point.seconds is not None]
    cost = f"{duration(sum(known))} when recorded, and {len(drawn) - len(known)} of unknown time"
    asked.say(f"{counted(len(drawn), 'point')} drawn with --seed {asked.seed}: {cost}")
    for name, versions, point in drawn:
        asked.say(f"{name}: {point.words}", point.seconds)
        began = time.monotonic()
        verdict, comparison, reasons = _judged(point, _other_versions(versions))
        checked = Checked(name, point.words, verdict, time.monotonic() - began, comparison, reasons)
        _, _, _, figure, again, *_ = checked.row()
        asked.say("; ".join([f"  {verdict}" + (f": {figure}, again {again}" if comparison else ""), *reasons]))
        yield checked


def _files(asked: Check) -> list[Path]:
    folders = (asked.folder, asked.folder / reproductions.FOLDER)
    files = {path.stem: path for folder in folders for path in sorted(folder.glob("*.json"))}
    if not files:
        raise ConfigError(f"DIR is {asked.folder}; allowed: a folder with records, such as results")
    for name in asked.names:
        if name not in files:
            raise ConfigError(f"NAME is '{name}'; allowed: {', '.join(files)}")
    return [files[name] for name in asked.names or files]


def _drawn(path: Path, asked: Check) -> Iterator[tuple[Mapping[str, Any], Point]]:
    """Yield the points of a record that the seed draws, each once, and the versions of the record."""
    out = asked.out / path.stem
    if path.parent.name == reproductions.FOLDER:
        table = reproductions.read(path)
        points = reproductions.points_of(table, asked.data, out)
        versions = table["environment"] | table["environment"].get("libraries", {})
    else:
        record = read_record(path)
        versions, points = record.versions, points_of(record, CorpusStore(asked.data, asked.corpora, asked.say), out)
    generator = streams.generator(asked.seed, f"points of {path.stem}")
    for number in generator.choice(len(points), min(asked.points, len(points)), replace=False).tolist():
        yield versions, points[number]


def _judged(point: Point, others: tuple[str, ...]) -> tuple[str, Comparison | None, tuple[str, ...]]:
    """Return the verdict on a point, the comparison, and reasons: ``others`` are other versions than the record's."""
    try:
        recorded, again = point.compared()
        comparison = compared(recorded, again)
    except (ValueError, OSError, RuntimeError) as error:
        reason = one_line(error)
        absent = isinstance(error, CorpusError | FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
        return SKIPPED if absent or "pip install" in reason else FAILED, None, (reason,)
    if not comparison.figures:
        return FAILED, None, ("the record has none of its figures",)
    reasons = comparison.reasons
    if comparison.is_rounding:
        return ROUNDING if comparison.difference else SAME, comparison, reasons
    others += _other_noise(recorded, again)
    undecided = others and not reasons and not comparison.is_computed
    return UNDECIDED if undecided else DIFFERS, comparison, reasons + others


def compared(recorded: Any, again: Any) -> Comparison:
    """Compare what both of two JSON values have; times are no figures, and a figure that is null was not recorded."""
    after, figures, reasons = dict(_leaves(again)), list[Comparison](), []
    for name, one in _leaves(recorded):
        if name not in after or one is None:
            continue
        other = after[name]
        if not isinstance(one, str) and not isinstance(other, str):
            figures.append(Comparison(0, name, one, other, _difference(one, other), ()))
        elif one != other:
            reasons.append(f"{name} was {one}, and is {other}")
    most = max(
        figures,
        key=lambda one: (one.is_computed and not one.is_rounding, one.difference),
        default=Comparison(0, "", None, None, 0.0, ()),
    )
    return replace(most, figures=len(figures), reasons=tuple(reasons))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of a JSON value by their path."""
    if isinstance(value, Mapping | list | tuple):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            if key not in _TIMES:
                yield from _leaves(part, f"{name}.{key}".lstrip("."))
    else:
        yield name, str(value) if isinstance(value, bool) else value


def _difference(one: float, other: float | None) -> float:
    """Return the relative difference of two figures."""
    if other is None or not (math.isfinite(one) and math.isfinite(other)):
        return 0.0 if str(one) == str(other) else math.inf  # NaN is that of a part without a token, both times
    return abs(one - other) / max(abs(one), abs(other), 1e-9)


def _other_versions(then: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in words which libraries had other versions, and whether the machine was of another type."""
    environment = describe_environment()
    now = {**environment["libraries"], "platform": environment["platform"]}
    return tuple(
        f"{name} was {then[name]}, and is {now[name]}" for name in now if then.get(name, now[name]) != now[name]
    )


def _other_noise(recorded: Any, again: Any) -> tuple[str, ...]:
    """Say that z differs, on whose last digit seeded noise depends (docs/privacy-threats.md, section 10)."""
    then, now = (point.get("z") if isinstance(point, Mapping) else None for point in (recorded, again))
    return (f"z was {then}, and is {now}, so its seeded noise is another",) if then != now else ()


def table(checked: Sequence[Checked]) -> str:
    """Return the table of checked points, and under it the reasons and the tolerance."""
    lines = aligned([_HEAD, *(one.row() for one in checked)])
    lines += [f"{one.record}, {one.point}: {one.verdict}: {'; '.join(one.reasons)}" for one in checked if one.reasons]
    lines.append(
        f"Of each point the figure that differs most. {ROUNDING}: relatively by at most {TOLERANCE:g}, of ε and z "
        f"{EXACT:g}, as other machines sum floats in another order; the same machine and libraries give the same. "
        f"{UNDECIDED}: by more, of what is measured, on another machine than the record's or under other seeded noise."
    )
    return "\n".join(lines)
