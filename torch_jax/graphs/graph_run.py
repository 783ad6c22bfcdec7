"""One run of an fx graph or of an exported function: its draws, and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torch_jax._private import pytorch
from torch_jax.core import errors, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.eager import variants
from torch_jax.memory import generators, storage, transfer

_DEVICE = torch.device(pytorch.DEVICE_TYPE)


class GraphRun:
    """The tracer of one run: its randomness, and the checks that a program cannot raise.

    Generators on the host take no part: a run has the key words that it was given, and does not
    change the states of generators.
    """

    def __init__(self, words: Any, generator: Any = None, mode: Any = None):
        """Take key words of the first draw, or a generator, and a mode that sees operators."""
        self.words, self.generator, self.mode = words, generator, mode
        self.steps = 0  # how many draws there were
        # flags that are false where an index was out of range, with the error to raise when the
        # program has run; kernels append them
        self.checks: list[tuple[Any, str, type[Exception]]] = []

    def draw(self, generator: Any) -> Any:
        """Return key words of the next random operator; no generator is read at each call."""
        words = self.peek()
        if self.generator is not None:
            self.generator.advance(1)
        self.steps += 1
        return words

    def peek(self) -> Any:
        """Return key words that the next random operator will draw."""
        if self.generator is not None:
            return generators.words(*self.generator.where())
        if self.words is None:
            raise tracers.NotTraceableError(
                "the graph draws random numbers, which would be the same at each call of a traced "
                "program: pass key=, a jax.random.key"
            )
        with x64():
            return generators.words_later(self.words, self.steps)

    def watching_inside(self) -> Any:
        """See operators within one, for which PyTorch has taken the mode off, as in ``cond``."""
        return nullcontext() if self.mode is None else self.mode

    def state_of(self, generator: Any) -> torch.Tensor:
        """Return the present state: nothing is drawn from a generator here."""
        return generators.as_state(*generator.where())

    def seeded(self, generator: Any, *_state: Any) -> None:
        """Do nothing: nothing is drawn from a generator, and a seed that is read is a constant."""

    put_to = looked_at_seed = seeded

    def __getattr__(self, name: str) -> Any:
        """Refuse attributes that no graph has, such as steps of optimizers."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise tracers.NotTraceableError(
            f"what needs {name!r} of a trace can be no part of a graph or of an exported program: "
            "use torch_jax.jit, or export the model alone"
        )


class HostConstants(pytorch.OperatorMode):
    """CPU tensors that a function uses, on the device where they meet tensors of it.

    They are neither parameters nor buffers: a plain attribute, one in a list, one of a closure, one
    made with ``device="cpu"``. Operators that take tensors of the CPU, as the lengths of packed
    sequences, get them. A tensor that is moved to the CPU stays on its device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call an operator; again, with CPU tensors that it reads moved, if it wants one device."""
        tensors = storage.tensors_in((args, kwargs))
        if not isinstance(func, OpOverload) or not any(map(storage.is_jax_tensor, tensors)):
            return func(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _DEVICE}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not errors.is_of_two_devices(error):
                raise
        written = {id(tensor) for tensor in variants.written(func, args, kwargs)}
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t if id(t) in written else self._on_device(t), (args, kwargs)
        )
        return func(*args, **kwargs)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        version = 0 if tensor.is_inference() else tensor._version
        known = self._moved.get(id(tensor))
        if known is None or known[1] != version:
            known = self._moved[id(tensor)] = tensor, version, transfer.to_device(tensor)
        return known[2]


@contextmanager
def running(run: GraphRun, autograd: bool = False) -> Iterator[None]:
    """Run a graph, or a function that may differentiate, out of sight of modes, in this context."""
    before, ACTIVE.tracer = ACTIVE.tracer, run
    level: Any = nullcontext() if autograd else pytorch.below_autograd()
    try:
        with pytorch.no_dispatch_modes(), level, _DEVICE, run.watching_inside():
            yield
    finally:
        ACTIVE.tracer = before
