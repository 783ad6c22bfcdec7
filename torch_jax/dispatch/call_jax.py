"""JAX functions called with PyTorch's tensors, with gradients from ``jax.vjp``.

The call is an operator of its own, ``torch_jax::call_jax``, so that every executor sees it: eager
caches its compiled form, a trace takes its tensors as inputs, and a graph of ``torch.compile`` has
it as a node, with the number of a :class:`torch_jax.dispatch.jax_programs.Program`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import TRACES_OF_A_FUNCTION
from torch_jax.core import errors, trees
from torch_jax.dispatch import jax_programs, ladder
from torch_jax.dispatch.jax_programs import Forward, Program
from torch_jax.eager.kernel import Kernel
from torch_jax.eager.signature import signature
from torch_jax.memory import dtypes
from torch_jax.ops.registry import Lowering


def jax_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of ``jax.Array``s for tensors on device ``jax``, for the package itself.

    Tensors anywhere in the arguments arrive as arrays, 64-bit types unchanged, and dtypes as
    NumPy's; other arguments are static. Other values that the function reads must not change:
    :func:`torch_jax.call_jax` is for functions for which this is not certain. The attribute
    ``traced_for`` of the result returns the :class:`Traced` of a call, and its tensors.

    >>> import jax.numpy as jnp
    >>> cube = jax_function(lambda x: x**3)
    >>> x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    >>> cube(x).sum().backward()
    >>> x.grad.cpu()
    tensor([ 3., 12.])
    """
    calls: Recent = Recent()
    name = getattr(function, "__name__", repr(function))

    def traced_for(*args: Any, **kwargs: Any) -> tuple[Traced, list[torch.Tensor]]:
        leaves, structure = trees.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        static = tuple(map(_static, leaves))
        key = structure, static, tuple(map(type, static)), forms_key(tensors)
        try:
            traced = calls.find(key)
        except TypeError as error:
            shown = errors.describe_call(name, args, kwargs)
            raise TypeError(
                f"{shown}: an argument of a JAX function is neither a tensor nor hashable"
            ) from error
        if traced is None:
            traced = trace(function, structure, static, tensors, wide=True, name=name)
            calls.keep(key, traced)
        return traced, tensors

    def call(*args: Any, **kwargs: Any) -> Any:
        traced, tensors = traced_for(*args, **kwargs)
        return traced(tensors)

    call.traced_for = traced_for  # type: ignore[attr-defined]
    return call


