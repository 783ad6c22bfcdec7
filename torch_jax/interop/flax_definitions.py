"""A flax module without its arrays: a function of them, for linen and for nnx.

Both kinds have a list of :class:`Variable`, which describes the arrays, and a method ``function``,
which takes arrays in the order of that list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

# Arguments by which linen's modules learn of ``train()`` and ``eval()``: the value while training.
_FLAGS = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}


class Variable(NamedTuple):
    """One array of a flax module."""

    path: tuple[str, ...]  # the names that lead to it, as in ``state_dict``
    collection: str  # linen's collection, or nnx's type of variable
    trained: bool  # whether it is a parameter


class Once:
    """A definition: copies of a module share it, since it never changes."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self


class Linen(Once):
    """A module of linen, and the structure of its variables."""

    def __init__(self, module: Any, structure: Any, paths: Sequence[tuple]):
        """Take ``paths``, those of the leaves of ``structure``."""
        self.module, self.kind, self._structure = module, type(module), structure
        self.variables = []
        for path in paths:
            collection, *names = (jax.tree_util.keystr((part,), simple=True) for part in path)
            self.variables.append(Variable(tuple(names), collection, collection == "params"))
        self._collections = sorted({v.collection for v in self.variables} - {"params"})

    def function(self, method: str, training: bool) -> Callable[..., Any]:
        """Return a method as a function of arrays to its result, and the variables after it.

        Evaluation leaves the statistics of batches alone; it may write a cache.
        """
        mutable = [c for c in self._collections if training or c != "batch_stats"]

        def run(arrays: Sequence[jax.Array], key: Any, args: tuple, kwargs: dict) -> Any:
            variables = jax.tree_util.tree_unflatten(self._structure, arrays)
            rngs = {"params": key}  # for streams without a key, too
            result, new = self.module.apply(
                variables, *args, rngs=rngs, method=method, mutable=mutable, **kwargs
            )
            new = {**variables, **new}
            after, structure = jax.tree_util.tree_flatten(new)
            if structure != self._structure:
                raise ValueError(
                    f"{self.kind.__name__}.{method} leaves variables of another structure: "
                    f"{structure}, not {self._structure}"
                )
            return result, after

        return run


def with_flags(function: Any, training: bool, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Return named arguments with those that say whether a function trains, if it takes any."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*args, **kwargs).arguments
    wanted = (name for name in _FLAGS if name in signature.parameters and name not in given)
    return {name: _FLAGS[name] == training for name in wanted} | kwargs


class Nnx(Once):
    """The graphs of a module of nnx, in training and not, and the variables of both."""

    def __init__(self, module: Any):
        """Take ``module``, which is copied, not kept."""
        from flax import nnx

        module = nnx.clone(module)
        self.kind = type(module)
        self._graphs = {}
        for training in (False, True):
            (module.train if training else module.eval)()
            self._graphs[training], state = nnx.split(module)
        self._flat = list(nnx.to_flat_state(state))
        self._random = [isinstance(v, nnx.RngState) for _, v in self._flat]
        plain = [(path, v) for path, v in self._flat if not isinstance(v, nnx.RngState)]
        self.arrays = [variable.get_value() for _, variable in plain]
        self.variables = [
            Variable(tuple(map(str, path)), type(v).__name__, isinstance(v, nnx.Param))
            for path, v in plain
        ]

    def function(self, method: str, training: bool) -> Callable[..., Any]:
        """Return a method as a function of arrays to its result, and the variables after it."""
        from flax import nnx

        def run(arrays: Sequence[jax.Array], key: Any, args: tuple, kwargs: dict) -> Any:
            given = nnx.from_flat_state(self._filled(arrays, key))
            module = nnx.merge(self._graphs[training], given)
            result = getattr(module, method)(*args, **kwargs)
            nnx.pop(module, nnx.Intermediate)
            graph, state = nnx.split(module)
            if graph != self._graphs[training]:
                raise ValueError(
                    f"{self.kind.__name__}.{method} changes attributes that are no nnx.Variable, "
                    "which a compiled function cannot do: make them nnx.Variable"
                )
            after = zip(self._random, nnx.to_flat_state(state), strict=True)
            return result, [variable.get_value() for random, (_, variable) in after if not random]

        return run

    def _filled(self, arrays: Sequence[jax.Array], key: Any) -> list[tuple]:
        """Return the variables with arrays; streams of random numbers begin again with ``key``."""
        from flax import nnx

        given, filled = iter(arrays), []
        for at, ((path, variable), random) in enumerate(zip(self._flat, self._random, strict=True)):
            value = variable.get_value() if random else next(given)
            if isinstance(variable, nnx.RngKey):
                one = jax.random.fold_in(key, at)
                value = jax.random.split(one, value.shape) if value.shape else one
            filled.append((path, variable.replace(value)))
        return filled
