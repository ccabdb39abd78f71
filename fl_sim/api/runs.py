"""Start, resume, open, compare and plot runs.

>>> import tempfile
>>> import fl_sim
>>> tiny = {"hidden": 8, "layers": 1, "heads": 1, "max_tokens": 8}
>>> with tempfile.TemporaryDirectory() as folder:
...     run = fl_sim.run(
...         out=f"{folder}/run",
...         rounds=1,
...         model=tiny,
...         privacy__q_s=0.001,
...         engine__name="inline",
...         evaluation__max_sentences=10,
...     )
...     print(run.finished, len(run.metrics), round(run.epsilon["epsilon_any"], 3))
True 2 0.014
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_sim.api.settings import configuration, named_as_given
from fl_sim.config import RunConfig
from fl_sim.experiments.observers import Observer
from fl_sim.experiments.run_record import Record
from fl_sim.files import owner_only
from fl_sim.formats import printable
from fl_sim.reporting.comparison import Comparison, compare_runs
from fl_sim.reporting.model_card import TextsGuarantee, note_on_texts
from fl_sim.reporting.report import full_report_text, report_text
from fl_sim.reporting.run_facts import read_facts, strategy_of
from fl_sim.reporting.run_list import in_one_line
from fl_sim.storage.run_claim import tidy
from fl_sim.storage.run_folder import Result, ResultsError, RunFolder, listed, path_of
from fl_sim.strategies.ledger import LedgerError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure  # takes half a second to import

    from fl_sim.clients.generation import Continuation

PICTURES = (".png", ".pdf", ".svg")
"""What the name of a picture may end in."""

PRIVATE_BY_USER = (
    "These figures are computed from held-out users' text, without noise: they are for the corpus's owner, and no ε "
    "covers their publication."
)


X = Literal["round", "epsilon", "users"]
"""What a picture of runs shows."""

_NOTEBOOK_DOTS_PER_INCH = 100


@dataclass(frozen=True)
class Plot:
    """A picture that a notebook shows and :meth:`save` writes."""

    figure: Figure

    @owner_only()
    def save(self, path: str | Path) -> Path:
        """Write the picture for the owner alone, whole or not at all; parents of ``path`` are made.

        Raises:
            ResultsError: ``path`` does not end in .png, .pdf or .svg.
        """
        from fl_sim.reporting import plots

        target = Path(path)
        if target.suffix not in PICTURES:
            raise ResultsError(f"{target}: is no picture; allowed: a file that ends in {', '.join(PICTURES)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        return plots.save(self.figure, target)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """What IPython shows: a PNG of 200 dots an inch at half its width."""
        from fl_sim.reporting import plots

        width = round(self.figure.get_figwidth() * _NOTEBOOK_DOTS_PER_INCH)
        return plots.render(self.figure), {"width": width}


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not: what it recorded, and what can be said and drawn of it."""

    folder: RunFolder

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def config(self) -> RunConfig:
        """The configuration that the run began with.

        Raises:
            ResultsError: it cannot be read by this version.
        """
        return Record.read(self.folder).config

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per round, round 0 being the initial model; :mod:`fl_sim.storage.run_folder` lists the columns.

        Raises:
            ResultsError: the file is corrupt.
        """
        return self.folder.metrics()

    @property
    def result(self) -> Result | None:
        """The content of result.json; None for a run that has not finished."""
        return self.folder.result

    @property
    def finished(self) -> bool:
        """Whether the run has ended for good; a run that was interrupted is not finished and can be resumed."""
        return self.folder.finished

    @property
    def diverged(self) -> bool:
        """Whether the run ended because its model was no longer finite; its final figures are NaN then."""
        return self.folder.diverged

    @property
    def strategy(self) -> str:
        """The name of the strategy; "unknown" if the folder does not say."""
        return strategy_of(self.folder)

    @property
    def epsilon(self) -> dict[str, float]:
        """ε after the last round by the metrics' names, such as ``epsilon_user``; inf where nothing is guaranteed.

        Raises:
            LedgerError: the run's ledger does not support its ε.
        """
        facts = read_facts(self.folder)
        if facts.problem:
            raise LedgerError(facts.problem)
        return dict(facts.epsilon)

    @property
    def problems(self) -> list[str]:
        """Why no ε of the run can be trusted, in a line; empty if its ledger supports what it recorded."""
        problem = read_facts(self.folder).problem
        return [problem] if problem else []

    def facts(self) -> dict[str, object]:
        """Return what ``fl-sim report --json`` prints: privacy, utility and settings as plain values."""
        return read_facts(self.folder).record()

    def report(self, html: str | Path | None = None, full: bool = False) -> str:
        """Return what ``fl-sim report`` prints: the run's utility and privacy in some twenty lines.

        Args:
            full: all that is said of the run instead, its settings and the limits of its guarantee included.
            html: also write the run's page there, one file with pictures; it is for the corpus's owner.
        """
        if html is not None:
            compare([self]).save(html)
        return (full_report_text if full else report_text)(read_facts(self.folder))

    def report_users(self) -> str:
        """Return what ``fl-sim report --users`` prints: for whom the model works, by user and on entities.

        Raises:
            ResultsError: the run has recorded nothing by user.
        """
        held_out = read_facts(self.folder).held_out
        if held_out is None:
            raise ResultsError(f"{self.path}: has recorded nothing by user; allowed: a run that has ended")
        return "\n".join([*held_out.lines(), "", PRIVATE_BY_USER, ""])

    def generate(
        self,
        prompts: Sequence[str] = ("",),
        *,
        samples: int = 1,
        max_tokens: int = 40,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        batch_size: int = 16,
        observer: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Continuation]:
        """Continue prompts with the run's model, as ``fl-sim generate`` does; the texts are post-processing.

        Args:
            prompts: A public text to continue; an empty one, the default, lets the model begin.
            samples: The number of texts per prompt.
            max_tokens: The most new tokens per text.
            temperature: What divides the scores; 0 takes the most probable token.
            top_k: Draw from the k most probable tokens; 0 draws from all.
            top_p: Draw from the fewest tokens whose probabilities add up to at least this.
            seed: The seed of all random draws.
            batch_size: The number of texts that are continued together.
            observer: Called after every batch with the number of texts that are done, and that of all.

        Raises:
            ResultsError: the run has no model, has diverged, or its files were changed.
            ModelError: the model predicts classes, an option is out of range, or a prompt fills the context.
        """
        from fl_sim.clients import generation
        from fl_sim.clients.errors import ModelError
        from fl_sim.clients.generation import Sampling
        from fl_sim.experiments.released_model import released_model

        if seed < 0:
            raise ModelError(f"seed is {seed}; allowed: an integer of at least 0")
        sampling = Sampling(max_tokens, temperature, top_k, top_p)
        return generation.generate(
            released_model(self.folder),
            prompts,
            sampling,
            samples=samples,
            seed=seed,
            batch_size=batch_size,
            observer=observer,
        )

    def note_on_texts(self) -> TextsGuarantee:
        """Return the guarantee of generated texts."""
        return note_on_texts(read_facts(self.folder))

    def baseline(self, *, observers: Sequence[Observer] = ()) -> Run:
        """Train the run's twin without privacy, as ``fl-sim resume RUN --baseline`` does, and return it.

        A twin that is there already is not trained again. Every later report of the run shows it.

        Raises:
            ResultsError: the run has not finished, read no sentence, or ``<folder>-noiseless`` is another run.
            ConfigError: the run is noiseless itself.
        """
        from fl_sim.api.noiseless_twin import train_twin

        return train_twin(self, observers)

    def plot(self, x: X | None = None, unit: str | None = None) -> Plot:
        """Draw the run, as :func:`plot_runs` does."""
        return plot_runs([self], x, unit)

    def __repr__(self) -> str:
        """The run in one line, or what is wrong with its folder."""
        try:
            return f"Run({in_one_line(read_facts(self.folder))})"
        except (ValueError, OSError) as error:
            return f"Run({printable(self.path.name)}: {printable(error)})"

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None, for the line, if something is wrong with the run's folder."""
        try:
            return f"<pre>{escape(self.report(), quote=False)}</pre>"
        except (ValueError, OSError):
            return None


