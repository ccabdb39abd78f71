"""The configuration of a figure or table: a checked file of conf/figures, whose README.md describes the format.

>>> curve = CurveSettings(name="a", label="ours", grid={"server.learning_rate": (0.1, 0.2)})
>>> [trial.label for trial in curve.trials()]
['ours: learning_rate 0.1', 'ours: learning_rate 0.2']
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from fl_sim.config import CONFIGURATIONS, ConfigError, read_toml
from fl_sim.data_prep.store.corpus import SHIPPED_CORPORA
from fl_sim.research.rivals.kept_sentences import Kept
from fl_sim.research.study_files import StrictModel, first_problem

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, Field(pattern=_NAME)]
Words = Annotated[str, Field(min_length=1)]
Settings = dict[str, JsonValue]
Missed = Literal["mentions", "names"]

_OWN_KEYS = ("seed", "out", "corpus.path", "corpus.feature_cache")  # the figure decides these


class HeldOutDraw(StrictModel):
    """Users of ``splits`` who are held out by a draw, in runs of ``seeds``, instead of the corpus's own split."""

    splits: tuple[str, ...] = Field(min_length=1)
    users: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)


class CorpusSource(StrictModel):
    """The source of a corpus: a folder below ``--data`` for ``fl-sim prepare KIND``, or a corpus that ships.

    With kind ``prepared`` the source may also be the name of a corpus that ships.
    """

    kind: Words
    source: str | None = None
    flags: dict[str, str | int | float | bool] = Field(default_factory=dict)
    held_out: HeldOutDraw | None = None

    @model_validator(mode="after")
    def _has_source(self) -> CorpusSource:
        if (self.source is None) != self.ships:
            raise ValueError(
                f"source is {self.source!r} and kind is {self.kind!r}; allowed: a folder but for "
                f"{', '.join(SHIPPED_CORPORA)}"
            )
        return self

    @property
    def ships(self) -> bool:
        """Return whether the corpus ships with fl_sim."""
        return self.kind in SHIPPED_CORPORA


class PointSettings(StrictModel):
    """One point of a curve: its position if x is ``value``, and its settings."""

    x: float | None = None
    set: Settings = Field(default_factory=dict)


class CurveSettings(StrictModel):
    """One strategy with its settings, in every panel or in ``panels``.

    Without points there is a run per seed, which the figure shows round by round. ``budget`` is the ε that each of the
    figure's joint ε sets: that of any user with any entity; that of any user, as large as the reference curve's; or
    its own, which it claims. None: the curve's own noise, or none. It trains on the sentences that ``kept`` keeps, de-
    identified if ``deidentified`` says how, and starts from the model of the curve ``after`` in the same panel, which
    has seeds of its own and is no row of the figure. ``claims`` is whose proven ε the method states, if that is not
    its strategy's. ``sentences_per_round`` takes the place of the figure's: the most that a round reads in
    expectation, by what may be known, from which the rate of users or of sentences follows. ``joint`` are those of the
    figure's joint ε at which the curve runs; none means all. ``missed`` takes marks out of its training text, as a
    tagger that misses them would (:func:`fl_sim.research.uedp_paper.figure_corpora.write_missed`).
    """

    name: Name
    label: Words
    set: Settings = Field(default_factory=dict)
    sentences_per_round: float | None = Field(default=None, gt=0)
    grid: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)
    full_only: bool = False
    budget: Literal["joint", "user", "own"] | None = None
    joint: tuple[float, ...] = ()
    missed: Missed | None = None
    kept: Kept | None = None
    deidentified: Literal["category", "remove"] | None = None
    after: str | None = None
    claims: Literal["user", "name"] | None = None
    entities: str | None = None
    points: tuple[PointSettings, ...] = ()
    panels: tuple[str, ...] = ()

    def trials(self) -> list[CurveSettings]:
        """Return the curves of the grid's combinations, in order; the curve itself without a grid."""
        if not self.grid:
            return [self]
        curves = []
        for number, values in enumerate(itertools.product(*self.grid.values())):
            chosen = dict(zip(self.grid, values, strict=True))
            words = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in chosen.items())
            name, label = f"{self.name}-{number}", f"{self.label}: {words}"
            changes = {"name": name, "label": label, "set": {**self.set, **chosen}, "grid": {}}
            curves.append(self.model_copy(update=changes))
        return curves


