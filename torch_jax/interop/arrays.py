"""``torch_jax.to_jax`` and ``from_jax``: tensors as arrays, and arrays as tensors, uncopied.

Memory crosses, not history: nothing is differentiated through here. A tensor and the array share
memory until the tensor is written, which gives it another memory: arrays never change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax.core import trees, waking
from torch_jax.memory import border


def to_jax(tree: Any) -> Any:
    """Return a tensor on device ``jax`` as a ``jax.Array``, or a tree with each tensor as one.

    A contiguous tensor that is all of its memory gives that memory, uncopied; a view gives its
    values, computed on the device. Dtypes stay, 64-bit ones too, and so do shardings. Trees are of
    dicts, dataclasses, outputs of models (:mod:`torch_jax.core.trees`); other leaves stay.

    >>> import torch
    >>> x = torch.arange(3, device="jax")
    >>> array = to_jax(x)
    >>> x += 10
    >>> array.tolist(), to_jax({"x": x, "n": 1})["x"].tolist()
    ([0, 1, 2], [10, 11, 12])

    Raises:
      TypeError: a tensor is on another device, or has no array: ``.to("jax")``, ``.to_dense()``.
      RuntimeError: a tensor requires grad: ``.detach()``; or its memory has been deleted by JAX.
    """
    return _each(border.array_of, tree)


def from_jax(tree: Any) -> Any:
    """Return a ``jax.Array`` as a tensor on device ``jax``, or a tree with each array as one.

    The tensor has the memory of the array, its dtype and its sharding. Writing to the tensor gives
    it another memory. NumPy's arrays are copied to the device; Python's numbers, tensors and all
    other leaves stay.

    >>> import jax.numpy as jnp
    >>> array = jnp.ones(2)
    >>> tensor = from_jax(array)
    >>> tensor.add_(1).tolist(), array.tolist()
    ([2.0, 2.0], [1.0, 1.0])

    Raises:
      TypeError: PyTorch has no such dtype, or the array holds keys: ``jax.random.key_data``.
      RuntimeError: the array has been deleted or donated, or is on another platform.
    """
    waking.wake()
    return _each(border.tensor_of, tree)


def _each(convert: Callable[[Any], Any], tree: Any) -> Any:
    leaves, structure = trees.flatten(tree)
    done: list[Any] = []
    for leaf in leaves:
        try:
            done.append(convert(leaf))
        except (TypeError, RuntimeError) as error:
            if not (path := trees.flatten_with_paths(tree)[0][len(done)][0]):
                raise
            raise type(error)(f"{error} (at {path} of the tree)") from error
    return trees.unflatten(structure, done)