def run(
    config: RunConfig | str | Path | Mapping[str, object] | None = None,
    *,
    out: str | Path | None = None,
    observers: Sequence[Observer | str] = (),
    **settings: Any,
) -> Run:
    """Run a configuration from its first round to its end, as ``fl-sim run`` does.

    The first Ctrl-C stops the run after the round under way; :func:`resume` goes on with it.

    Args:
        config: a configuration, the path of a TOML file, or settings; None for the defaults.
        out: the run's folder, new or empty; by default a new one under ``runs/``.
        observers: called besides those of the configuration: objects, which are not recorded with it
            (:mod:`fl_sim.experiments.observers`), or names such as ``"csv"``, as after ``--track``.
        settings: other values for keys of the configuration (docs/configuration.md): ``rounds=3``, ``corpus="irc"`` and
            ``target_epsilon=4``, named as the flags of ``fl-sim run``; any other key as ``model__hidden=64`` or
            ``model={"hidden": 64}``. ``corpus`` may be an open one.

    Returns:
        The run, finished or interrupted.

    Raises:
        ValueError: (one of the project's own subclasses, :class:`~fl_sim.config.ConfigError` for instance) for a
            configuration that cannot be run; nothing is left behind.
        EngineError: the engine cannot be started as configured.
    """
    chosen = configuration(config, settings if out is None else {**settings, "out": out})
    observers = [observers] if isinstance(observers, str) else observers
    named = [observer for observer in observers if isinstance(observer, str)]
    if named:
        chosen = chosen.changed({"observers": tuple(dict.fromkeys([*chosen.observers, *named]))})
    with named_as_given(settings):
        from fl_sim.engines import simulation  # torch, transformers and Flower take seconds to import

        others = [observer for observer in observers if not isinstance(observer, str)]
        return Run(simulation.run(chosen, observers=others))


