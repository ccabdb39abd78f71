"""Read a folder that holds low-rank adapters alone: build the model that they were trained on, and merge them into it.

Adapters of a model that ships, or that a package holds, name it as ``model.name`` does, not by a path of one machine,
so that the folder can be read on another one.

>>> is_adapter("no/such/folder")
False
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.hub import first_line
from fl_sim.clients.models.model_names import MINILM, SMALL_GPT2_PUBLIC, SMOLLM2
from fl_sim.input_files import read_bytes

KNOWN_BY_NAME = (MINILM, SMALL_GPT2_PUBLIC, SMOLLM2)
"""Models whose files lie where this machine's package or cache is."""

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BASE = "base_model_name_or_path"


def is_adapter(name: str) -> bool:
    """Return whether ``name`` is a folder of adapters without the model below them."""
    folder = Path(name)
    return (folder / _CONFIG).is_file() and not (folder / "config.json").exists()


def base_of(name: str) -> str:
    """Return the name of the model below the adapters in a folder.

    Raises:
        ModelError: the folder names none, or one that lies in another folder of adapters without end.
    """
    seen = [Path(name).resolve()]
    base = _named_base(name)
    below = base
    while is_adapter(below):
        if Path(below).resolve() in seen:
            raise ModelError(f"model {name!r}: its adapters are trained on themselves; allowed: on a model")
        seen.append(Path(below).resolve())
        below = _named_base(below)
    return base


def _named_base(name: str) -> str:
    try:
        base = json.loads(read_bytes(Path(name) / _CONFIG)).get(_BASE)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"model {name!r}: {_CONFIG} cannot be read ({first_line(error)})") from error
    if not isinstance(base, str) or not base:
        raise ModelError(f"model {name!r} is adapters alone and names no model below them; allowed: a whole model")
    return base


def name_base(adapted: Any, name: str) -> None:
    """Let adapters name their model as ``model.name`` does, if it lies elsewhere on other machines."""
    if name in KNOWN_BY_NAME:
        base = adapted.get_base_model()
        base.config._name_or_path = base.name_or_path = name  # for peft's README.md
        for config in adapted.peft_config.values():
            config.base_model_name_or_path = name


def merged(module: Any, name: str) -> nn.Module:
    """Return a model with the adapters of a folder merged into its weights.

    Args:
        module: the model that they were trained on.
        name: the folder.

    Raises:
        ModelError: peft is missing, the weights are no safetensors, or they do not fit the model.
    """
    try:
        from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict
    except ImportError as error:
        raise ModelError(f"model {name!r} is adapters, which need peft: pip install 'fl-sim[lora]'") from error
    if not (Path(name) / _WEIGHTS).is_file():
        raise ModelError(f"model {name!r} has no {_WEIGHTS}; allowed: adapters as safetensors")
    try:
        adapted = get_peft_model(module, PeftConfig.from_pretrained(name))
        loaded: Any = set_peft_model_state_dict(adapted, load_peft_weights(name, device="cpu"))
    except Exception as error:  # peft's, torch's and safetensors' errors have no common class
        raise ModelError(f"model {name!r}: its adapters cannot be read ({first_line(error)})") from error
    if loaded.unexpected_keys:
        raise ModelError(f"model {name!r}: its adapters fit another model, the first is {loaded.unexpected_keys[0]!r}")
    whole: Any = adapted.merge_and_unload().requires_grad_(True)  # adapters had frozen it
    whole.config._name_or_path = whole.name_or_path = name  # adapters that are trained on it name this folder
    return whole