class Recent(OrderedDict):
    """A dict of the entries used last, up to ``most``; copies of it, and files, have none."""

    def __init__(self, most: int = TRACES_OF_A_FUNCTION):
        super().__init__()
        self._most = most

    def __reduce__(self) -> tuple:
        return Recent, (self._most,)

    def find(self, key: Any) -> Any:
        """Return the entry of a key, None where there is none."""
        if (found := self.get(key)) is not None:
            with contextlib.suppress(KeyError):  # another thread has dropped it
                self.move_to_end(key)
        return found

    def keep(self, key: Any, value: Any) -> None:
        """Enter a value."""
        self[key] = value
        with contextlib.suppress(KeyError):
            while len(self) > self._most:
                self.popitem(last=False)

    def get_or_make(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the entry of a key; ``make`` makes it where there is none."""
        if (found := self.find(key)) is None:
            found = make()
            self.keep(key, found)
        return found


class Given(NamedTuple):
    """The place, among the static leaves of a call, of an array that the program is given."""

    key: str | None = None  # the implementation of random keys whose data the array is

    def take(self, arrays: Iterator[Any]) -> Any:
        """Return the value at its place."""
        array = next(arrays)
        return array if self.key is None else jax.random.wrap_key_data(array, impl=self.key)


_GIVEN = Given()


def _static(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _GIVEN
    return dtypes.to_jax(leaf) if isinstance(leaf, torch.dtype) else leaf


def forms_key(tensors: Sequence[torch.Tensor]) -> tuple:
    """Return the properties of tensors that a trace fixes."""
    return tuple((tuple(map(int, t.shape)), t.dtype) for t in tensors)


class Traced(NamedTuple):
    """A JAX function traced for arguments of one form; called with the tensors among them."""

    program: Program
    structure: Any  # of the tree that it returns

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the function's results, tensors in a tree."""
        return trees.unflatten(self.structure, run(self.program, tensors))


def trace(
    function: Callable[..., Any],
    structure: Any,
    static: Sequence[Any],
    tensors: Sequence[torch.Tensor],
    wide: bool,
    name: str,
    leaf: Callable[[Any], Any] = jnp.asarray,
) -> Traced:
    """Trace a function of a tree of arguments, with everything but its arrays filled in.

    ``structure`` is that of ``(args, kwargs)``, ``static`` are their leaves, with a :class:`Given`
    for each tensor; ``leaf`` makes an array of each leaf of the result.
    """
    found: list[Any] = []

    def of_arrays(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        leaves = [one.take(given) if isinstance(one, Given) else one for one in static]
        args, kwargs = trees.unflatten(structure, leaves)
        leaves, form = trees.flatten(function(*args, **kwargs))
        found[:] = [form]
        return list(map(leaf, leaves))

    vars(of_arrays)["__wrapped__"] = function  # for JAX's errors, which name it
    program = jax_programs.trace(of_arrays, list(map(form_of, tensors)), wide, name)
    program.check = _check_of(program)
    return Traced(program, found[0])


def form_of(tensor: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and the dtype of a tensor, for JAX."""
    return jax.ShapeDtypeStruct(tuple(map(int, tensor.shape)), dtypes.to_jax(tensor.dtype))


def run(program: Program, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the results of a program, visible to autograd and functions of ``torch.func``."""
    wanted: tuple[int, ...] = ()
    if torch.is_grad_enabled():
        wanted = tuple(i for i, t in enumerate(tensors) if t.requires_grad)
    if not wanted and not pytorch.in_functional_transform():
        return tuple(torch.ops.torch_jax.call_jax(list(tensors), program.number))
    plan = program.forward(wanted) if wanted and program.differentiable else None
    return tuple(_Call.apply(program, plan, *tensors)[: len(program.results)])


class _Call(torch.autograd.Function):
    """Runs a program, or the forward pass of a plan; its backward pass runs another program."""

    @staticmethod
    def forward(
        program: Program, plan: Forward | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_jax.call_jax(list(tensors), _forward_of(program, plan).number))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        ctx.program, ctx.plan, *tensors = inputs
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)
        outputs = [] if ctx.plan is None else [output[at] for at in ctx.plan.outputs]
        ctx.save_for_backward(*tensors, *outputs)
        ctx.save_for_forward(*tensors)
        exact = [t for t in output if not (t.is_floating_point() or t.is_complex())]
        ctx.mark_non_differentiable(*exact)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        needed = tuple(i for i, needs in enumerate(ctx.needs_input_grad[2:]) if needs)
        present = tuple(i for i, gradient in enumerate(gradients) if gradient is not None)
        if not needed or not present:
            return (None,) * (2 + ctx.count)
        saved = ctx.saved_tensors
        backward, given = _backward_of(ctx.program, ctx.plan, ctx.count, saved, present, needed)
        given += [gradient for gradient in gradients if gradient is not None]
        found = iter(run(backward, given))
        return None, None, *(next(found) if i in needed else None for i in range(ctx.count))

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        program = _forward_of(ctx.program, ctx.plan)
        moved = tuple(i for i, tangent in enumerate(tangents[2:]) if tangent is not None)
        pushforward = program.pushforward(moved)
        given = [tangent for tangent in tangents[2:] if tangent is not None]
        found = iter(run(pushforward, [*ctx.saved_tensors, *given]))
        differentiable = frozenset(program.differentiable)
        places = range(len(program.results))
        return tuple(next(found) if i in differentiable else None for i in places)

    @staticmethod
    def vmap(
        info: Any, dims: tuple, program: Program, plan: Forward | None, *tensors: torch.Tensor
    ) -> tuple:
        results = run(_forward_of(program, plan).batched(dims[2:], info.batch_size), tensors)
        return results, (0,) * len(results)


def _forward_of(program: Program, plan: Forward | None) -> Program:
    return program if plan is None else plan.program


def _backward_of(
    program: Program, plan: Forward | None, count: int, saved: Any, present: tuple, needed: tuple
) -> tuple[Program, list[torch.Tensor]]:
    """Return the program of a backward pass, and its inputs besides the gradients."""
    tensors, outputs = saved[:count], saved[count:]
    # residuals have gradients in a backward pass through a backward pass alone: it begins again
    within = present[-1] < len(program.results)
    if plan is not None and within and set(needed) <= set(plan.wanted):
        return plan.backward(present, needed), [*(tensors[at] for at in plan.arguments), *outputs]
    return _forward_of(program, plan).pullback(needed, present), list(tensors)


SCHEMA = "call_jax(Tensor[] tensors, int program) -> Tensor[]"


def call(tensors: list[torch.Tensor], program: int) -> list[torch.Tensor]:
    """Run the operator on the device: each program has its own kernel, which dies with it."""
    found = jax_programs.numbered(program)
    if found.kernel is None:
        op, static = torch.ops.torch_jax.call_jax.default, {"program": None}
        lowering = Lowering(
            op.name(), lambda arrays, _: found(arrays), static, meta=False, check=found.check
        )
        found.kernel = Kernel(op, lowering, signature(op, static))
        ladder.override_kernels.add(found.kernel)
    return found.kernel.call(tensors, program)


def _check_of(program: Program) -> Callable[..., Any] | None:
    """Return a check that integers are not cut where a function has no 64-bit types."""
    narrowed = program.narrowed()

    def check(tensors: list[jax.Array]) -> tuple[Any, str, type[Exception]]:
        ok = jnp.bool_(True)
        for at in narrowed:
            limits = jnp.iinfo(program.closed.in_avals[at].dtype)
            values = tensors[at]
            ok &= ((values >= int(limits.min)) & (values <= int(limits.max))).all()
        return ok, message, OverflowError

    message = (
        f"the JAX function {program.name} was given a 64-bit integer beyond 32 bits, and JAX's "
        "64-bit types are off: call it with torch_jax.from_jax_function(function, x64=True)"
    )
    return check if narrowed else None


def fake_call(tensors: list[torch.Tensor], program: int) -> list[torch.Tensor]:
    """Return tensors like the results, while ``torch.compile`` traces with fake tensors."""
    return [
        torch.empty(form.shape, dtype=dtypes.to_torch(form.dtype), device=pytorch.DEVICE_TYPE)
        for form in jax_programs.numbered(program).results
    ]


def above_autograd(keys: Any, tensors: list[torch.Tensor], program: int) -> list[torch.Tensor]:
    """Run the operator where a graph calls it by name, with the gradients of a call of Python."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(run(jax_programs.numbered(program), tensors))
    op = torch.ops.torch_jax.call_jax.default
    return op.redispatch(keys & pytorch.AFTER_AUTOGRAD, tensors, program)


def programs_of(graphs: torch.nn.Module) -> list[Program]:
    """Return the programs that graphs call, which must live as long as the graphs."""
    op = torch.ops.torch_jax.call_jax.default
    parts = [part for part in graphs.modules() if isinstance(part, torch.fx.GraphModule)]
    calls = [n for part in parts for n in part.graph.find_nodes(op="call_function", target=op)]
    return [jax_programs.numbered(node.args[1]) for node in calls]
