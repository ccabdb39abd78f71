"""Choose the parameters that train: the head, the biases, or low-rank adapters beside frozen weights.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
>>> train_head_only(module, module[1], ModelSpec())
>>> [name for name, parameter in module.named_parameters() if parameter.requires_grad]
['1.weight', '1.bias']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.hub import first_line

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec


def train_head_only(module: nn.Module, head: nn.Module | None, spec: ModelSpec) -> None:
    """Freeze everything but the output layer.

    Args:
        module: the model.
        head: its output layer; ``None`` if it has none.
        spec: of the model, for messages.

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
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in kept)


def train_biases(module: nn.Module, head: nn.Module | None, spec: ModelSpec) -> None:
    """Freeze everything but the biases and a classification head (BitFit; Ben Zaken et al. 2022).

    Args:
        module: the model.
        head: the classification head; ``None`` for the next word.
        spec: of the model, for messages.

    Raises:
        ModelError: the model has no bias.
    """
    kept = {id(p) for p in head.parameters()} if head is not None else set()
    biases = {id(p) for name, p in module.named_parameters() if name.rpartition(".")[2] == "bias"} - kept
    if not biases:
        raise ModelError(f"model.tune is 'bias', and {spec.name!r} has none; allowed for it: full, or model.lora_rank")
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in biases | kept)


def check_peft(spec: ModelSpec) -> None:
    """Raise ModelError if peft is not installed."""
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ModelError(f"lora_rank is {spec.lora_rank}, which needs peft: pip install 'fl-sim[lora]'") from error


def with_adapters(module: Any, spec: ModelSpec, targets: list[str] | str | None, *, output_layer: bool) -> nn.Module:
    """Freeze a transformers model and add trainable low-rank adapters (Hu et al. 2022).

    Args:
        module: the model.
        spec: rank and scale of the adapters.
        targets: names of the layers to adapt, or what peft takes for them.
        output_layer: whether the model predicts the next word.

    Raises:
        ModelError: peft finds no such layer.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        task_type="CAUSAL_LM" if output_layer else "FEATURE_EXTRACTION",
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha or 2 * spec.lora_rank,
        target_modules=targets,
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(m, Conv1D) for m in module.modules()),
    )
    try:
        return get_peft_model(module, config)
    except ValueError as error:
        raise ModelError(
            f"cannot add LoRA to {spec.name!r}: lora_targets is {list(spec.lora_targets)} ({first_line(error)})"
        ) from error
