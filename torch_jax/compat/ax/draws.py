"""The random numbers of torchax's programs: they are drawn from an environment's key.

Outside of JAX's transformations the source is PyTorch's generator of the device. Inside it is the
key of the program that is traced, which ``interop.jax_jit`` passes as an input: a dropout mask
differs from call to call. Without a key, drawing is an error; a constant never takes its place.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from torch_jax._private import jax_core
from torch_jax.core import tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.graphs.interpreter import key_words
from torch_jax.interop.function_run import FunctionRun, begun, detaches
from torch_jax.memory import generators, storage, transfer


def is_in_program() -> bool:
    """Return whether a run of a PyTorch function inside JAX is under way on this thread."""
    return isinstance(ACTIVE.tracer, FunctionRun)


def is_raw() -> bool:
    """Return whether JAX traces a function of the user's without a run of :class:`FunctionRun`."""
    return ACTIVE.tracer is None and not jax_core.is_outside_traces()


class _Put(threading.local):
    """The key that was last put on this thread, and the place where its draws began."""

    key: Any = None
    place: tuple[Any, Any] = None, None


_put = _Put()


def _place() -> tuple[Any, Any]:
    """Return the place of draws: the words of the run and its steps, or the seed and the offset."""
    if is_in_program():
        return ACTIVE.tracer.words, ACTIVE.tracer.steps
    return generators.default_generator.where()


def _go_to(root: Any, steps: int) -> None:
    if is_in_program():
        ACTIVE.tracer.words, ACTIVE.tracer.steps = root, steps
    else:
        generators.default_generator.put(root, steps)


def key_now() -> Any:
    """Return the key of the next draw, without a draw: the one that was put, until one is drawn.

    It is None in a function that JAX traces without a key.
    """
    if is_raw():
        return None
    root, steps = _place()
    before, at = _put.place
    if steps == at and (root is before or type(root) is type(before) is int and root == before):
        return _put.key
    if is_in_program():
        return None if root is None else key_of(ACTIVE.tracer.peek())
    return key_of(generators.default_generator.get_state().numpy().view(np.uint32))


def put_key(key: Any) -> None:
    """Let draws begin from a key, from here on.

    Raises:
      RuntimeError: JAX traces a function without a key.
    """
    if is_raw() or tracers.is_traced(key) and not is_in_program():
        raise RuntimeError(
            "JAX traces this function, whose draws a key from outside cannot govern: open a block "
            "with env.override_property(prng=key)"
        )
    _begin(key, key_words(as_key(key)))


def _begin(key: Any, words: Any) -> None:
    if not is_in_program():
        high, low = np.asarray(words)[:2].tolist()
        words = high << 32 | low
    _go_to(words, 0)
    _put.key, _put.place = key, _place()


def next_words() -> Any:
    """Return key words of the next draw: of the run, or of the generator of the device.

    They are None in a function that JAX traces without a key.
    """
    if is_in_program():
        run = ACTIVE.tracer
        return None if run.words is None else run.draw(None)
    return None if is_raw() else generators.default_generator.draw()


def key_of(words: Any) -> Any:
    """Return words as a ``jax.random.key``; None stays."""
    if words is None:
        return None
    with x64():
        return generators.key(jnp.asarray(words))


def as_key(given: Any) -> Any:
    """Return a seed, a key, or the data of one, as a ``jax.random.key``."""
    if isinstance(given, torch.Tensor):
        given = transfer.as_array(given)
    if isinstance(given, int | np.integer):
        return jax.random.key(int(given))
    if jnp.issubdtype(given.dtype, jax.dtypes.prng_key):
        return given
    return jax.random.wrap_key_data(given) if given.ndim else jax.random.key(given)


def is_key(value: Any) -> bool:
    """Return whether an array is a key, or the data of one, as ``jax.random.key_data`` gives."""
    if not isinstance(value, jax.Array):
        return False
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key) or value.dtype == jnp.uint32


@contextmanager
def drawing_from(key: Any) -> Iterator[None]:
    """Let the random operators of a block draw from a key."""
    words = key_words(as_key(key))
    put = _put.key, _put.place
    is_traced = not is_in_program() and (is_raw() or tracers.is_traced(words))
    with program(words) if is_traced else nullcontext():
        before = _place()
        _begin(key, words)
        try:
            yield
        finally:
            _go_to(*before)
            _put.key, _put.place = put


# Named in errors where the user's function is not known.
_HERE = SimpleNamespace(__qualname__="a function that JAX traces")


@contextmanager
def program(words: Any = None, function: Any = _HERE) -> Iterator[None]:
    """Run operators on the tensors of arrays, in a block, as a function of JAX calls them.

    JAX differentiates them one by one, also through its own functions among them.
    """
    with x64(), begun(FunctionRun(function, words)), _Gradients():
        yield


class _Gradients(TorchFunctionMode):
    """Stops JAX's gradients where PyTorch stops its own: at ``detach``, and under ``no_grad``.

    JAX does not know the derivative of an ``autograd.Function``'s result, and differentiating it
    raises.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, is_detached = getattr(func, "__name__", ""), detaches(func)
        writes = name.endswith("_") and not name.endswith("__") or name == "__setitem__"
        written = args[0].untyped_storage() if writes and storage.is_jax_tensor(args[0]) else None
        if getattr(written, "is_stopped", False):
            raise tracers.NotTraceableError(
                f"a tensor is written by {name} through what detach() gave of it "
                f"({tracers.user_line()}), which JAX takes for another one: write to the tensor "
                "itself, or use torch_jax.to_jax_function"
            )
        if writes or (torch.is_grad_enabled() and not is_detached):
            return func(*args, **kwargs)
        if not is_detached and _in_autograd_function():
            args, kwargs = _pytree.tree_map_only(
                _is_traced, lambda tensor: _through(_unknown, tensor), (args, kwargs)
            )
            return func(*args, **kwargs)
        leaves = filter(storage.is_jax_tensor, _pytree.tree_leaves((args, kwargs)))
        held = {id(tensor.untyped_storage()) for tensor in leaves}

        def stopped(tensor: torch.Tensor) -> torch.Tensor:
            shares = id(tensor.untyped_storage()) in held
            if shares and not is_detached:  # a view, through which may be written
                return tensor
            made = _through(jax.lax.stop_gradient, tensor)
            made.untyped_storage().is_stopped = shares  # type: ignore[attr-defined]
            return made

        return _pytree.tree_map_only(_is_traced, stopped, func(*args, **kwargs))


def _is_traced(value: Any) -> bool:
    return storage.is_jax_tensor(value) and tracers.is_traced(storage.held_by(value))


def _through(function: Callable[[Any], Any], tensor: torch.Tensor) -> torch.Tensor:
    return storage.wrap(function(transfer.as_array(tensor)), tensor.dtype)


def _in_autograd_function() -> bool:
    """Return whether the forward pass of an ``autograd.Function`` of the user's runs."""
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        first = next(iter(frame.f_locals.values()), None) if frame.f_code.co_argcount else None
        if isinstance(first, torch.autograd.function.FunctionCtx):
            return True
    return False


@jax.custom_jvp
def _unknown(array: Any) -> Any:
    """Return the array, with a derivative that JAX does not know."""
    return array


@_unknown.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise tracers.NotTraceableError(
        "JAX differentiates what an autograd.Function computes, whose backward pass it does not "
        "see: torch_jax.to_jax_function and torch_jax.functional have PyTorch's derivatives"
    )
