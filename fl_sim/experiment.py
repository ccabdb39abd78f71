"""One run from start to end, seen from the server: what is prepared, what happens after each round, what is left.

An :class:`Experiment` is everything about a run except where its rounds are computed; :mod:`fl_sim.server_app` gives
it a Flower grid, :mod:`fl_sim.engines` decides what that grid is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from clients.models import LanguageModel, load_model
from clients.workspace import WorkspaceSpec
from data_prep.corpus import Corpus
from data_prep.encode import EncodedSplit, encode_split
from fl_sim import environment, evaluate
from fl_sim.checkpoint import Checkpoint
from fl_sim.config import ConfigError, RunConfig
from fl_sim.planning import Planned, plan_run
from fl_sim.results import ResultsError, RunFolder, default_run_path
from strategies.catalogue import build_strategy
from strategies.messages import arrays_to_vector, vector_to_arrays
from strategies.rounds import BoundedSumStrategy, Federation
from strategies.server_optimizer import build_optimizer

Row = Mapping[str, Any]


class Experiment:
    """A prepared run. Build it with :meth:`create` or :meth:`resume`, then :meth:`execute` it on a grid."""

    def __init__(self, config: RunConfig, corpus: Corpus, planned: Planned, folder: RunFolder) -> None:
        self.config = config
        self.planned = planned
        self.folder = folder
        self.corpus = corpus
        self.observers: list[Callable[[Row], None]] = []
        self.stop_requested = False
        self._model: LanguageModel = load_model(config.model, config.seed)
        self._train = self._encode(config.corpus.train_split)
        self._held_out = self._encode(held_out_split(config, corpus))
        self._held_out_ids = evaluate.held_out_sample(self._held_out, config.evaluation.max_sentences, config.seed)
        self._strategy = self._build_strategy()
        self._round_began = time.monotonic()

    @classmethod
    def create(cls, config: RunConfig) -> Experiment:
        """Check everything that can be checked, then start a new run folder.

        Raises:
            ConfigError, PrivacyError, CorpusError, ModelError, ResultsError: for anything that could not run; before
                the folder is made, so that a mistake leaves nothing behind.
        """
        corpus = open_corpus(config)
        planned = plan_run(config, corpus.ownership(config.corpus.train_split))
        load_model(config.model, config.seed)
        path = config.out or default_run_path(strategy=config.privacy.strategy, seed=config.seed)
        record = {
            "run": config.model_dump(mode="json"),
            "plan": asdict(planned.plan),
            "corpus": {"fingerprint": corpus.fingerprint},
        }
        folder = RunFolder.create(Path(path).absolute(), config=record, environment=environment.describe())
        return cls(config, corpus, planned, folder)

    @classmethod
    def resume(cls, path: str | Path) -> Experiment:
        """Open a run that was stopped, ready to go on after its last checkpoint.

        Raises:
            ResultsError: if it is no run folder, is finished, or its corpus or plan has changed since.
        """
        folder = RunFolder.open(Path(path).absolute())
        config = RunConfig.from_mapping(folder.config["run"])
        corpus = open_corpus(config)
        if corpus.fingerprint != folder.config["corpus"]["fingerprint"]:
            raise ResultsError(f"{path}: the corpus {config.corpus.path} has changed since the run began")
        planned = plan_run(config, corpus.ownership(config.corpus.train_split))
        if asdict(planned.plan) != folder.config["plan"]:
            raise ResultsError(f"{path}: the plan of the run can no longer be reproduced (another version?)")
        result = folder.result
        if result is not None and result["stopped"] != "interrupted":
            raise ResultsError(f"{path}: the run is finished ({result['rounds']} rounds)")
        return cls(config, corpus, planned, folder)

    def execute(self, grid: Grid) -> None:
        """Run the rounds that are left on ``grid`` and finish the run folder."""
        checkpoint = Checkpoint.read(self.folder.checkpoint_dir)
        first_round = 1
        if checkpoint is not None:
            first_round = checkpoint.server_round + 1
            self._model.set_vector(checkpoint.vector)
            self._strategy.optimizer.restore(checkpoint.optimizer)
        self.folder.truncate_metrics(after_round=first_round - 1 if checkpoint is not None else -1)
        self._round_began = time.monotonic()
        self._strategy.start(
            grid,
            vector_to_arrays(self._model.get_vector()),
            num_rounds=self.planned.rounds,
            timeout=self.config.engine.timeout,
            evaluate_fn=self._after_round,
            first_round=first_round,
        )
        self._finish()

    def _after_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Measure, record, and keep the model so that the run can go on from here."""
        self._model.set_vector(arrays_to_vector(arrays))
        row: dict[str, Any] = {"round": server_round}
        if server_round % self.config.evaluation.every == 0 or server_round == self.planned.rounds:
            loss = evaluate.model_loss(self._model, self._held_out, self._held_out_ids)
            row |= {"perplexity": evaluate.perplexity(loss), "loss": loss}
        row |= self.planned.guarantees.after(server_round)
        if server_round > 0:
            row |= self._strategy.tally.metrics()
        row["seconds"] = time.monotonic() - self._round_began
        self._round_began = time.monotonic()
        self.folder.append_metrics(row)
        if server_round % self.config.checkpoint_every == 0 or self._is_last(server_round):
            state = self._strategy.optimizer.state()
            Checkpoint(server_round, self._model.get_vector(), state).write(self.folder.checkpoint_dir)
        for observer in self.observers:
            observer(row)

    def _is_last(self, server_round: int) -> bool:
        return server_round == self.planned.rounds or self.stop_requested

    def _finish(self) -> None:
        metrics = self.folder.metrics()
        rounds = int(metrics["round"].iloc[-1])
        self._model.save(self.folder.model_dir)
        unigram = evaluate.unigram_loss(self._train, self._held_out, self._held_out_ids, self._model.vocabulary_size)
        measured = metrics["perplexity"].dropna()
        self.folder.finish(
            {
                "stopped": self._why_stopped(rounds),
                "rounds": rounds,
                "plan": asdict(self.planned.plan),
                "corpus": {
                    "name": self.corpus.manifest.name,
                    "users": self.planned_users,
                    "sentences": len(self._train.offsets) - 1,
                },
                "perplexity": float(measured.iloc[-1]),
                "initial_perplexity": float(measured.iloc[0]),
                "unigram_perplexity": evaluate.perplexity(unigram),
                **self.planned.guarantees.after(rounds),
                **self.planned.protected.record(),
                "warnings": list(self.planned.warnings),
            }
        )

    @property
    def planned_users(self) -> int:
        """U, how many users hold data."""
        return self._strategy.federation.num_users

    def _why_stopped(self, rounds: int) -> str:
        if rounds < self.planned.rounds:
            return "interrupted"
        return "rounds" if self.planned.rounds == self.planned.plan.rounds else "epsilon_budget"

    def _encode(self, split: str) -> EncodedSplit:
        model = self._model
        return encode_split(
            self.corpus.texts(split),
            model.tokenizer,
            model.max_tokens,
            self._encoded_dir(split),
            bos_id=model.bos_id,
            eos_id=model.eos_id,
        )

    def _encoded_dir(self, split: str) -> Path:
        return self.folder.path / "encoded" / split

    def _build_strategy(self) -> BoundedSumStrategy:
        config = self.config
        workspace = WorkspaceSpec(
            corpus=str(self.corpus.path),
            split=config.corpus.train_split,
            encoded=str(self._encoded_dir(config.corpus.train_split)),
            model=config.model,
            seed=config.seed,
        )
        federation = Federation(
            workspace=workspace.model_dump_json(),
            sentences_per_user=self.corpus.ownership(config.corpus.train_split).sentences_per_user,
            seed=config.seed,
        )
        optimizer = build_optimizer(config.server, self._model.num_parameters)
        return build_strategy(
            self.planned.plan, federation, optimizer, config.local, should_stop=lambda: self.stop_requested
        )


def open_corpus(config: RunConfig) -> Corpus:
    """The corpus of a run, with the splits that the run needs."""
    corpus = Corpus.open(config.corpus.path)
    wanted = {"train_split": config.corpus.train_split, "held_out_split": held_out_split(config, corpus)}
    for key, split in wanted.items():
        if split not in corpus.splits:
            raise ConfigError(f"corpus.{key} is '{split}'; allowed: {', '.join(corpus.splits)}")
    return corpus


def held_out_split(config: RunConfig, corpus: Corpus) -> str:
    """The split on which perplexity is measured: the configured one, else the corpus's own."""
    return config.corpus.held_out_split or corpus.held_out_split