def resume(folder: Run | str | Path, *, observers: Sequence[Observer] = (), anchor: str | Path | None = None) -> Run:
    """Go on with a run that was interrupted or killed; it ends exactly as if it had not been.

    Args:
        folder: of the run, or the run itself.
        observers: as for :func:`run`.
        anchor: the file that keeps the ledger's head from now on (docs/reliability.md); None for that of the run.

    Raises:
        ResultsError: ``folder`` is no run folder, its run is finished, is at work in another process or is corrupt, or
            its corpus, plan or ε can no longer be reproduced.
        LedgerError: its ledger cannot be trusted, or the folder is an older copy.
    """
    from fl_sim.engines import simulation

    path = folder_of(folder).path
    return Run(simulation.resume(path, observers=observers, anchor=None if anchor is None else str(anchor)))


def open_run(folder: str | Path) -> Run:
    """Open a run folder, finished or not, and remove the private tokens that a killed process may have left in it.

    Raises:
        ResultsError: there is no such folder, it is no run folder, or one of its files is corrupt.
    """
    opened = Run(folder_of(folder))
    tidy(opened.path)
    return opened


def plot_runs(runs: Sequence[Run | str | Path], x: X | None = None, unit: str | None = None) -> Plot:
    """Draw one or more runs over each other, as ``fl-sim report --picture FILE`` does.

    Args:
        runs: At least one run, each open or as the path of its folder.
        x: What the picture shows: ε against training steps (round), utility against ε (epsilon), or one run's utility
            by user (users); by default the first two, side by side.
        unit: Whose ε, a key of :data:`fl_sim.reporting.plots.UNITS`; by default the one that leads in the report of the
            first run with a guarantee, but every unit for a single run against its steps.

    Raises:
        ResultsError: ``x`` or ``unit`` is unknown, or a run has no metrics yet.
    """
    from fl_sim.reporting import plots
    from fl_sim.reporting.comparison import name_of

    folders = [folder_of(run) for run in listed(runs)]
    paths = [folder.path.resolve() for folder in folders]
    named = {name_of(paths, number): read_facts(folder) for number, folder in enumerate(folders)}
    return Plot(plots.run_picture(named, x, unit))


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs, as ``fl-sim report`` does; the first one is the baseline of differences.

    >>> import tempfile
    >>> import fl_sim
    >>> tiny = {"hidden": 8, "layers": 1, "heads": 1, "max_tokens": 8}
    >>> settings = dict(rounds=1, model=tiny, privacy__q_s=0.001, engine__name="inline", evaluation__max_sentences=10)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     runs = [
    ...         fl_sim.run(out=f"{folder}/z{z}", privacy__noise_multiplier=z, seed=z, **settings)
    ...         for z in (4, 8)
    ...     ]
    ...     found = fl_sim.compare(runs)
    ...     print(found.table()[["run", "epsilon"]].round(3).to_string(index=False))
    run  epsilon
     z4    0.014
     z8    0.006

    Args:
        runs: at least one, each open or as the path of its folder.

    Raises:
        ResultsError: there is no run, one is given twice, is no run folder, or is corrupt.
    """
    return compare_runs([folder_of(run) for run in listed(runs)])


def folder_of(run: Run | str | Path) -> RunFolder:
    """Return the folder of a run that is open, or given as the path of its folder.

    Raises:
        ResultsError: it is neither, or no run folder.
    """
    return run.folder if isinstance(run, Run) else RunFolder.open(path_of(run))