class PanelSettings(StrictModel):
    """One picture of a figure: a corpus, and settings of all of its curves."""

    name: Name
    title: Words
    corpus: str
    set: Settings = Field(default_factory=dict)


class PublishedNumber(StrictModel):
    """A number of the paper: ``value`` of ``curve``, at ``epsilon`` (by the paper's accountant) or at ``x``."""

    panel: str
    curve: Words
    value: float
    epsilon: float | None = None
    x: float | None = None
    section: Words


class FullSize(StrictModel):
    """Replacements of ``--full``."""

    set: Settings = Field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    corpora: dict[Name, CorpusSource] = Field(default_factory=dict)


class SmallSize(StrictModel):
    """Replacements of ``--small``, which ends in minutes: of settings and seeds, and the only joint ε and panels."""

    set: Settings = Field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    joint: tuple[float, ...] = ()
    panels: tuple[str, ...] = Field(min_length=1)


Size = Literal["default", "small", "full"]


class _Figure(StrictModel):
    """Common fields: what the paper's figure shows and claims, in our words, and our finding, written after the run."""

    title: Words
    shows: Words
    finding: str = ""


class Tuning(StrictModel):
    """How the settings of a figure's curves were chosen; ``trials`` are labelled "method: settings"."""

    command: Words
    words: Words
    trials: dict[str, float] = Field(default_factory=dict)


class AttackSettings(StrictModel):
    """The sizes of the attacks on a run, as options of ``fl-sim leak``; the run's seed is theirs.

    Of the curves with a budget the runs at the joint ε ``joint`` are attacked; None for all.
    """

    max_users: int = Field(default=500, ge=1)
    sentences_per_user: int = Field(default=20, ge=1)
    secrets: int = Field(default=1000, ge=2)
    entities: int = Field(default=200, ge=1)
    candidates: int = Field(default=50, ge=2)
    joint: float | None = None


