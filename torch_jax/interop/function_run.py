"""One run of a PyTorch function inside JAX: the random numbers it draws, and acts that it refuses.

To JAX a function is pure. So a run draws its random numbers from the key of the call, makes its
tensors on the device, and refuses to write to tensors that were there before: under ``jax.jit``
such a write would leave a tracer in them, and happen once instead of at each call.
"""

from __future__ import annotations

import sys
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from torch_jax._private import jax_core, pytorch
from torch_jax.budgets import BYTES_WORTH_A_WARNING
from torch_jax.core import errors, tracers
from torch_jax.eager import variants
from torch_jax.graphs.graph_run import GraphRun, HostConstants, running
from torch_jax.interop import names
from torch_jax.memory import generators, storage


class FunctionRun(GraphRun):
    """The tracer of one run."""

    def __init__(self, function: Any, words: Any, host: bool = False, refuse_stops: bool = False):
        """Take the user's function, for names in errors.

        ``host``: CPU tensors that it reads are moved to the device. ``refuse_stops``: operations
        that stop gradients in PyTorch, and not in JAX, are refused.
        """
        super().__init__(words, mode=_Watch(self))
        self.function, self.host, self.refuse_stops = function, host, refuse_stops
        self.may_draw = True
        self.generators: dict[int, tuple[Any, tuple[int, int]]] = {}  # set: the state before

    def peek(self) -> Any:
        """Return the key words that the next random operator will draw."""
        if not self.may_draw:
            return generators.words(0, 0)
        if self.words is None:
            raise tracers.NotTraceableError(
                f"{names.of_function(self.function)} draws random numbers "
                f"({tracers.user_line()}), and a function of JAX has no state to draw them from: "
                "pass rng=jax.random.key(0), another key for each call"
            )
        return super().peek()

    def seeded(self, generator: Any) -> None:
        """Refuse to seed a generator: nothing is drawn from one here."""
        raise tracers.NotTraceableError(
            f"{names.of_function(self.function)} seeds a generator ({tracers.user_line()}), from "
            "which nothing is drawn inside JAX: pass rng=, a jax.random.key, in its place"
        )

    def state_of(self, generator: Any) -> torch.Tensor:
        """Return the number of draws as a generator's state (``checkpoint`` goes back to it)."""
        return generators.as_state(0, self.steps)

    def put_to(self, generator: Any, state: torch.Tensor) -> None:
        """Go back to where :meth:`state_of` was asked."""
        words = state.contiguous().numpy().view("uint32").tolist()
        if words[:2] != [0, 0]:
            self.seeded(generator)
        self.generators.setdefault(id(generator), (generator, generator.where()))
        self.steps = words[2] << 32 | words[3]


