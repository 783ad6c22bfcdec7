"""A program's view of a value, recorded so that later changes cannot reach it."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import numpy as np
import torch


class Values:
    """The numbers of a tensor, on the CPU."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __repr__(self) -> str:
        return str(self.tensor.tolist())


_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, range, Values
)  # fmt: skip
_KEPT = "_torch_jax_jit"  # where an object keeps what is compiled for its methods
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class Seen(NamedTuple):
    """An object at one moment: the name of its type, and facts about it by name, in their order."""

    kind: str
    facts: tuple[tuple[str, Any], ...]


class Again(NamedTuple):
    """An object that this observation has met before: the how manieth it was."""

    number: int


def observe(value: Any) -> Any:
    """A value with all it holds; what is one object in it stays one, tensors on one storage too."""
    return _Observer().see(value)


class _Observer:
    """One observation: which objects and storages it has met."""

    def __init__(self) -> None:
        self.objects: dict[int, int] = {}
        self.kept: list[Any] = []  # a number stays the number of one object
        self.storages: dict[int, int] = {}

    def see(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        kind = type(value).__name__
        if isinstance(value, torch.Size | tuple):
            return Seen(kind, tuple((str(i), self.see(v)) for i, v in enumerate(value)))
        if isinstance(value, np.generic | BaseException | torch.Generator):
            return Seen(kind, (("is", _words(value)),))
        if isinstance(value, _NAMED):
            return Seen("named", (("name", value.__name__),))
        if id(value) in self.objects:
            return Again(self.objects[id(value)])
        self.objects[id(value)] = len(self.objects)
        self.kept.append(value)
        return Seen(kind, tuple((name, self.see(fact)) for name, fact in self.facts(value)))

    def facts(self, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # subclasses would hear of it
                return self.tensor(value)
        if isinstance(value, np.ndarray):
            return [("dtype", str(value.dtype)), ("shape", value.shape), ("is", value.tolist())]
        found = _attributes(value)
        if isinstance(value, dict):
            for index, (key, element) in enumerate(value.items()):
                if key == "capturable":  # docs/jit.md: some steps are counted on the device
                    continue
                found += [(f"key {index}", key), (f"value {index}", element)]
        elif isinstance(value, set | frozenset):
            found += [("elements", sorted(map(repr, value)))]
        elif hasattr(value, "__len__") and hasattr(value, "__getitem__"):
            found += [(str(i), value[i]) for i in range(len(value))]
        return found

    def tensor(self, value: torch.Tensor) -> list[tuple[str, Any]]:
        storage = value.untyped_storage()._cdata
        return [
            ("device", value.device.type), ("dtype", value.dtype), ("shape", tuple(value.shape)),
            ("stride", value.stride()), ("storage_offset", value.storage_offset()),
            ("requires_grad", value.requires_grad), ("is_leaf", value.is_leaf),
            ("_version", None if value.is_inference() else value._version),
            ("view", value._is_view()),
            ("storage", self.storages.setdefault(storage, len(self.storages))),
            ("values", Values(value.detach().as_subclass(torch.Tensor).cpu().clone())),
            ("grad", value.grad if value.is_leaf else None),
            *((f".{name}", fact) for name, fact in vars(value).items()),
        ]  # fmt: skip


def _attributes(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        parts = ("training", "_parameters", "_buffers", "_modules")
        own = [(n, v) for n, v in vars(value).items() if not n.startswith("_") and n != "training"]
        return [(name, getattr(value, name)) for name in parts] + own
    if isinstance(value, torch.optim.Optimizer):
        return [("param_groups", value.param_groups), ("state", _state(value))]
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return [("state_dict", value.state_dict())]
    slots = [n for kind in type(value).__mro__ for n in vars(kind).get("__slots__", ())]
    found = [(f".{n}", getattr(value, n)) for n in slots if hasattr(value, n) and n[:2] != "__"]
    own = getattr(value, "__dict__", {}).items()
    return found + [(f".{name}", fact) for name, fact in own if name != _KEPT]


def _state(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """The state of an optimizer by parameter; counts as numbers, wherever they are kept."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    known = {i: optimizer.state[p] for i, p in enumerate(parameters) if p in optimizer.state}
    return {i: {n: _count(v) for n, v in state.items()} for i, state in known.items()}


def _count(value: Any) -> Any:
    is_count = isinstance(value, torch.Tensor) and value.dim() == 0
    return value.item() if is_count else value


def _words(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return str(value.get_state().tolist())
    return type(value).__name__ if isinstance(value, BaseException) else repr(value)
