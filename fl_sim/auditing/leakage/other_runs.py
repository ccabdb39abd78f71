"""Open runs whose models stand beside an attacked one: references, and runs without the attacked user or entity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fl_sim.auditing.leakage.attacked_run import AttackedRun
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.released_model import released_model
from fl_sim.experiments.run_record import Record
from fl_sim.storage.run_folder import RunFolder


@dataclass(frozen=True, eq=False)
class OtherRun:
    """Hold a finished run of the same task as an attacked one.

    Attributes:
        config: of the run.
        model: the model that it released last.
        corpus: on which it was trained.
    """

    config: RunConfig
    model: LanguageModel
    corpus: Corpus

    @classmethod
    def open(cls, path: str, run: AttackedRun, what: str) -> Self:
        """Open a run folder.

        Args:
            path: the folder.
            run: the attacked run.
            what: the name of the option that gave ``path``, for messages.

        Raises:
            ConfigError: the run has another task than the attacked one.
            ResultsError: it has no model, or its corpus has changed.
        """
        folder = RunFolder.open(path)
        model = released_model(folder)
        if model.task.name != run.model.task.name or model.task.classes != run.model.task.classes:
            raise ConfigError(
                f"{what} is {path}, whose task is another; allowed: {run.model.task.name}, with its classes"
            )
        record = Record.read(folder)
        return cls(record.config, model, record.open_corpus(folder))

    @property
    def split(self) -> str:
        """Return the name of the training split."""
        return self.config.corpus.train_split

    def texts(self) -> set[str]:
        """Return the texts of the training split."""
        return {str(text) for text in self.corpus.texts(self.split).to_pylist()}
