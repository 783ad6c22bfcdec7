"""optax's state, taken apart: the parameter of each array, and the hyperparameters.

optax sees the parameters of a group as a dict from names to arrays, and keeps a tree with such
dicts inside, one for each moment. Here that tree becomes a flat list of named leaves, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.core.x64 import x64_as
from torch_jax.interop.crossing import asks_for_wide


class Name(str):
    """The name of a parameter: a dict's key of this class differs in class from other strings."""

    __slots__ = ()


class Leaf(NamedTuple):
    """One array of optax's state."""

    key: str  # its name, such as ``0.mu``
    owner: str | None  # the name of the parameter that it belongs to; None: the whole group's
    number: str | None  # the name of the hyperparameter that it is, if any
    spec: jax.ShapeDtypeStruct  # of its tensor
    random: Any  # for a key of random numbers, the algorithm by which it draws


class Tree:
    """The state of one transformation over parameters of given names, shapes and dtypes."""

    def __init__(self, tx: Any, names: Sequence[str], shapes: Sequence[jax.ShapeDtypeStruct]):
        """Find the form of the state; nothing is computed."""
        self.tx, self.names = tx, tuple(map(Name, names))
        self.wide = asks_for_wide(shape.dtype for shape in shapes)
        self._shapes = tuple(shapes)
        random: list[Any] = []

        def init(parameters: Any) -> Any:
            state = tx.init(parameters)
            leaves = jax.tree_util.tree_leaves(state)
            is_key = (jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) for x in leaves)
            random[:] = (
                jax.random.key_impl(x) if yes else None
                for x, yes in zip(leaves, is_key, strict=True)
            )
            return state, list(map(_plain, leaves, random))

        with x64_as(self.wide):
            state, plain = jax.eval_shape(init, self.parameters(shapes))
        structure: Any
        found, structure = jax.tree_util.tree_flatten_with_path(state)
        self._structure = structure
        paths = list(_hyperparameters(state))
        given = [path[-1].key for path in paths]
        numbers = {  # their names in groups: short ones, paths where one occurs twice
            path: _named(path)[0] if given.count(name) > 1 else in_groups(name)
            for path, name in zip(paths, given, strict=True)
        }
        self.leaves = [  # in the order of JAX
            Leaf(*_named(path), numbers.get(path), spec, algorithm)
            for (path, _), spec, algorithm in zip(found, plain, random, strict=True)
        ]
        # hyperparameters are stored in the groups
        self.kept = [leaf for leaf in self.leaves if leaf.number is None]

    def parameters(self, arrays: Sequence[Any]) -> dict[Name, Any]:
        """Return optax's tree of parameters, or of gradients."""
        return dict(zip(self.names, arrays, strict=True))

    def build(self, kept: Sequence[jax.Array], numbers: dict[str, Any]) -> Any:
        """Return optax's state, from the arrays of :attr:`kept` and hyperparameters by name."""
        given = iter(kept)
        arrays = []
        for leaf in self.leaves:
            array = next(given) if leaf.number is None else numbers[leaf.number]
            if leaf.random is not None:
                array = jax.random.wrap_key_data(array, impl=leaf.random)
            arrays.append(array)
        return jax.tree_util.tree_unflatten(self._structure, arrays)

    def taken_apart(self, state: Any) -> list[jax.Array]:
        """Return the arrays of :attr:`kept`, of a state with the structure of the first one."""
        arrays, structure = jax.tree_util.tree_flatten(state)
        if structure != self._structure:
            raise TypeError(
                f"the transformation of optax gives a state of another structure than its init: "
                f"{structure}, not {self._structure}"
            )
        pairs = zip(self.leaves, arrays, strict=True)
        return [_plain(array, leaf.random) for leaf, array in pairs if leaf.number is None]

    def start(self, *arrays: jax.Array) -> list[jax.Array]:
        """Return the arrays of :attr:`kept` before the first step, for these parameters."""
        with x64_as(self.wide):
            return self.taken_apart(self.tx.init(self.parameters(arrays)))

    def numbers(self) -> dict[str, Any]:
        """Return the transformation's first hyperparameters, as Python's numbers."""
        if not (wanted := [leaf.number for leaf in self.leaves if leaf.number is not None]):
            return {}

        def read() -> dict[str, jax.Array]:
            zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in self._shapes]
            arrays = jax.tree_util.tree_leaves(self.tx.init(self.parameters(zeros)))
            pairs = zip(self.leaves, arrays, strict=True)
            return {leaf.number: array for leaf, array in pairs if leaf.number is not None}

        with x64_as(self.wide):
            values = jax.jit(read)()
        return {name: _python(values[name]) for name in wanted}


def _named(path: tuple) -> tuple[str, str | None]:
    """Return the name of a leaf, and the parameter that it belongs to."""
    owner = next((part.key for part in path if type(getattr(part, "key", None)) is Name), None)
    parts = [part for part in path if type(getattr(part, "key", None)) is not Name]
    shown = jax.tree_util.keystr(tuple(parts), simple=True, separator=".")
    return shown or "state", None if owner is None else str(owner)


def _hyperparameters(state: Any, at: tuple = ()) -> Iterator[tuple]:
    """Yield paths of the numbers of ``inject_hyperparams`` that no schedule of optax's gives."""
    found, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_injected)
    for path, node in found:
        if _is_injected(node):
            here = (*at, *path)
            scheduled = getattr(node, "hyperparams_states", {})
            for name in node.hyperparams.keys() - scheduled.keys():
                yield (*here, jax.tree_util.GetAttrKey("hyperparams"), jax.tree_util.DictKey(name))
            inner = (*here, jax.tree_util.GetAttrKey("inner_state"))
            yield from _hyperparameters(node.inner_state, inner)


def _is_injected(node: Any) -> bool:
    return all(hasattr(node, name) for name in ("hyperparams", "inner_state"))


def in_groups(name: str) -> str:
    """Return the name of a hyperparameter of optax in groups of parameters."""
    return "lr" if name == "learning_rate" else name


def _plain(array: Any, random: Any) -> jax.Array:
    """Return a leaf in the form of a tensor: keys of random numbers as their words."""
    return jnp.asarray(array) if random is None else jax.random.key_data(array)


def _python(value: Any) -> Any:
    """Return a number as a user would write it: 0.001, and not 0.0010000000474974513."""
    value = np.asarray(value)
    if not np.issubdtype(value.dtype, np.integer) and value.dtype != bool:
        return float(str(value.item() if value.dtype == np.float64 else value[()]))
    return value.item()


def program(trees: Sequence[Tree]) -> Callable[..., Any]:
    """Return one step of all groups, as a function of arrays: new parameters, and new states."""
    import optax

    def update(params: Any, grads: Any, kept: Any, numbers: Any, extra: dict[str, Any]) -> Any:
        news, states = [], []
        for tree, values, gradients, arrays, given in zip(
            trees, params, grads, kept, numbers, strict=True
        ):
            with x64_as(tree.wide):
                old, updates = tree.parameters(values), tree.parameters(gradients)
                state = tree.build(arrays, given)
                updates, state = tree.tx.update(updates, state, old, grad=updates, **extra)
                new = optax.apply_updates(old, updates)
                news.append([new[name] for name in tree.names])
                states.append(tree.taken_apart(state))
        return news, states

    return update
