"""Runs fx graphs on tensors of device jax, with the kernels that serve it eagerly.

Graphs come from ``make_fx``, ``torch.export``, ``torch.fx.symbolic_trace`` or AOTAutograd, most of
them made of a model on the CPU: every device they name is ``jax`` here. Below autograd there is
nothing but the kernels; under a JAX trace they inline into the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_jax._private import pytorch
from torch_jax.core import active, errors, tracers
from torch_jax.core.x64 import x64
from torch_jax.dispatch import control_flow, ladder
from torch_jax.memory import generators, storage, transfer
from torch_jax.memory.storage import is_jax

_DEVICE = torch.device(pytorch.DEVICE_TYPE)


class Draws:
    """The randomness of one run, and what a program cannot raise itself.

    Takes the place of a capture in :data:`torch_jax.core.active.ACTIVE`.

    Attributes:
      words: the key words of the first draw, uint32 ``[4]``; without them ``generator`` draws.
      steps: how many draws there were.
      mode: a ``TorchDispatchMode`` that is to see every operator.
      checks: flags that are false where an index was out of range, with the error to raise.
    """

    def __init__(self, words: Any, generator: Any = None, mode: Any = None):
        self.words, self.generator, self.steps = words, generator, 0
        self.mode = mode
        self.checks: list[tuple[Any, str, type[Exception]]] = []
        self.failure: Exception | None = None
        self._again: list[Any] = []

    def draw(self, generator: Any) -> Any:
        """Key words of the next random operator."""
        if self._again:
            return self._again[-1]
        words = self.peek()
        if self.generator is not None:
            self.generator.advance(1)
        self.steps += 1
        return words

    def host_words(self, generator: Any) -> Any:
        """Of a CPU generator: it is not asked, for a program cannot."""
        return self.draw(generator)

    def peek(self) -> Any:
        """Key words that the next random operator will draw."""
        if self.generator is not None:
            return generators.words(*self.generator.where())
        if self.words is None:
            raise tracers.NotTraceableError(
                "the graph draws random numbers, which would be the same at each call of a traced "
                "program: pass key=, a jax.random.key"
            )
        with x64():
            return _moved_on(self.words, self.steps)

    @contextmanager
    def again(self, words: Any) -> Iterator[None]:
        """Draw these words."""
        self._again.append(words)
        try:
            yield
        finally:
            self._again.pop()

    def watching_inside(self) -> Any:
        """See operators again, within an operator that calls Python functions."""
        return nullcontext() if self.mode is None else self.mode

    def unseen(self) -> Any:
        """Run Python that is none of the user's, such as PyTorch's own compiler."""
        return pytorch.no_dispatch_modes()

    def see(self, tensor: torch.Tensor) -> None:
        """What a graph holds is known."""

    def state_of(self, generator: Any) -> torch.Tensor:
        """The state of a generator, from which nothing is drawn here."""
        return generators.as_state(*generator.where())

    def put_to(self, generator: Any, *_state: Any) -> None:
        """Nothing is drawn from it."""

    seeded = looked_at_seed = put_to

    def __getattr__(self, name: str) -> Any:
        """What only a function under ``torch_jax.jit`` has, such as the steps of optimizers."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise tracers.NotTraceableError(
            f"what needs {name!r} of a trace can be no part of a graph or of an exported program: "
            "use torch_jax.jit, or export the model alone"
        )


def _moved_on(words: Any, steps: int) -> Any:
    """Key words so many draws later; a program has fewer than 2^32."""
    low = words[3] + np.uint32(steps)
    carry = (low < words[3]).astype(np.uint32) if steps else np.uint32(0)
    return jnp.stack([words[0], words[1], words[2] + carry, low])


