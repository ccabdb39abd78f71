"""Check the sizes that a model declares, before anything is imported that could build it.

A configuration of a few bytes can describe a model of any size: a million layers, a vocabulary of a billion. Its
numbers are read here; what they amount to is counted by `fl_sim.clients.models.architectures.model_size`.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> check_declared(ModelSpec())
>>> check_declared(ModelSpec(hidden=16384, layers=256))  # doctest: +ELLIPSIS
Traceback (most recent call last):
fl_sim.clients.errors.ModelError: model 'small-gpt2' has ... parameters, ... GB; allowed: at most the memory ...
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.architecture import CONFIG_FILE
from fl_sim.clients.models.hub import check_folder, first_line
from fl_sim.clients.models.model_names import SMALL_GPT2
from fl_sim.clients.worker_resources import free_memory
from fl_sim.files import read_bytes

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers")
_WORDS, _WIDTH = ("vocab_size", "vocabulary"), ("hidden_size", "n_embd", "d_model", "dim", "embedding")
_POSITIONS = "n_positions"  # of a table; max_position_embeddings may stand for a rule
_NUMBERS = (*_WORDS, *_WIDTH, _POSITIONS, "hidden", "num_attention_heads", "n_head", "n_heads")
_LARGEST = 10**12
BYTES_PER_PARAMETER = 4  # float32


def check_declared(spec: ModelSpec) -> None:
    """Check the sizes of a spec, and those in the configuration of a model's folder.

    Raises:
        ModelError: a file is no regular file, the configuration is no JSON object, a size is no number, or there are
            more layers than ``spec.max_layers`` or parameters than fit into memory.
    """
    if spec.name == SMALL_GPT2:
        layers, hidden = spec.layers or 2, spec.hidden or 128
        check_count(spec.name, layers * (12 * hidden**2 + 13 * hidden) + spec.max_tokens * hidden)
        check_layers(spec.name, layers, spec.max_layers)
    folder = Path(spec.name)
    if not folder.is_dir():
        return
    check_folder(folder)
    config = config_of(folder)
    for name, value in config.items():
        if name in _LAYERS:
            check_layers(spec.name, _number(spec.name, name, value), spec.max_layers)
        elif name in _NUMBERS and value is not None:
            _number(spec.name, name, value)
    words, width = (next((config[name] for name in names if config.get(name)), 0) for names in (_WORDS, _WIDTH))
    check_count(spec.name, (words + (config.get(_POSITIONS) or 0)) * width)


def config_of(folder: Path) -> dict[str, Any]:
    """Return the configuration in a model's folder; empty if it has none.

    Raises:
        ModelError: it cannot be read, or is no JSON.
    """
    try:
        config = json.loads(read_bytes(folder / CONFIG_FILE))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{CONFIG_FILE} is no JSON ({first_line(error)})"
        raise ModelError(f"cannot load model {str(folder)!r}: {reason}") from error
    return config if isinstance(config, dict) else {}


def check_layers(name: str, layers: Any, most: int) -> None:
    """Raise ModelError if the model called ``name`` has more than ``most`` layers."""
    if isinstance(layers, int) and layers > most:
        raise ModelError(f"model {name!r} has {layers} layers; allowed: at most {most} (model.max_layers)")


def check_count(name: str, parameters: int, bytes_each: int = BYTES_PER_PARAMETER) -> None:
    """Raise ModelError if so many parameters of ``bytes_each`` bytes take more than the memory of this machine."""
    needed, memory = parameters * bytes_each, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ModelError(
            f"model {name!r} has {parameters:,} parameters, {needed / 1e9:,.1f} GB; allowed: at most the memory of "
            f"this machine, {memory / 1e9:,.1f} GB"
        )


def check_free_memory(name: str, parameters: int, bytes_each: int = BYTES_PER_PARAMETER) -> None:
    """Raise ModelError if so many parameters of ``bytes_each`` bytes take more than the memory that is free now."""
    needed, free = parameters * bytes_each, free_memory()
    if needed > free:
        raise ModelError(
            f"model {name!r} has {parameters:,} parameters, {needed / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB of memory "
            "are free; allowed: a smaller model, or fewer processes (engine.nodes, engine.num_cpus)"
        )


def _number(model: str, name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ModelError(f"model {model!r}: {name} is {value!r:.40}; allowed: an integer in [0, {_LARGEST}]")
    return value
