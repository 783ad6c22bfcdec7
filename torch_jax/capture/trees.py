"""The tree of a call's arguments, and its leaves."""

from __future__ import annotations

from typing import Any

import jax
from torch.utils import _pytree as pytree


def flatten(args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The leaves of arguments, and their tree."""
    try:
        return jax.tree_util.tree_flatten((args, kwargs))
    except (TypeError, ValueError):  # a dict whose keys cannot be sorted
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return leaves, _Form(spec)


class _Form:
    """The tree of arguments that JAX cannot flatten."""

    def __init__(self, spec: Any):
        self._spec, self._text = spec, repr(spec)

    def unflatten(self, leaves: list[Any]) -> Any:
        """The arguments, with other leaves."""
        return pytree.tree_unflatten(leaves, self._spec)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._text == other._text

    def __repr__(self) -> str:
        return self._text
