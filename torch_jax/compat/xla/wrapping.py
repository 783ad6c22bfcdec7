"""``torch_xla.distributed.fsdp.wrap``: the parts of a module that are units of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import wrap


class Wrapper(nn.Module):
    """A module around another, whose attributes it has."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._orig_module = module

    @property
    def module(self) -> nn.Module:
        """Return the module inside."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of this module, or of the one inside."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        """Return a part of a sequence of modules."""
        return self.module[key]  # type: ignore[index]


def _of_pytorch(policy: Callable[..., bool]) -> Callable[..., bool]:
    """Return a policy of PyTorch's whose third argument has PyTorch/XLA's name."""

    def call(module: nn.Module, recurse: bool, unwrapped_params: int, *args: Any, **kwargs: Any):
        return policy(module, recurse, unwrapped_params, *args, **kwargs)

    return functools.update_wrapper(call, policy)


always_wrap_policy = wrap.always_wrap_policy
lambda_auto_wrap_policy = _of_pytorch(wrap.lambda_auto_wrap_policy)
transformer_auto_wrap_policy = _of_pytorch(wrap.transformer_auto_wrap_policy)
size_based_auto_wrap_policy = _of_pytorch(wrap.size_based_auto_wrap_policy)


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Any = (),
    ignored_params: Any = (),
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wrap the parts that a policy chooses; return the module and the wrapped parameters' count."""
    ignored = {id(parameter) for parameter in ignored_params}
    count = sum(p.numel() for p in module.parameters() if id(p) not in ignored)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=count):
        return module, 0
    wrapped = 0
    for name, child in list(module.named_children()):
        if child not in ignored_modules:
            part, inside = recursive_wrap(
                child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs
            )
            setattr(module, name, part)
            wrapped += inside
    rest = count - wrapped
    if only_wrap_children or not auto_wrap_policy(
        module=module, recurse=False, unwrapped_params=rest
    ):
        return module, wrapped
    return wrapper_cls(module, **kwargs), count