@contextmanager
def begun(run: FunctionRun) -> Iterator[None]:
    """Run a function in this context: with autograd on this thread, and factories of the device.

    Generators on the host keep the state that they had.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad(), running(run, autograd=True):
            with _NoDetach() if run.refuse_stops else nullcontext():
                yield
        if (left := run.mode.gradients_left_outside()) is not None:
            raise left
    except tracers.DataDependentError as error:
        if _IN_JAX not in getattr(error, "__notes__", ()):
            error.add_note(_IN_JAX)
        raise
    finally:
        for generator, (seed, offset) in run.generators.values():
            generator.put(seed, offset)
        run.mode.gradients_left_outside()


_IN_JAX = (
    "In the terms of JAX: a tensor inside of a transformed function is a tracer. Give numbers that "
    "decide control flow as static arguments (jax.jit(..., static_argnums=...)), decide outside of "
    "the function with jax.lax.cond over two of them, or inside with torch.cond and torch.where."
)


class _Watch(pytorch.OperatorMode):
    """Sees every operator of a run."""

    def __init__(self, run: FunctionRun):
        super().__init__()
        self.run = run
        self._made: dict[int, weakref.ref] = {}
        self._constants = HostConstants()
        self._warned: set[int] = set()
        self._leaves: dict[int, tuple[torch.Tensor, Any]] = {}

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Remember a tensor as one of this run's own, which may be written."""
        memory = tensor.untyped_storage()
        self._made[id(memory)] = weakref.ref(memory)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        tensors = [t for t in storage.tensors_in((args, kwargs)) if t.layout is torch.strided]
        outside = {id(t.untyped_storage()) for t in tensors if not self._is_own(t)}
        for tensor in tensors:
            self._meet(tensor, id(tensor.untyped_storage()) in outside)
        if func._schema.is_mutable:
            self._refuse_writes(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._refuse_host_draws(func, tensors, kwargs)
        if self.run.refuse_stops and not torch.is_grad_enabled():
            if any(tensor.requires_grad for tensor in tensors) and not _is_in_own_function():
                raise _stops("torch.no_grad()")
        before, self.run.may_draw = self.run.may_draw, not _never_drops(func, args, kwargs)
        try:
            if self.run.host:
                result = self._constants.call(func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        except RuntimeError as error:
            if not errors.is_of_two_devices(error):
                raise
            others = [t for t in tensors if t.dim() and not storage.is_jax_tensor(t)]
            named = ", ".join(names.of_tensor(self.run.function, tensor) for tensor in others[:3])
            raise RuntimeError(
                f"{error}. Arguments of a function of JAX are tensors of device 'jax', and {named} "
                f"is not ({tracers.user_line()}): pass it as an argument, move it with .to('jax'), "
                "or give the module it belongs to to torch_jax.functional, which takes modules on "
                "any device"
            ) from error
        finally:
            self.run.may_draw = before
        for tensor in storage.tensors_in(result):
            if tensor.layout is torch.strided and id(tensor.untyped_storage()) not in outside:
                self.adopt(tensor)
        return result

    def gradients_left_outside(self) -> Exception | None:
        """Take back gradients that were left in tensors from outside; return the error for them."""
        error = None
        for tensor, gradient in self._leaves.values():
            if tensor.grad is not gradient:
                tensor.grad = gradient
                named = names.of_tensor(self.run.function, tensor)
                error = tracers.NotTraceableError(
                    f"{names.of_function(self.run.function)} runs a backward pass that leaves a "
                    f"gradient in {named}, which was there before the call. Use "
                    "torch.autograd.grad, which returns gradients, or jax.grad around the function "
                    "with the tensor as an argument; torch_jax.functional makes the parameters of "
                    "a module arguments"
                )
        return error

    def _is_own(self, tensor: torch.Tensor) -> bool:
        memory: Any = tensor.untyped_storage()
        known = self._made.get(id(memory))
        if known is not None and known() is memory:
            return True
        return storage.is_jax_storage(memory) and tracers.is_traced(memory.array)

    def _meet(self, tensor: torch.Tensor, is_outside: bool) -> None:
        """Note a tensor that an operator takes: one from outside is a constant of the program."""
        memory = storage.memory_of(tensor) if storage.is_jax(tensor) else None  # if recorded: run
        if not is_outside:
            return
        key = id(tensor.untyped_storage())
        if tensor.requires_grad and tensor.is_leaf:
            self._leaves.setdefault(key, (tensor, tensor.grad))
        if memory is None or memory.nbytes < BYTES_WORTH_A_WARNING or key in self._warned:
            return
        if jax_core.is_outside_traces():
            return
        self._warned.add(key)
        named = names.of_tensor(self.run.function, tensor)
        warnings.warn(
            f"{named} ({memory.nbytes >> 20} MiB) is a constant of the program that JAX makes of "
            f"{names.of_function(self.run.function)}, and has no gradient: pass what shall change "
            "as an argument; torch_jax.functional does so with the weights of a module",
            stacklevel=2,
        )

    def _refuse_writes(self, func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> None:
        for tensor in variants.written(func, args, kwargs):
            if not self._is_own(tensor):
                named = names.of_tensor(self.run.function, tensor)
                raise tracers.NotTraceableError(
                    f"{names.of_function(self.run.function)} writes by {func} to {named}, which "
                    f"was there before the call ({tracers.user_line()}). A function of JAX gives "
                    "out what changes: return it, or, for the state of a module, use "
                    "torch_jax.functional, which returns new buffers"
                )

    def _refuse_host_draws(self, func: OpOverload, tensors: list, kwargs: dict[str, Any]) -> None:
        """Raise if random numbers are drawn on the CPU: once, while a program is traced."""
        is_named = not tensors and generators.names_jax(kwargs.get("device"))
        if is_named or any(map(storage.is_jax_tensor, tensors)):
            return
        raise tracers.NotTraceableError(
            f"{names.of_function(self.run.function)} draws random numbers on the CPU by {func} "
            f"({tracers.user_line()}), which a compiled program would do once: draw them on device "
            "'jax', and pass rng=, a jax.random.key"
        )


def _never_drops(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Return whether an operator draws for a dropout that drops nothing, as attention does."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = args[at] if at < len(args) else kwargs.get(argument.name, 0.0)
            return isinstance(given, int | float) and given == 0
    return False


class _NoDetach(TorchFunctionMode):
    """Raises if a function detaches. Operators detach saved tensors by themselves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if detaches(func) and args[0].requires_grad:
            raise _stops("detach()")
        return func(*args, **(kwargs or {}))


_DETACH = (torch.detach, torch.detach_, torch.Tensor.detach, torch.Tensor.detach_)


def detaches(function: Any) -> bool:
    """Return whether a function of PyTorch's detaches; ``data`` may be replaced after import."""
    return function in _DETACH or function == torch.Tensor.data.__get__  # type: ignore[attr-defined]


def _is_in_own_function() -> bool:
    """Return whether an ``autograd.Function`` of this package runs: JAX has its backward pass."""
    return any(
        frame.f_code.co_name == "forward"
        and str(frame.f_globals.get("__name__")).startswith("torch_jax.")
        for frame, _ in traceback.walk_stack(sys._getframe(1))
    )


def _stops(how: str) -> Exception:
    """Return the error for an operation that stops gradients in PyTorch and not in JAX."""
    return tracers.NotTraceableError(
        f'with derivatives="jax" JAX differentiates the operators, and would not see that {how} '
        f"stops the gradient here ({tracers.user_line()}): use jax.lax.stop_gradient outside of "
        'the function, or derivatives="torch"'
    )
