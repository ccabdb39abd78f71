"""Choose the parameters that train: the matrices, the head, the biases, or low-rank adapters beside frozen weights.

A folder that holds adapters alone is read first: the model that they were trained on is built, and they are merged
into it. Adapters of a model that ships, or that a package holds, name it as ``model.name`` does, not by a path of one
machine, so that the folder can be read on another one.

>>> is_adapter("no/such/folder")
False
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.hub import first_line
from fl_sim.clients.models.model_names import MINILM, SMALL_GPT2_PUBLIC, SMOLLM2
from fl_sim.files import read_bytes

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec

KNOWN_BY_NAME = (MINILM, SMALL_GPT2_PUBLIC, SMOLLM2)
"""Models whose files lie where this machine's package or cache is."""

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BASE = "base_model_name_or_path"


def is_adapter(name: str) -> bool:
    """Return whether ``name`` is a folder of adapters without the model below them."""
    folder = Path(name)
    return (folder / _CONFIG).is_file() and not (folder / "config.json").exists()


def base_of(name: str) -> str:
    """Return the name of the model below the adapters in a folder; ModelError if there is none, or no end of them."""
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
    """Return a model with the adapters of a folder, which were trained on ``module``, merged into its weights.

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


def train_head_only(module: nn.Module, head: nn.Module | None, spec: ModelSpec) -> None:
    """Freeze everything but the output layer ``head``, ``None`` if the model has none.

    Raises:
        ModelError: the model has no output layer of its own, because it shares the embedding's table.
    """
    kept = {id(p) for p in head.parameters()} if head is not None else set()
    shared = kept & {id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    if not kept or shared:
        raise ModelError(
            f"model.tune is 'head', and the output layer of {spec.name!r} is its table of word vectors too; "
            "allowed for it: full, bias, or model.lora_rank"
        )
    _train_only(module, kept)


def train_matrices(module: nn.Module, words: nn.Module) -> None:
    """Freeze vectors, and tables other than ``words``, the word vectors, such as those of positions."""
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding) and part is not words}
    _train_only(module, {id(p) for p in module.parameters() if p.dim() >= 2} - tables)


def train_biases(module: nn.Module, head: nn.Module | None, spec: ModelSpec) -> None:
    """Freeze all but the biases and a classification head (BitFit; Ben Zaken et al. 2022); ModelError without any."""
    kept = {id(p) for p in head.parameters()} if head is not None else set()
    biases = {id(p) for name, p in module.named_parameters() if name.rpartition(".")[2] == "bias"} - kept
    if not biases:
        raise ModelError(f"model.tune is 'bias', and {spec.name!r} has none; allowed for it: full, or model.lora_rank")
    _train_only(module, biases | kept)


def _train_only(module: nn.Module, kept: set[int]) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in kept)


def check_peft(rank: int) -> None:
    """Raise ModelError if peft, which adapters of this rank need, is not installed."""
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ModelError(f"lora_rank is {rank}, which needs peft: pip install 'fl-sim[lora]'") from error


def with_adapters(module: Any, spec: ModelSpec, targets: list[str] | str | None, *, output_layer: bool) -> nn.Module:
    """Freeze a transformers model and add trainable low-rank adapters (Hu et al. 2022) to its ``targets``.

    Raises:
        ModelError: peft finds no such layer, or the model has fewer layers than ``spec.lora_layers``.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        task_type="CAUSAL_LM" if output_layer else "FEATURE_EXTRACTION",
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha or 2 * spec.lora_rank,
        target_modules=targets if spec.lora_layers is None else _in_upper_layers(module, spec, targets),
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(m, Conv1D) for m in module.modules()),
    )
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft asks in transformers' old way
            adapted = get_peft_model(module, config)
    except ValueError as error:
        raise ModelError(
            f"cannot add LoRA to {spec.name!r}: lora_targets is {list(spec.lora_targets)} ({first_line(error)})"
        ) from error
    name_base(adapted, spec.name)
    return adapted


def blocks_of(module: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of a transformer's blocks; raise ModelError if it has no such list."""
    lists = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len({type(block) for block in part}) == 1
    ]
    if not lists:
        raise ModelError(
            "model.lora_layers or model.checkpointing is given; allowed: for models whose layers are a list of equal "
            "blocks"
        )
    return max(lists, key=lambda pair: len(pair[1]))


def _in_upper_layers(module: Any, spec: ModelSpec, targets: list[str] | str | None) -> list[str]:
    """Return the full names of the layers to adapt in the uppermost ``spec.lora_layers`` blocks."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN
    from transformers.pytorch_utils import Conv1D

    place, blocks = blocks_of(module)
    most = spec.lora_layers or len(blocks)
    if most > len(blocks):
        raise ModelError(f"model.lora_layers is {most}; allowed for {spec.name!r}: 1 to {len(blocks)}")
    wanted = KNOWN[module.config.model_type] if targets is None else targets
    names = [
        f"{place}.{number}.{name}"
        for number in range(len(blocks) - most, len(blocks))
        for name, part in blocks[number].named_modules()
        if isinstance(part, nn.Linear | Conv1D)
        and (isinstance(wanted, str) or any(f".{name}".endswith(f".{target}") for target in wanted))
    ]
    if not names:
        raise ModelError(f"cannot add LoRA to {spec.name!r}: lora_targets is {list(spec.lora_targets)} (no such layer)")
    return names