class TrainingFigure(_Figure):
    """Runs over seeds, drawn as utility against ε, or a value that the points vary.

    ``why_few_seeds`` is the reason for fewer than three, which the record's page states.
    """

    kind: Literal["training"] = "training"
    x: Literal["epsilon", "value", "curve", "joint"]
    x_words: str = ""
    joint: tuple[Annotated[float, Field(gt=0)], ...] = ()
    reference: str | None = None
    tuning: Tuning | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    why_few_seeds: str = ""
    metric: Literal["perplexity", "error"] = "perplexity"
    baseline: str | None = None
    set: Settings = Field(default_factory=dict)
    sentences_per_round: float | None = Field(default=None, gt=0)
    attack: AttackSettings | None = None
    corpora: dict[Name, CorpusSource] = Field(min_length=1)
    panels: tuple[PanelSettings, ...] = Field(min_length=1)
    curves: tuple[CurveSettings, ...] = Field(min_length=1)
    published: tuple[PublishedNumber, ...] = ()
    full: FullSize = FullSize()
    small: SmallSize | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingFigure:
        _check_distinct("seeds", self.seeds)
        panels = _check_distinct("panels", [panel.name for panel in self.panels])
        curves = _check_distinct("curves", [curve.name for curve in self.curves])
        for panel in self.panels:
            _check_known("panels.corpus", panel.corpus, self.corpora)
        for curve in self.curves:
            for name in curve.panels:
                _check_known(f"curves.{curve.name}.panels", name, panels)
            self._check_after(curve)
            if self.x == "value" and not (curve.points and all(point.x is not None for point in curve.points)):
                raise ValueError(f"curves.{curve.name} has no points with x; allowed with x = 'value': one at least")
        self._check_budgets(curves)
        for number in self.published:
            _check_known("published.panel", number.panel, panels)
        _check_known("baseline", self.baseline, [None, *curves])
        small = SmallSize(panels=panels) if self.small is None else self.small
        for name in small.panels:
            _check_known("small.panels", name, panels)
        for x in small.joint:
            _check_known("small.joint", x, self.joint)
        layers = [self.set, self.full.set, small.set, *(panel.set for panel in self.panels)]
        layers += [curve.set for curve in self.curves]
        layers += [point.set for curve in self.curves for point in curve.points]
        for key in itertools.chain(*layers):
            if key in _OWN_KEYS:
                raise ValueError(f"{key} cannot be set; the figure decides it (seeds, corpora, --out)")
        return self

    def _check_after(self, curve: CurveSettings) -> None:
        """Refuse a curve that starts from a model which is not there when it starts, or is one of several."""
        if curve.after is None:
            return
        _check_known(f"curves.{curve.name}.after", curve.after, [one.name for one in self.curves if one.after is None])
        first = next(one for one in self.curves if one.name == curve.after)
        if first.points or first.grid or first.budget or (first.panels and first.panels != curve.panels):
            raise ValueError(
                f"curves.{curve.name}.after is {curve.after}; allowed: a curve with one run for each seed in the same "
                "panels"
            )

    @property
    def beginnings(self) -> frozenset[str]:
        """Return the names of the curves from whose models others start."""
        return frozenset(curve.after for curve in self.curves if curve.after is not None)

    def _check_budgets(self, curves: Sequence[str]) -> None:
        """Refuse budgets without a comparison, and a comparison without a reference."""
        if self.x != "joint":
            given = [curve.name for curve in self.curves if curve.budget is not None]
            if given or self.joint or self.reference or self.attack:
                raise ValueError(f"x is '{self.x}'; allowed with joint, reference, attack or a budget: x = 'joint'")
            return
        _check_distinct("joint", self.joint)
        _check_known("reference", self.reference, curves)
        if self.attack is not None and self.baseline is None:
            raise ValueError("baseline is not given; allowed with attack: a curve without a budget, to compare with")
        for curve in self.curves:
            if curve.points:
                raise ValueError(f"curves.{curve.name} has points; allowed with x = 'joint': budget, or neither")
            for x in curve.joint:
                _check_known(f"curves.{curve.name}.joint", x, self.joint)
            if curve.claims is not None and curve.budget != "own":
                raise ValueError(f"curves.{curve.name}.claims is {curve.claims!r}; allowed: with budget = 'own'")
            if curve.name == self.reference and curve.budget != "joint":
                raise ValueError(f"curves.{curve.name}.budget is {curve.budget!r}; allowed for the reference: 'joint'")

    def sized(self, size: Size) -> TrainingFigure:
        """Return the figure at the paper's size, at its default or at its small one; grids become curves.

        Raises:
            ConfigError: the figure has no small size.
        """
        shown = [curve for curve in self.curves if size == "full" or not curve.full_only]
        curves = tuple(trial for curve in shown for trial in curve.trials())
        changes: dict[str, Any] = {"curves": curves}
        if size == "full":
            changes["set"] = {**self.set, **self.full.set}
            changes["seeds"] = self.full.seeds or self.seeds
            changes["corpora"] = {**self.corpora, **self.full.corpora}
        if size == "small":
            if self.small is None:
                raise ConfigError("--small is given; allowed: for a figure with [small], which this one lacks")
            joint = self.small.joint or self.joint
            changes["set"] = {**self.set, **self.small.set}
            changes["seeds"] = self.small.seeds
            changes["panels"] = tuple(panel for panel in self.panels if panel.name in self.small.panels)
            changes["joint"] = joint
            changes["curves"] = tuple(curve for curve in curves if not curve.joint or {*joint} & {*curve.joint})
        return self.model_copy(update=changes)


