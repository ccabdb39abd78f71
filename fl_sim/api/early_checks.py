"""Check before torch is imported what can be checked without it, so that a mistake is told at once.

A run checks all of this again, and much more, once its libraries are there.

>>> check_early(RunConfig.from_mapping({"corpus.path": "no/such/corpus"}))  # doctest: +ELLIPSIS
Traceback (most recent call last):
fl_sim.data_prep.records.CorpusError: ...no/such/corpus: no such folder; make a corpus with fl-sim prepare
"""

from __future__ import annotations

from pathlib import Path

from fl_sim.clients.models.architectures.model_size import check_declared
from fl_sim.clients.models.architectures.model_source import is_import_path, is_registered
from fl_sim.clients.models.hub import check_there
from fl_sim.clients.models.model_names import MINILM, SMOLLM2
from fl_sim.config import RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.observers import OBSERVERS, check_installed
from fl_sim.experiments.placement import check_request
from fl_sim.experiments.plan.run_plan import check_settings
from fl_sim.experiments.run_inputs import check_splits, check_text, with_absolute_paths
from fl_sim.files import check_regular
from fl_sim.storage.open_run import Anchor
from fl_sim.storage.run_claim import RunClaim


def check_early(config: RunConfig) -> None:
    """Check the files, the model's name, the corpus, the strategy's settings and the engine of a configuration.

    Raises:
        ConfigError, CorpusError, EngineError, ModelError, PluginError, PrivacyError, ResultsError: one of them cannot
            be used.
    """
    config = with_absolute_paths(config)
    check_declared(config.model)
    check_installed(config.observers)
    for name in config.observers:
        OBSERVERS.path(name)
    if config.out is not None:
        RunClaim.claim(Path(config.out).expanduser().absolute()).discard()
    Anchor.of(config.anchor, False, "").check_new()
    for path in filter(None, (config.privacy.public_names, config.privacy.public_weights, config.privacy.counts)):
        if Path(path).exists():  # else it is a name, or the run says that it is absent
            check_regular(path)
    corpus = Corpus.open(config.corpus.path)
    check_text(corpus)
    check_splits(config, corpus)
    check_settings(config, corpus.ownership(config.corpus.train_split))
    check_request(config.engine)
    name = config.model.name
    if name in (MINILM, SMOLLM2) or not (is_registered(name) or is_import_path(name)):
        check_there(name)  # a model of transformers; one of another architecture is left to the run
