"""A pretended accelerator: a torch device whose tensors live in main memory and cannot be mixed with the CPU's.

Every operation on it is the CPU's, so results are equal bit for bit. What a real accelerator refuses is refused: an
operation on tensors of both devices, and reading values as numpy arrays. Autocast casts the products that it casts on
CUDA. What it cannot show are sums in another order, and kernels that behave otherwise than the CPU's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map_only

NAME = "pretended"
_ACROSS = {"aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::set_"}  # what may read from the other device
_CAST = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")


_PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::baddbmm"}
ROUNDED_PRODUCTS: list[str] = []
"""The products whose factors were rounded to TF32."""


def _tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return float32 rounded to the 11 significant bits of TF32, as tensor cores do."""
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32)


class PretendedTensor(torch.Tensor):
    """A tensor of the device; ``held`` is the CPU's tensor with its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, requires_grad: bool = False) -> PretendedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.held = held
        return made

    def __repr__(self, **options: Any) -> str:
        return f"{self.held!r} on {NAME}"

    def tolist(self) -> Any:  # torch refuses it for every subclass
        return self.held.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:  # torch has none for a subclass without memory of its own
        return self.held.untyped_storage()

    def storage(self) -> Any:
        return self.held.storage()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], _: None, size: Any, stride: Any) -> PretendedTensor:
        return PretendedTensor(parts["held"])

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the held tensors; refuse one that reads from both devices."""
    name = func._schema.name
    to_cpu = name == "aten::_to_copy" and torch.device(kwargs.get("device") or NAME).type == "cpu"
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    foreign = [t for t in tensors if not isinstance(t, PretendedTensor) and t.dim() > 0]
    if foreign and name not in _ACROSS:
        raise RuntimeError(f"{name}: tensors on {NAME}:0 and {foreign[0].device}; allowed: one device")
    owners = {id(t.held): t for t in tensors if isinstance(t, PretendedTensor)}
    held_args, held_kwargs = tree_map_only(PretendedTensor, lambda t: t.held, (tuple(args), kwargs))
    if name in _PRODUCTS and torch.get_float32_matmul_precision() != "highest":
        held_args = (*held_args[:-2], *map(_tf32, held_args[-2:]))
        ROUNDED_PRODUCTS.append(name)
    if "device" in held_kwargs:
        held_kwargs = held_kwargs | {"device": torch.device("cpu")}
    result = func(*held_args, **held_kwargs)
    if to_cpu or (name == "aten::copy_" and not isinstance(args[0], PretendedTensor)):
        return result
    return tree_map_only(torch.Tensor, lambda t: owners[id(t)] if id(t) in owners else PretendedTensor(t), result)


def _empty(size: Sequence[int], *rest: Any, **options: Any) -> PretendedTensor:
    return PretendedTensor(torch.empty(size, dtype=options.get("dtype")))


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> PretendedTensor:
    return PretendedTensor(torch.empty_strided(size, stride, dtype=options.get("dtype")))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    read, written = (t.held if isinstance(t, PretendedTensor) else t for t in (source, target))
    written.copy_(read)
    return target


class _Module(backend_registration._DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _casting(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(NAME)
    cast = tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (args, kwargs))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        return operation(*cast[0], **cast[1])


@functools.cache
def pretended_device() -> torch.device:
    """Return the device; torch learns of it once per process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch.__future__.set_swap_module_params_on_conversion(True)  # keeps tied tables tied, as on CUDA
    backend, casts = torch.library.Library("aten", "IMPL"), torch.library.Library("aten", "IMPL")
    backend.impl("empty.memory_format", _empty, "PrivateUse1")
    backend.impl("empty_strided", _empty_strided, "PrivateUse1")
    backend.impl("_copy_from", _copy_from, "PrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in _CAST:
        operation = getattr(torch.ops.aten, name).default
        casts.impl(name, functools.partial(_casting, operation), "AutocastPrivateUse1")
    pretended_device.libraries = backend, casts, others  # type: ignore[attr-defined]  # they are undone when they are freed
    return torch.device(NAME, 0)
