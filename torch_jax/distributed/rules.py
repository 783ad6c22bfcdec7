"""The sharding of each parameter and buffer of a module, by rules for their names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from jax.sharding import Mesh, NamedSharding
from torch.nn.parameter import is_lazy

from torch_jax.budgets import ROWS_OF_AN_ERROR
from torch_jax.memory import sharding


def tensors_of(module: torch.nn.Module, once: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names with parameters and buffers; a tied one under each of its names, or ``once``."""
    options: dict[str, Any] = {} if once else {"remove_duplicate": False}
    yield from module.named_parameters(**options)
    yield from module.named_buffers(**options)


def shardings(module: torch.nn.Module, mesh: Mesh, spec: Any) -> dict[int, NamedSharding]:
    """Return for each parameter and buffer, by its id, the sharding that it is to have.

    The first rule that fits counts, for a tied tensor that of its first name. A rule that no name
    needs causes a warning, as it may be misspelled; ``*`` may be idle.
    """
    rules = spec if isinstance(spec, Mapping) else {"*": spec}
    found: dict[int, NamedSharding] = {}
    faults, used = [], {"*"}
    for name, tensor in tensors_of(module):
        rule = next((rule for rule in rules if fnmatchcase(name, rule)), None)
        used.add(rule or "")
        if id(tensor) in found:
            continue
        try:
            if rule is None:
                raise ValueError('no rule fits this name ("*": () at the end keeps the rest whole)')
            if is_lazy(tensor):
                raise ValueError("it has no shape yet: call the module once before")
            found[id(tensor)] = sharding.named(mesh, rules[rule], tensor.shape)
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults:
        rest = len(faults) - ROWS_OF_AN_ERROR
        more = f"\n  ... and {rest} more" if rest > 0 else ""
        shown = "".join(f"\n  {fault}" for fault in faults[:ROWS_OF_AN_ERROR])
        raise ValueError(f"{type(module).__name__} cannot be sharded by these rules:{shown}{more}")
    if idle := [rule for rule in rules if rule not in used]:
        warnings.warn(
            f"no parameter or buffer of {type(module).__name__} needs the rules {idle}: they fit "
            "no name, or none that an earlier rule does not fit",
            stacklevel=4,
        )
    return found
