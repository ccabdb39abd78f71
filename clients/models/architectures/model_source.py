"""Resolve the name of a model to its architecture, and to the folder of its weights if it was saved.

A name is, in this order of precedence: a model that ships, an entry point of the group ``fl_sim.models``, a folder, an
import path ``module:attribute``, a model of the Hugging Face hub.

>>> source_of("small-gpt2").architecture.tokenizer
'bundled'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.architecture import ARCHITECTURE_KEY, SETTINGS_KEY, Architecture
from fl_sim.clients.models.architectures.model_size import config_of
from fl_sim.clients.models.architectures.transformer import PRETRAINED
from fl_sim.clients.models.model_names import (
    AWD_LSTM,
    MINILM,
    SMALL_AWD_LSTM_PUBLIC,
    SMALL_GPT2,
    SMALL_GPT2_PUBLIC,
    SMOLLM2,
)
from fl_sim.formats import one_line
from fl_sim.plugins import PluginError, Registry

if TYPE_CHECKING:
    from torch import nn

    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary

_HERE = "fl_sim.clients.models.architectures"
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

MODELS = Registry(
    "fl_sim.models",
    "model",
    {
        SMALL_GPT2_PUBLIC: f"{_HERE}.transformer:SMALL_GPT2_PUBLIC",
        SMALL_GPT2: f"{_HERE}.transformer:SMALL_GPT2",
        AWD_LSTM: f"{_HERE}.awd_lstm:AWD_LSTM",
        SMALL_AWD_LSTM_PUBLIC: f"{_HERE}.awd_lstm:SMALL_AWD_LSTM_PUBLIC",
        MINILM: f"{_HERE}.transformer:PRETRAINED",
        SMOLLM2: f"{_HERE}.transformer:PRETRAINED",
    },
    check=lambda part: isinstance(part, Architecture) or (isinstance(part, type) and issubclass(part, Architecture)),
    interface="a subclass or an instance of fl_sim.clients.models.Architecture",
)


@dataclass(frozen=True)
class ModelSource:
    """What the name of a model stands for.

    Attributes:
        architecture: what builds and runs it.
        name: under which the architecture is registered, or its import path.
        folder: where the architecture saved the model; ``None`` for all others, transformers models included.
        sizes: the settings with which it was saved.
        ships: whether the architecture is one of ours.
    """

    architecture: Architecture
    name: str
    folder: Path | None = None
    sizes: Mapping[str, object] = field(default_factory=dict)
    ships: bool = True

    @property
    def settings(self) -> frozenset[str]:
        """Return the sizes of a spec that are read; a saved model has its own."""
        return self.architecture.settings if self.folder is None else frozenset()

    def tokenizer_name(self, spec: ModelSpec) -> str:
        """Return the name of the spec's tokenizer, or of the one that a spec without any stands for."""
        own = spec.name if self.folder is not None else self.architecture.tokenizer or spec.name
        return spec.tokenizer or own

    def original(self, spec: ModelSpec) -> ModelSpec:
        """Return the spec under the name and with the sizes of the architecture, also if the model was saved."""
        return spec if self.folder is None else spec.model_copy(update={"name": self.name, **self.sizes})

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        """Build the module, or load it from its folder; raise ModelError if that fails."""
        if self.folder is not None:
            return self.architecture.load(self.folder, self.original(spec), vocabulary, output_layer=output_layer)
        return self.architecture.build(spec, vocabulary, output_layer=output_layer)


def is_registered(name: str) -> bool:
    """Return whether a model ships or is installed under this name, so that no folder is meant by it."""
    return name in MODELS.names()


def is_import_path(name: str) -> bool:
    """Return whether a name has the form ``module:attribute``."""
    return _IMPORT_PATH.fullmatch(name) is not None


def source_of(name: str) -> ModelSource:
    """Return what the name of a model stands for.

    Raises:
        ModelError: the name is an import path or entry point whose object cannot be imported or is no architecture, or
            a folder that names such an architecture.
    """
    if is_registered(name):
        return ModelSource(_registered(name), name, ships=name in MODELS.built_in)
    if Path(name).is_dir():
        return _saved(Path(name))
    if is_import_path(name):
        return ModelSource(_registered(name), name, ships=False)
    return ModelSource(PRETRAINED, name)


def _registered(name: str) -> Architecture:
    """Return the architecture of a registered name or import path; a class is made without arguments."""
    try:
        part = MODELS.load(name)
        return part() if isinstance(part, type) else part
    except PluginError as error:
        raise ModelError(str(error)) from error
    except Exception as error:
        raise ModelError(f"model {name!r} cannot be made ({one_line(error)})") from error


def _saved(folder: Path) -> ModelSource:
    """Return the source of a folder: of a model that an architecture saved its own way, or of transformers.

    A folder's import path is not followed, because a folder must not say which code runs.
    """
    config = config_of(folder)
    name = AWD_LSTM if config.get("model_type") == AWD_LSTM else config.get(ARCHITECTURE_KEY)
    if name is None:
        return ModelSource(PRETRAINED, str(folder))
    if not isinstance(name, str) or not is_registered(name):
        raise ModelError(
            f"model '{folder}' is of the architecture {name!r}; allowed: {', '.join(MODELS.names())} "
            "(docs/extending.md says how to register one)"
        )
    sizes = config.get(SETTINGS_KEY)
    sizes = sizes if isinstance(sizes, dict) else {}
    return ModelSource(_registered(name), name, folder, sizes, ships=name in MODELS.built_in)
