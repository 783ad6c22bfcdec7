"""What random operators draw from in programs of torchax: an environment's key.

Outside of JAX's transformations that is PyTorch's generator of the device. Inside it is the key of
the program that is traced, which ``interop.jax_jit`` brings along as an input: a dropout mask
differs from call to call. Where there is none, drawing is an error; a constant never takes part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torch_jax._private import jax_core
from torch_jax.core import tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.graphs.interpreter import key_words
from torch_jax.interop.function_run import FunctionRun, begun
from torch_jax.memory import generators, storage, transfer


def is_in_program() -> bool:
    """Whether a run of a PyTorch function inside JAX is under way on this thread."""
    return isinstance(ACTIVE.tracer, FunctionRun)


def is_raw() -> bool:
    """Whether JAX traces a function of the user's, of which no run is under way."""
    return ACTIVE.tracer is None and not jax_core.is_outside_traces()


def next_words() -> Any:
    """Key words of the next draw: of the run, or of the generator of the device.

    None where neither has any: in a function that JAX traces and that was given no key.
    """
    if is_in_program():
        run = ACTIVE.tracer
        return None if run.words is None else run.draw(None)
    return None if is_raw() else generators.default_generator.draw()


def key_of(words: Any) -> Any:
    """Words as a ``jax.random.key``; None stays."""
    if words is None:
        return None
    with x64():
        words = jnp.asarray(words)
        key = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        return jax.random.fold_in(jax.random.fold_in(key, words[2]), words[3])


def as_key(given: Any) -> Any:
    """A seed, a key, or the data of one, as a ``jax.random.key``."""
    if isinstance(given, torch.Tensor):
        given = transfer.as_array(given)
    if isinstance(given, int | np.integer):
        return jax.random.key(int(given))
    if jnp.issubdtype(given.dtype, jax.dtypes.prng_key):
        return given
    return jax.random.wrap_key_data(given) if given.ndim else jax.random.key(given)


def is_key(value: Any) -> bool:
    """Whether an array is a key, or the data of one, as ``jax.random.key_data`` gives."""
    if not isinstance(value, jax.Array):
        return False
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key) or value.dtype == jnp.uint32


@contextmanager
def drawing_from(key: Any) -> Iterator[None]:
    """A block whose random operators draw from a key."""
    words = key_words(as_key(key))
    if is_in_program():
        run, before = ACTIVE.tracer, (ACTIVE.tracer.words, ACTIVE.tracer.steps)
        run.words, run.steps = words, 0
        try:
            yield
        finally:
            run.words, run.steps = before
    elif is_raw() or tracers.is_traced(words):
        with program(words):
            yield
    else:
        high, low = np.asarray(words)[:2].tolist()
        own = generators.default_generator
        before = own.where()
        own.put(high << 32 | low, 0)
        try:
            yield
        finally:
            own.put(*before)


# --- functions that JAX traces by the user's own hand ---------------------------------------------


@contextmanager
def program(words: Any = None) -> Iterator[None]:
    """Operators on the tensors of tracers, as they are called in a function that JAX traces.

    JAX differentiates them one by one, so that ``detach`` has to stop its gradients, too.
    """
    with x64(), begun(FunctionRun(_here, words)), _Detach():
        yield


def _here() -> None:
    """Stands for the user's function, which is not known, in errors."""


_here.__qualname__ = "a function that JAX traces"


class _Detach(TorchFunctionMode):
    """Has ``detach`` stop gradients of JAX."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.detach, torch.Tensor.detach) and storage.is_jax(args[0]):
            array = transfer.as_array(args[0])
            if tracers.is_traced(array):
                return storage.wrap(jax.lax.stop_gradient(array), args[0].dtype)
        return func(*args, **(kwargs or {}))


class Regions(threading.local):
    """The blocks of an environment that are open on this thread."""

    def __init__(self) -> None:
        self.open: list[ExitStack] = []

    def enter(self) -> None:
        """A block begins."""
        stack = ExitStack()
        if is_raw():
            stack.enter_context(program())
        self.open.append(stack)

    def leave(self, *exception: Any) -> None:
        """The last block ends."""
        self.open.pop().__exit__(*exception or (None, None, None))