class EpsilonCurve(StrictModel):
    """A mechanism whose ε the paper states, by the inputs of its accountant; ``published`` has that ε by rounds."""

    name: Name
    label: Words
    estimator: Literal["f_e", "f_e_plus", "user_level"]
    sensitive_sentences: int | None = Field(default=None, ge=1)
    published: dict[str, float] = Field(default_factory=dict)
    section: str = ""


class EpsilonPanel(StrictModel):
    """A corpus, by the numbers that determine ε."""

    name: Name
    title: Words
    users: int = Field(ge=2)
    users_per_round: float = Field(gt=0)
    sentences: int = Field(ge=1)
    curves: tuple[EpsilonCurve, ...] = Field(min_length=1)


class EpsilonFigure(_Figure):
    """ε against rounds, from numbers alone: as published, and proven for the same mechanism.

    Attributes:
        entity_users: the contribution bound of the entity in the proven ε of a user and an entity: its users, with one
            sentence each.
    """

    kind: Literal["epsilon"]
    rounds: int = Field(ge=1, le=100_000)
    noise_multiplier: float = Field(gt=0)
    q_e: float = Field(gt=0, le=1)
    delta: float = Field(gt=0, lt=1)
    entity_users: int = Field(ge=1)
    panels: tuple[EpsilonPanel, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _prints_what_is_computed(self) -> EpsilonFigure:
        for panel in self.panels:
            for curve in panel.curves:
                for number in curve.published:
                    if not (re.fullmatch("[0-9]{1,6}", number) and 1 <= int(number) <= self.rounds):
                        raise ValueError(
                            f"panels.{panel.name}.curves.{curve.name}.published has {number!r}; allowed: rounds from 1 "
                            f"to {self.rounds}"
                        )
        return self


class TableFigure(_Figure):
    """The counts of the paper's Table II of corpora, beside the published ones."""

    kind: Literal["table_two"]
    corpora: dict[Name, CorpusSource] = Field(min_length=1)
    full: FullSize = FullSize()


Figure = TrainingFigure | EpsilonFigure | TableFigure

_KINDS: dict[str, type[TrainingFigure] | type[EpsilonFigure] | type[TableFigure]] = {
    "training": TrainingFigure,
    "epsilon": EpsilonFigure,
    "table_two": TableFigure,
}


def load_figure(path: Path) -> Figure:
    """Return the checked figure of a file.

    Raises:
        ConfigError: the file is invalid; names the file and the wrong keys.
    """
    values = read_toml(path)
    kind = values.get("kind", "training")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"{path}: kind is {kind!r}; allowed: {', '.join(_KINDS)}")
    try:
        return _KINDS[kind].model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error, _KINDS[kind])}") from error


def find_figures() -> dict[str, Path]:
    """Return the files of conf/figures by name."""
    return {path.stem: path for path in sorted((CONFIGURATIONS / "figures").glob("*.toml"))}


def find_figure(name: str) -> dict[str, Path]:
    """Return the file of a figure, or of all its parts (``fig3``: fig3a and fig3b), by name.

    ``name`` may also be the path of a .toml file. ConfigError if there is no such figure.
    """
    if name.endswith(".toml"):
        stem = Path(name).stem
        if not re.fullmatch(_NAME, stem):
            raise ConfigError(f"figure is '{name}'; allowed: a file whose name has A-Z, a-z, 0-9, _, . and - alone")
        return {stem: Path(name)}
    known = find_figures()
    parts = {part: path for part, path in known.items() if part == name or (part[:-1] == name and part[-1].isalpha())}
    if not parts:
        raise ConfigError(f"figure is '{name}'; allowed: {', '.join(known)}, or a .toml file")
    return parts


def _check_distinct(key: str, values: Sequence[Any]) -> Sequence[Any]:
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{key} is {list(values)}; allowed: different ones, at least one")
    return values


def _check_known(key: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        names = ", ".join(str(name) for name in allowed if name is not None)
        raise ValueError(f"{key} is '{value}'; allowed: {names}")
