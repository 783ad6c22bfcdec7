"""One call on the CPU and on device jax: the same exception, or the same results and gradients."""

from __future__ import annotations

import contextlib
import enum
import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.calls import definitions
from tests.calls.call import Call, T, make
from tests.calls.names import names
from tests.support.agreement import assert_agree, both_raised, wide
from tests.support.arguments import on, outcome, tensors
from torch_jax import config

# Autocast is asked of operators for which the CPU's policy is that of accelerators; einsum and
# recurrent networks have none on the CPU.
CONTEXTS: dict[str, Callable[[str], contextlib.AbstractContextManager]] = {
    "": lambda device: contextlib.nullcontext(),
    "no_grad": lambda device: torch.no_grad(),
    "inference_mode": lambda device: torch.inference_mode(),
    "autocast": lambda device: torch.autocast(device, torch.bfloat16),
    "math": lambda device: sdpa_kernel(SDPBackend.MATH),
    "flash": lambda device: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "math, flash": lambda device: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]),
}

# How the CPU says that it has no kernel for a dtype: what a call gives is then not known from it.
NO_KERNEL = (
    "not implemented for",
    "not supported for",
    "unsupported dtype",
    "mkldnn",
    "mixed dtype",
)


# The dtypes that an expression may name, and that its true value is not computed in.
NARROW = re.compile(r"torch\.(float32|float16|bfloat16|float|half)\b")


class Verdict(enum.Enum):
    """What a call that did not fail was."""

    AGREED = "agreed"
    RAISED = "raised on both"
    UNKNOWN = "no kernel on the CPU"


def check(expression: str, /, within: str = "", **given: T) -> Verdict:
    """Run a call on both devices; raises ``AssertionError`` where they disagree."""
    return compare(Call(expression, given, within))


def compare(call: Call) -> Verdict:
    """See :func:`check`; by PyTorch's kernels, as where JAX is on the CPU, and by XLA's."""
    for way in ("torch", "xla"):
        with config.temporarily("eager_on_cpu", way):
            verdict = _compare(call)
    return verdict


def _compare(call: Call) -> Verdict:
    made = {name: make(t, place) for place, (name, t) in enumerate(call.tensors.items())}
    expected, actual = _both(call, made, _results)
    if _no_kernel(expected[1]):
        return _without_cpu(call, made, actual)
    if both_raised(actual, expected):
        return Verdict.RAISED
    assert_agree(actual[0], expected[0], functools.partial(_true, call, made, _results))
    _assert_same_strides(actual[0][0], expected[0][0])
    definitions.judge(call, made, tensors(actual[0][0]), tensors(expected[0][0]))
    _compare_gradients(call, made)
    return Verdict.AGREED


def _compare_gradients(call: Call, made: dict[str, torch.Tensor]) -> None:
    expected, actual = _both(call, made, _gradients)
    if not _no_kernel(expected[1]) and not both_raised(actual, expected):
        assert_agree(actual[0], expected[0], functools.partial(_true, call, made, _gradients))


def _both(call: Call, made: dict, run: Callable) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The outcomes on the CPU and on jax."""
    cpu, jax = on("cpu", made), on("jax", made)
    return outcome(run, call, "cpu", cpu), outcome(run, call, "jax", jax)


def _true(call: Call, made: dict[str, torch.Tensor], run: Callable) -> Any:
    in_double = NARROW.sub("torch.float64", call.expression)
    return outcome(run, call._replace(expression=in_double), "cpu", wide(made))[0]


def _results(call: Call, device: str, inputs: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """What a call returns, and its inputs as it leaves them."""
    with CONTEXTS[call.within](device):
        result = eval(_code(call), names([]), inputs)
    return result, {name: x.detach() for name, x in inputs.items()}


def _gradients(call: Call, device: str, inputs: dict[str, torch.Tensor]) -> Any:
    """Gradients of the tensors that ask for them, and of the parameters of modules."""
    leaves = [x for x in inputs.values() if x.requires_grad]
    with CONTEXTS[call.within](device):
        result = eval(_code(call), names(leaves), inputs)
    outputs = [t for t in tensors(result) if t.requires_grad]
    if not leaves or not outputs:
        return None
    return torch.autograd.grad(outputs, leaves, _weights(outputs), allow_unused=True)


def _weights(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of the outputs, of few bits, so that each dtype has the same."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(-8, 9, o.shape, generator=generator) / 4 for o in outputs]
    return [d.to(o.dtype).to(o.device) for d, o in zip(drawn, outputs, strict=True)]


def _code(call: Call) -> Any:
    return compile(call.expression, "<call>", "eval")


def _no_kernel(error: Exception | None) -> bool:
    text = str(error).lower()
    return isinstance(error, NotImplementedError | RuntimeError) and any(
        words in text for words in NO_KERNEL
    )


def _without_cpu(call: Call, made: dict[str, torch.Tensor], actual: tuple[Any, Any]) -> Verdict:
    """Where the CPU has no kernel, what jax gives is the true value, or it refuses, too."""
    true = _true(call, made, _results)
    if actual[1] is None and true is not None:
        for one, other in zip(tensors(actual[0]), tensors(true), strict=True):
            torch.testing.assert_close(
                one.detach().cpu(), other.detach().to(one.dtype), equal_nan=True
            )
    return Verdict.UNKNOWN


def _assert_same_strides(actual: Any, expected: Any) -> None:
    for one, other in zip(tensors(actual), tensors(expected), strict=True):
        assert _strides(one) == _strides(other), (
            f"strides {one.stride()}, not {other.stride()}, of {tuple(other.shape)}"
        )


def _strides(x: torch.Tensor) -> list[int]:
    """The strides that say where elements are."""
    if x.layout != torch.strided or not x.numel():
        return []
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
