"""Check that a model is no larger than the memory of this machine, before any of it is taken.

A configuration of a few bytes can describe a model of any size: a million layers, a vocabulary of a billion. The sizes
that it declares are checked before anything is imported that could build it; what they amount to is counted where
tensors have shapes and no memory.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> check_declared(ModelSpec(hidden=16384, layers=256))  # doctest: +ELLIPSIS
Traceback (most recent call last):
fl_sim.clients.errors.ModelError: model 'small-gpt2' has ... parameters, ... GB, and ... GB of memory are free; ...
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.architecture import CONFIG_FILE
from fl_sim.clients.models.hub import check_folder, first_line
from fl_sim.clients.models.model_names import SMALL_GPT2
from fl_sim.clients.worker_resources import free_memory
from fl_sim.files import read_bytes

if TYPE_CHECKING:
    from torch import nn

    from fl_sim.clients.models.model_spec import ModelSpec

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers")
_WORDS, _WIDTH = ("vocab_size", "vocabulary"), ("hidden_size", "n_embd", "d_model", "dim", "embedding")
_POSITIONS = "n_positions"  # of a table; max_position_embeddings may stand for a rule
_NUMBERS = (*_WORDS, *_WIDTH, _POSITIONS, "hidden", "num_attention_heads", "n_head", "n_heads")
_LARGEST = 10**12
_FLOAT32 = 4  # bytes


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
        if name in _LAYERS or (name in _NUMBERS and value is not None):
            if type(value) is not int or not 0 <= value <= _LARGEST:
                raise ModelError(
                    f"model {spec.name!r}: {name} is {value!r:.40}; allowed: an integer in [0, {_LARGEST}]"
                )
            if name in _LAYERS:
                check_layers(spec.name, value, spec.max_layers)
    words, width = (next((config[name] for name in names if config.get(name)), 0) for names in (_WORDS, _WIDTH))
    check_count(spec.name, (words + (config.get(_POSITIONS) or 0)) * width)


def config_of(folder: Path) -> dict[str, Any]:
    """Return the configuration in a model's folder, empty if it has none; ModelError if it is no JSON."""
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


def check_count(name: str, parameters: int, bytes_each: int = _FLOAT32) -> None:
    """Raise ModelError if so many parameters of ``bytes_each`` bytes take more than the memory that is free now."""
    needed, free = parameters * bytes_each, free_memory()
    if needed > free:
        raise ModelError(
            f"model {name!r} has {parameters:,} parameters, {needed / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB of memory "
            "are free; allowed: a smaller model, or fewer processes (engine.nodes, engine.num_cpus)"
        )


def check_size(name: str, build: Callable[[], nn.Module], bytes_each: int = _FLOAT32) -> None:
    """Raise ModelError if the module that ``build`` makes takes more memory than is free; it is made without any."""
    import torch
    from torch.overrides import TorchFunctionMode

    class NoDraws(TorchFunctionMode):
        """Skip new weights: to draw normal ones without memory, torch loads its compiler, over a second."""

        def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            return options["tensor"] if func is torch.nn.init.normal_ else func(*args, **options)

    with torch.device("meta"), NoDraws():
        count = sum(parameter.numel() for parameter in build().parameters())
    check_count(name, count, bytes_each)
