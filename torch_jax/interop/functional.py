"""``torch_jax.functional``: a module as a pure function of its parameters and buffers."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import NotTraceableError
from torch_jax.dispatch.call_jax import Recent, form_of
from torch_jax.distributed import rules
from torch_jax.graphs import interpreter
from torch_jax.graphs.runner import first_names
from torch_jax.interop import crossing
from torch_jax.interop.to_jax_function import is_by_jax, run
from torch_jax.memory import border, dtypes, storage
from torch_jax.ops.promotion import category

Arrays = dict[str, Any]


def functional(
    module: torch.nn.Module, *, derivatives: str = "torch"
) -> tuple[Callable[..., Any], Arrays, Arrays]:
    """Return a module as a pure function of JAX, with its parameters and its buffers as arrays.

    The function is ``fn(params, buffers, *args, rng=None, method=None, **kwargs)``. It returns the
    module's result with arrays in place of tensors, and the buffers as the call leaves them
    (statistics of batch norm). It may be called by itself and under JAX's transformations, with
    PyTorch's derivatives: see :func:`torch_jax.to_jax_function`.

    - ``rng`` is a ``jax.random.key``, for dropout and other random operators.
    - ``method`` is the name of another method than ``forward``, or a function ``f(module, *args)``.

    Each submodule runs in the mode, ``train()`` or ``eval()``, that it has now: for the other one
    call ``functional`` again, which costs nothing. Hooks, parametrizations and tied parameters are
    honoured.

    Args:
      module: a module on device ``jax``, whose arrays are returned uncopied; on the CPU, whose
        tensors are copied to the device; or on ``meta``, for which shapes are returned.
      derivatives: ``"torch"`` or ``"jax"``, as for :func:`torch_jax.to_jax_function`.

    Returns:
      The function; the parameters that require gradients, by name; and all other tensors: buffers,
      and frozen parameters. Tied tensors are there once, under their first name.

    Raises:
      RuntimeError: the module has lazy parameters.

    >>> fn, params, buffers = functional(torch.nn.Linear(3, 2))
    >>> def loss(params, x):
    ...     y, _ = fn(params, buffers, x)
    ...     return (y**2).sum()
    >>> jax.jit(jax.grad(loss))(params, jax.numpy.ones((4, 3)))["weight"].shape
    (2, 3)
    """
    interpreter.prepare()
    model = Functional(module, derivatives)
    params, buffers = model.arrays()

    def fn(
        params: Arrays,
        buffers: Arrays,
        *args: Any,
        rng: Any = None,
        method: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, Arrays]:
        return model.call(params, buffers, args, kwargs, rng, method)

    fn.__name__ = fn.__qualname__ = type(module).__name__
    return fn, params, buffers


def load_functional(
    module: torch.nn.Module, params: Mapping[str, Any], buffers: Mapping[str, Any] | None = None
) -> torch.nn.Module:
    """Write parameters and buffers of :func:`functional` into the module, and return it.

    A module on device ``jax`` takes the arrays as its memory, uncopied; one on the CPU gets copies;
    and tensors on ``meta`` are replaced by tensors on device ``jax``.

    Raises:
      RuntimeError: names or shapes are not the module's, with the text of ``load_state_dict``.

    >>> model = torch.nn.Linear(3, 2, device="jax")
    >>> fn, params, buffers = functional(model)
    >>> _ = load_functional(model, jax.tree.map(jax.numpy.zeros_like, params))
    >>> model.weight.sum().item()
    0.0
    """
    own = dict(rules.tensors_of(module, once=True))
    given = {**params, **(buffers or {})}
    wanted = own
    if buffers is None:
        wanted = {n: t for n, t in own.items() if _is_trained(t) or n in given}
    _check(type(module).__name__, given, {n: form_of(t) for n, t in wanted.items()})
    names = first_names(dict(rules.tensors_of(module)))
    for name, array in given.items():
        tensor = own[name]
        new = border.tensor_of(array)
        if not tensor.is_meta:
            with torch.no_grad():
                tensor.copy_(new)
            continue
        new = new.to(tensor.dtype)
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, tensor.requires_grad)
        for alias in (n for n, first in names.items() if first == name):
            path, _, last = alias.rpartition(".")
            setattr(module.get_submodule(path), last, new)
    return module


def programs_of(module: torch.nn.Module) -> Recent:
    """Return programs made of a module by key: an attribute of it, since they hold the module."""
    return vars(module).setdefault("_torch_jax_programs", Recent())


# Modules are changed while a function runs, which one thread does at a time.
SWAPPING = threading.RLock()


class Functional:
    """A module, the names of its tensors, and the modes of its parts."""

    def __init__(self, module: torch.nn.Module, derivatives: str = "torch"):
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"a torch.nn.Module is wanted, not a {type(module).__name__}: for a function there "
                "is torch_jax.to_jax_function"
            )
        tensors = dict(rules.tensors_of(module, once=True))
        for name, tensor in tensors.items():
            if torch.nn.parameter.is_lazy(tensor):
                raise RuntimeError(
                    f"{name!r} of {type(module).__name__} has no shape yet: call the module once, "
                    "so that its lazy parameters are made, and then torch_jax.functional"
                )
        self.module, self.by_jax = module, is_by_jax(derivatives)
        self.modes = {part: part.training for part in module.modules()}
        self.names = first_names(dict(rules.tensors_of(module)))
        self.trained = {n: form_of(t) for n, t in tensors.items() if _is_trained(t)}
        self.kept = {n: form_of(t) for n, t in tensors.items() if not _is_trained(t)}
        # CPU tensors in attributes are moved for a module that has no tensor on the device
        self.host = not any(map(storage.is_jax, tensors.values()))

    def arrays(self) -> tuple[Arrays, Arrays]:
        """Return the arrays of the parameters, and those of all other tensors."""
        arrays = {name: _array_of(t) for name, t in rules.tensors_of(self.module, once=True)}
        return {n: arrays[n] for n in self.trained}, {n: arrays[n] for n in self.kept}

    def call(
        self,
        params: Any,
        buffers: Any,
        args: tuple,
        kwargs: dict[str, Any],
        rng: Any,
        method: Any,
        training: bool | None = None,
    ) -> tuple[Any, Arrays]:
        """Run the module with these arrays, all of it in a mode or each part in its own."""
        name = type(self.module).__name__
        _check(f"{name}, params", params, self.trained)
        _check(f"{name}, buffers", buffers, self.kept)

        @contextmanager
        def called(params: Any, buffers: Any, args: tuple, kwargs: dict) -> Iterator[Any]:
            # as in PyTorch, no gradient flows to tensors that do not require one
            adopt = ACTIVE.tracer.mode.adopt
            kept = {name: adopt(crossing.constant(tensor)) for name, tensor in buffers.items()}
            held = dict(params)
            for name, tensor in kept.items():  # integers in the module's own dtype, not JAX's
                is_integer = not (tensor.is_floating_point() or tensor.is_complex())
                own = dtypes.to_torch(self.kept[name].dtype)
                held[name] = tensor.to(own) if is_integer else tensor
            before = {name: storage.held_by(tensor) for name, tensor in params.items()}
            with self._holding(held, training):
                result = self._method(method)(*args, **kwargs)
                for name, tensor in params.items():
                    if storage.held_by(tensor) is not before[name]:
                        raise NotTraceableError(
                            f"{type(self.module).__name__} writes to its parameter {name!r}, and "
                            "functional returns new buffers only: a forward pass may change only "
                            "buffers, and parameters that require no gradient"
                        )
                now = dict(self.module.named_buffers(remove_duplicate=False))
                yield result, {name: now.get(name, held[name]) for name in self.kept}

        given = dict(params), dict(buffers), args, kwargs
        return run(called, self.module, given, {}, rng, self.host, self.by_jax)

    def _method(self, method: Any) -> Callable[..., Any]:
        if method is None or method == "forward":
            return self.module
        if isinstance(method, str):
            return getattr(self.module, method)
        return lambda *args, **kwargs: method(self.module, *args, **kwargs)

    @contextmanager
    def _holding(self, tensors: dict[str, torch.Tensor], training: bool | None) -> Iterator[None]:
        """Give the module these tensors, and the modes that it had, in this context."""
        with SWAPPING:
            every = {name: tensors[first] for name, first in self.names.items()}
            before = {part: dict(vars(part)) for part in self.modes}
            try:
                for part, mode in self.modes.items():
                    part.training = mode if training is None else training
                with pytorch.reparametrized(self.module, every):
                    yield
            finally:
                for part, attributes in before.items():
                    part.training = attributes["training"]
                    self._forget(part, attributes)

    def _forget(self, part: torch.nn.Module, before: dict[str, Any]) -> None:
        """Take back tensors that a call has set as attributes: under a trace they are tracers."""
        now = vars(part).items()
        for name in [n for n, v in now if isinstance(v, torch.Tensor) and v is not before.get(n)]:
            if name in before:
                vars(part)[name] = before[name]
            else:
                del vars(part)[name]
            warnings.warn(
                f"{type(part).__name__}.{name} is set to a tensor, which is forgotten after the "
                "call: a function of JAX has no state. Make it a buffer (register_buffer), of "
                "which functional returns the new value",
                stacklevel=2,
            )


def _refusal(name: str, array: Any, form: jax.ShapeDtypeStruct) -> str | None:
    """Return the fault of an array, None where it may replace a tensor of this form."""
    if not isinstance(array, jax.Array | np.ndarray):
        return f"{name} is a {type(array).__name__}, where an array is wanted."
    if tuple(array.shape) != form.shape:
        return (
            f"size mismatch for {name}: copying a param with shape {torch.Size(array.shape)} "
            f"from checkpoint, the shape in current model is {torch.Size(form.shape)}."
        )
    if category(array.dtype) != category(form.dtype):
        return f"dtype mismatch for {name}: {array.dtype} where the module has {form.dtype}."
    return None


def _check(what: str, given: Any, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Raise as ``load_state_dict`` does if names or shapes are not the module's."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what}: a dict of arrays by name is wanted, not a {type(given).__name__}")
    problems = []
    if unexpected := [f'"{name}"' for name in given if name not in wanted]:
        problems.append(f"Unexpected key(s) in state_dict: {', '.join(unexpected)}. ")
    if missing := [f'"{name}"' for name in wanted if name not in given]:
        problems.append(f"Missing key(s) in state_dict: {', '.join(missing)}. ")
    both = [name for name in wanted if name in given]
    refusals = (_refusal(name, given[name], wanted[name]) for name in both)
    problems += [refusal for refusal in refusals if refusal]
    if problems:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {what}:\n\t" + "\n\t".join(problems)
        )


def _is_trained(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad


def _array_of(tensor: torch.Tensor) -> Any:
    if tensor.is_meta:
        dtype = jax.dtypes.canonicalize_dtype(dtypes.to_jax(tensor.dtype))
        return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)
    return crossing.out(tensor.detach(), crossing.is_narrow())
