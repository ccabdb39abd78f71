"""What a figure or table is made from: a file of conf/figures (its README.md describes the format), checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fl_sim.config import ConfigError, read_toml
from fl_sim.research.project_roots import project_roots

FOLDER = Path("conf") / "figures"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Words = Annotated[str, Field(min_length=1)]
Settings = dict[str, Any]

_OWN_KEYS = ("seed", "out", "corpus.path", "corpus.feature_cache")  # what the figure itself decides


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class CorpusSource(_Strict):
    """A corpus as ``fl-sim prepare`` makes it, from a folder below ``--data``; or the one that ships.

    Attributes:
        kind: of :data:`fl_sim.cli.corpus_kinds.KINDS`, or ``bundled``.
        source: the folder below ``--data``.
        flags: further flags of ``fl-sim prepare KIND``, by name without dashes in front; ``true`` for one that takes no
            value.
    """

    kind: Words
    source: str | None = None
    flags: dict[str, str | int | bool] = {}

    @model_validator(mode="after")
    def _has_source(self) -> CorpusSource:
        if (self.source is None) != (self.kind == "bundled"):
            raise ValueError(f"source is {self.source!r} and kind is {self.kind!r}; allowed: a folder but for bundled")
        return self


class PointSettings(_Strict):
    """One point of a curve: where it is drawn if x is ``value``, and the settings that make it."""

    x: float | None = None
    set: Settings = {}


class CurveSettings(_Strict):
    """One strategy with its settings, in every panel.

    Attributes:
        name: short, for folders and records.
        label: for people.
        set: settings of ``fl-sim run`` on top of the figure's and the panel's.
        deidentified: train on the panel's corpus without its entities (a mode of ``fl-sim deidentify``); what is held
            out stays as it was.
        entities: only these kinds of entities are sensitive (``fl-sim prepare --entities``).
        points: a run per point and seed, and the figure shows their ends; without them a single run per seed, and the
            figure shows it round by round.
        panels: only in these; empty means all.
        full_only: only with ``--full``.
    """

    name: Name
    label: Words
    set: Settings = {}
    full_only: bool = False
    deidentified: Literal["category", "remove", "surrogate"] | None = None
    entities: str | None = None
    points: tuple[PointSettings, ...] = ()
    panels: tuple[str, ...] = ()


class PanelSettings(_Strict):
    """One picture of a figure: a corpus, and what is set for all of its curves."""

    name: Name
    title: Words
    corpus: str
    set: Settings = {}


class PublishedNumber(_Strict):
    """A number that the paper quotes: ``value`` of ``curve``, at ε ``epsilon`` (as the paper counts it) or at ``x``."""

    panel: str
    curve: Words
    value: float
    epsilon: float | None = None
    x: float | None = None
    section: Words


class TargetLine(_Strict):
    """A figure to reach, drawn as a line: a ``value``; or what lies ``above`` the end of the curve ``of``; or what
    closes the share ``gap`` of the way from the starting model to that end."""

    words: Words
    panel: str | None = None
    value: float | None = None
    of: str | None = None
    above: float | None = None
    gap: float | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> TargetLine:
        given = [self.value is not None, self.above is not None, self.gap is not None]
        if sum(given) != 1 or (self.of is None) != (self.value is not None):
            raise ValueError("allowed: value, or of with one of above and gap")
        return self


class FullSize(_Strict):
    """What ``--full`` puts in place."""

    set: Settings = {}
    seeds: tuple[int, ...] | None = None
    corpora: dict[Name, CorpusSource] = {}


class _Figure(_Strict):
    """What every figure says of itself.

    Attributes:
        title: for people.
        shows: what the paper's figure shows and claims, in our words.
        finding: what came of it here, in plain words; written once it has been run.
    """

    title: Words
    shows: Words
    finding: str = ""


class TrainingFigure(_Figure):
    """Runs over seeds, drawn as utility against ε, rounds, or a value that the points vary.

    Attributes:
        x: ``epsilon``, ``rounds`` or ``value``; or ``curve``, a line of its own for the end of each, where all make the
            same promise.
        x_words: of ``value``, what varies.
        seeds: every curve runs once with each.
        metric: the figure of result.json that the curves show, the less the better.
        baseline: the curve without a guarantee that the others are measured against: the table then has the share of
            the way from the starting model to it that each closes.
        set: settings of all runs.
    """

    kind: Literal["training"] = "training"
    x: Literal["epsilon", "rounds", "value", "curve"]
    x_words: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    metric: Literal["perplexity", "perplexity_per_word", "error"] = "perplexity"
    baseline: str | None = None
    set: Settings = {}
    corpora: dict[Name, CorpusSource] = Field(min_length=1)
    panels: tuple[PanelSettings, ...] = Field(min_length=1)
    curves: tuple[CurveSettings, ...] = Field(min_length=1)
    published: tuple[PublishedNumber, ...] = ()
    targets: tuple[TargetLine, ...] = ()
    full: FullSize = FullSize()

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
            if self.x == "value" and not (curve.points and all(point.x is not None for point in curve.points)):
                raise ValueError(f"curves.{curve.name} has no points with x; allowed with x = 'value': one at least")
        for number in self.published:
            _check_known("published.panel", number.panel, panels)
        for target in self.targets:
            _check_known("targets.panel", target.panel, [None, *panels])
            _check_known("targets.of", target.of, [None, *curves])
        _check_known("baseline", self.baseline, [None, *curves])
        for settings in _all_settings(self):
            for key in settings:
                if key in _OWN_KEYS:
                    raise ValueError(f"{key} cannot be set; the figure decides it (seeds, corpora, --out)")
        return self

    def sized(self, full: bool) -> TrainingFigure:
        """The figure at the size of the paper, or at its own."""
        if not full:
            return self.model_copy(update={"curves": tuple(curve for curve in self.curves if not curve.full_only)})
        changes = {
            "set": {**self.set, **self.full.set},
            "seeds": self.full.seeds or self.seeds,
            "corpora": {**self.corpora, **self.full.corpora},
        }
        return self.model_copy(update=changes)


class EpsilonCurve(_Strict):
    """A mechanism whose ε the paper states, by what its accountant reads.

    Attributes:
        estimator: ``f_e``, ``f_e_plus`` or ``user_level``.
        sensitive_sentences: those with an entity of the category.
        published: what the paper prints, by the number of rounds.
        section: of the paper, where it prints them.
    """

    name: Name
    label: Words
    estimator: Literal["f_e", "f_e_plus", "user_level"]
    sensitive_sentences: int | None = Field(default=None, ge=1)
    published: dict[str, float] = {}
    section: str = ""


class EpsilonPanel(_Strict):
    """A corpus by the numbers that ε needs."""

    name: Name
    title: Words
    users: int = Field(ge=2)
    users_per_round: float = Field(gt=0)
    sentences: int = Field(ge=1)
    curves: tuple[EpsilonCurve, ...] = Field(min_length=1)


class EpsilonFigure(_Figure):
    """ε against rounds, from numbers alone: as published, and what is proven for the same mechanism.

    Attributes:
        entity_users: the reach at which the proven ε of a user and an entity is stated: users who mention it, a
            sentence of each.
    """

    kind: Literal["epsilon"]
    rounds: int = Field(ge=1, le=100_000)
    noise_multiplier: float = Field(gt=0)
    q_e: float = Field(gt=0, le=1)
    delta: float = Field(gt=0, lt=1)
    entity_users: int = Field(ge=1)
    panels: tuple[EpsilonPanel, ...] = Field(min_length=1)


class TableFigure(_Figure):
    """The figures of the paper's Table II of corpora, beside the published ones."""

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
    """Read and check a figure's file.

    Raises:
        ConfigError: names the file and what is wrong in it.
    """
    values = read_toml(path)
    kind = values.get("kind", "training")
    if kind not in _KINDS:
        raise ConfigError(f"{path}: kind is {kind!r}; allowed: {', '.join(_KINDS)}")
    try:
        return _KINDS[kind].model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_describe_errors(error)}") from error


