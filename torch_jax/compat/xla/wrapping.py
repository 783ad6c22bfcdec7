"""``torch_xla.distributed.fsdp.wrap``: the parts of a module that are units of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Policy = Callable[..., bool]


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Return ``True``: every part is wrapped."""
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[..., bool]
) -> bool:
    """Return whether a function chooses this part."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    transformer_layer_cls: set[type[nn.Module]],
) -> bool:
    """Return whether a part is of one of these classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Return whether a part has as many parameters, without those of units inside."""
    leaves = {nn.MultiheadAttention} if force_leaf_modules is None else force_leaf_modules
    never = {nn.ModuleList, nn.ModuleDict} if exclude_wrap_modules is None else exclude_wrap_modules
    excluded = leaves if recurse else never
    return unwrapped_params >= min_num_params and not isinstance(module, tuple(excluded))


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Policy,
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