@contextmanager
def running(draws: Draws, autograd: bool = False) -> Iterator[None]:
    """Context in which graphs run: below autograd, out of sight of modes, with these draws.

    With ``autograd`` functions run, which may differentiate.
    """
    before, active.ACTIVE.capture = active.ACTIVE.capture, draws
    level: Any = pytorch.below_autograd()
    if autograd:  # backward passes on this thread, which is the one that traces
        level = torch.autograd.set_multithreading_enabled(False)
    try:
        with pytorch.no_dispatch_modes(), level, _DEVICE, draws.watching_inside():
            yield
    finally:
        active.ACTIVE.capture = before


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor that a graph module and the graphs inside it hold, by qualified name.

    >>> sorted(tensors_of(fx.symbolic_trace(torch.nn.Linear(2, 1))))
    ['bias', 'weight']
    """
    found: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    found |= dict(module.named_buffers(remove_duplicate=False))
    for prefix, part in module.named_modules():
        nodes = part.graph.nodes if isinstance(part, fx.GraphModule) else ()
        for name in dict.fromkeys(node.target for node in nodes if node.op == "get_attr"):
            value = functools.reduce(getattr, name.split("."), part)
            if isinstance(value, torch.Tensor):
                found.setdefault(f"{prefix}.{name}".lstrip("."), value)
    return found


class Runner(fx.Interpreter):
    """Runs a graph on jax tensors; ``tensors`` are what it holds, by qualified name."""

    def __init__(self, module: Any, tensors: Mapping[str, torch.Tensor], prefix: str = ""):
        super().__init__(module)
        self.tensors, self.prefix = tensors, prefix

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A tensor, or a graph as a function."""
        name = f"{self.prefix}{target}"
        if name in self.tensors:
            return self.tensors[name]
        value = self.fetch_attr(target)
        if isinstance(value, torch.Tensor) and not is_jax(value):
            return transfer.to_device(value)
        return self._function(value, name) if isinstance(value, fx.GraphModule) else value

    def _function(self, module: fx.GraphModule, name: str) -> Callable[..., Any]:
        return Runner(module, self.tensors, f"{name}.").run

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The results: fx has lists of its own, which ``vmap`` takes for something else."""
        result = super().output(target, args, kwargs)
        return list(result) if isinstance(result, list) else result

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A module that the graph takes whole: its tensors are replaced for the call."""
        part, name = self.fetch_attr(target), f"{self.prefix}{target}"
        if isinstance(part, fx.GraphModule):
            return self._function(part, name)(*args, **kwargs)
        start = f"{name}."
        held = {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}
        return torch.func.functional_call(part, held, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A method of a tensor."""
        if target in ("cpu", "cuda"):
            return args[0]
        args, kwargs = _on_device(args, kwargs)
        if target == "to":
            args = tuple(_DEVICE if isinstance(a, str) else a for a in args)
        return super().call_method(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An operator, a function of PyTorch's or of Python's."""
        args, kwargs = _on_device(args, kwargs)
        if isinstance(target, OpOverload):
            if _lacks_device(target, kwargs):
                kwargs["device"] = _DEVICE
        elif isinstance(target, HigherOrderOperator):
            target = _HIGHER_ORDER.get(target.name(), target)
        elif target is _ENTER_AUTOCAST:
            args = (pytorch.DEVICE_TYPE, *args[1:])
        try:
            return super().call_function(target, args, kwargs)
        except tracers.DataDependentError as error:
            if isinstance(target, OpOverload) and ladder.rung(target) in ("cpu", "none"):
                raise errors.not_found(target, args, kwargs) from error
            raise


_ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast


def _on_device(args: Any, kwargs: Any) -> tuple[tuple, dict[str, Any]]:
    """Arguments with every device but ``meta`` replaced."""
    named = {
        k: _DEVICE if k == "device" and _is_device(v) else _replaced(v) for k, v in kwargs.items()
    }
    return tuple(map(_replaced, args)), named


def _replaced(value: Any) -> Any:
    return _DEVICE if isinstance(value, torch.device) and _is_device(value) else value


def _is_device(value: Any) -> bool:
    return value is not None and torch.device(value).type != "meta"


@functools.cache
def _takes_device(op: OpOverload) -> bool:
    """Whether an operator is a factory, which makes a tensor of none."""
    arguments = op._schema.arguments
    tensors = any("Tensor" in str(a.type) for a in arguments)
    return not tensors and any(a.name == "device" for a in arguments)


def _lacks_device(op: OpOverload, kwargs: dict[str, Any]) -> bool:
    return kwargs.get("device") is None and _takes_device(op)


# --- higher-order operators that are no control flow -------------------------------------------


def _checkpoint(function: Callable[..., Any], *operands: Any, **_options: Any) -> Any:
    return control_flow.checkpoint(function, operands)


def _call(function: Callable[..., Any], *operands: Any, **kwargs: Any) -> Any:
    return function(*operands, **kwargs)


def _invoke(function: Callable[..., Any], _identifier: Any, *operands: Any) -> Any:
    return function(*operands)


def _with_grad(_enabled: bool, function: Callable[..., Any], *operands: Any) -> Any:
    return function(*operands)


def _with_autocast(_device, dtype, enabled, cache, function, *operands: Any, **kwargs: Any) -> Any:
    with torch.autocast(pytorch.DEVICE_TYPE, dtype, enabled, cache):
        return function(*operands, **kwargs)


def _hints(function: Callable[..., Any], args: Any, kwargs: Any, _hints: Any) -> Any:
    return function(*args, **kwargs)


def _effects(token: Any, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = op(*args, **kwargs)
    return (token, *result) if isinstance(result, tuple) else (token, result)


def _save_draw(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The state that an operator draws from, and its result."""
    words = storage.wrap(jnp.asarray(active.ACTIVE.capture.peek()))
    return words, op(*args, **kwargs)


def _repeat_draw(words: torch.Tensor, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with active.ACTIVE.capture.again(storage.memory_of(words)):
        return op(*args, **kwargs)


_HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "tag_activation_checkpoint": _checkpoint,
    "wrap_activation_checkpoint": _checkpoint,
    "wrap": _call,
    "strict_mode": lambda function, operands: function(*operands),
    "invoke_subgraph": _invoke,
    "wrap_with_set_grad_enabled": _with_grad,
    "wrap_with_autocast": _with_autocast,
    "hints_wrapper": _hints,
    "with_effects": _effects,
    "run_and_save_rng_state": _save_draw,
    "run_with_rng_state": _repeat_draw,
}