def find_figures() -> dict[str, Path]:
    """The files of conf/figures by their names: those of the working folder, else of the sources.

    Raises:
        ConfigError: there are none.
    """
    for root in project_roots():
        found = {path.stem: path for path in sorted((root / FOLDER).glob("*.toml"))}
        if found:
            return found
    raise ConfigError(f"{FOLDER} is not here; allowed: the folder with the sources of fl_sim, or a figure's own file")


def find_figure(name: str) -> dict[str, Path]:
    """The file of a figure by its name, or of all its parts (``fig3`` is fig3a and fig3b); or a file as it is given.

    Raises:
        ConfigError: there is no such figure.
    """
    if name.endswith(".toml"):
        return {Path(name).stem: Path(name)}
    known = find_figures()
    found = {part: path for part, path in known.items() if part == name or (part[:-1] == name and part[-1].isalpha())}
    if not found:
        raise ConfigError(f"figure is '{name}'; allowed: {', '.join(known)}, or a .toml file")
    return found


def _describe_errors(error: ValidationError) -> str:
    lines = []
    for mistake in error.errors():
        where = ".".join(str(part) for part in mistake["loc"])
        reason = str(mistake["ctx"]["error"]) if mistake["type"] == "value_error" else mistake["msg"]
        if mistake["type"] == "extra_forbidden":
            reason = f"'{where}' is not a key here"
            where = ""
        lines.append(f"{where}: {reason}" if where else reason)
    return "; ".join(lines)


def _check_distinct(key: str, values: Sequence[Any]) -> Sequence[Any]:
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{key} is {list(values)}; allowed: different ones, at least one")
    return values


def _check_known(key: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        names = ", ".join(str(name) for name in allowed if name is not None)
        raise ValueError(f"{key} is '{value}'; allowed: {names}")


def _all_settings(figure: TrainingFigure) -> Iterator[Settings]:
    yield from (figure.set, figure.full.set)
    yield from (panel.set for panel in figure.panels)
    for curve in figure.curves:
        yield curve.set
        yield from (point.set for point in curve.points)
