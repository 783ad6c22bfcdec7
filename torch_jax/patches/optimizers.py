"""Steps of optimizers: Adam's as one operator, and SGD's first one as all later ones."""

from __future__ import annotations

import sys
from typing import Any

import torch

from torch_jax.core.numbers import plain
from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.memory.storage import PLAIN_TENSORS, is_jax

_one = torch.tensor(1.0, device="cpu")


@around("torch.optim.adam._multi_tensor_adam", AT_FIRST_USE)
def _patch_adam(
    original: Any, params: Any, grads: Any, means: Any, squares: Any, maxima: Any, steps: Any,
    *rest: Any, **given: Any,
) -> None:  # fmt: skip
    """PyTorch makes a step of Adam from nine operators over lists, each of which costs time."""
    if not _is_one_operator(params, [*grads, *means, *squares, *maxima], steps, given):
        if "torch._dynamo" in sys.modules:  # which would trace this function apart, and fail
            original = torch.compiler.disable(original)
        return original(params, grads, means, squares, maxima, steps, *rest, **given)
    lr, beta1, beta2 = given["lr"], given["beta1"], given["beta2"]
    adam = torch.ops.torch_jax.adam_
    if given["capturable"]:
        step = adam.counted
        sizes, corrections = _on_device(lr, beta1, beta2, steps, params[0].dtype)
    else:
        step = adam.default
        sizes, corrections = _on_host(lr, beta1, beta2, steps)
    decay, is_decoupled = given["weight_decay"], given["decoupled_weight_decay"]
    return step(
        params, grads, means, squares, maxima, sizes, corrections,
        1 - lr * decay if is_decoupled else decay, 1 - beta1, beta2, 1 - beta2, given["eps"],
        "none" if decay == 0 else "decoupled" if is_decoupled else "gradient",
        given["maximize"],
    )  # fmt: skip


@around("torch.optim.SGD._init_group", AT_FIRST_USE)
def _make_momentum(original: Any, self: Any, group: dict, *lists: Any) -> Any:
    """Make momentum of zeros, where the first step has no dampening to leave out."""
    result, (params, _, buffers) = original(self, group, *lists), lists
    if type(self) is torch.optim.SGD and not plain(group["dampening"]):
        for at, parameter in enumerate(params[: len(buffers)]):
            if buffers[at] is None and is_jax(parameter):
                buffers[at] = self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return result


def _on_host(lr: Any, beta1: Any, beta2: Any, steps: list) -> tuple[list, list]:
    """Count a step; return each parameter's negated step size, and the divisor of its root."""
    torch._foreach_add_(steps, _one, alpha=1.0)
    counts = [step.item() for step in steps]
    sizes = [lr / (1 - beta1**count) * -1 for count in counts]
    return sizes, [(1 - beta2**count) ** 0.5 for count in counts]


def _on_device(lr: Any, beta1: Any, beta2: Any, steps: list, dtype: torch.dtype) -> tuple[Any, Any]:
    """Count a step, and return the same as tensors of one number for each parameter.

    As slices of one vector they would take XLA three times as long to compile.
    """
    torch._foreach_add_(steps, 1)
    if dtype == torch.float64:  # powers of float32 have four digits near 1
        steps = [step.double() for step in steps]
    sizes, roots = (
        torch._foreach_sub(torch._foreach_pow(beta, steps), 1) for beta in (beta1, beta2)
    )
    sizes = torch._foreach_mul(torch._foreach_reciprocal(sizes), lr)
    return sizes, torch._foreach_sqrt(torch._foreach_neg(roots))


def _is_one_operator(params: list, tensors: list, steps: list, given: dict[str, Any]) -> bool:
    """Return whether a step is the plain one: real numbers of one dtype, counted in one place."""
    numbers = given["lr"], given["beta1"], given["beta2"]
    unusual = given["differentiable"] or given["has_complex"]
    both = [*params, *tensors]
    return (
        not unusual
        and not any(isinstance(number, torch.Tensor) for number in numbers)
        and not torch.compiler.is_compiling()
        and all(is_jax(step) if given["capturable"] else step.is_cpu for step in steps)
        and len({one.dtype for one in both}) == 1
        and PLAIN_TENSORS.issuperset(map(type, both))
        and all(map(is_jax, both))
    )
