"""Every module of PyTorch's module database, as the CPU runs it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.common_modules import module_db, modules

from tests.conformance.checks import first_failure, incoming
from tests.conformance.gaps import Gap, gaps_of, judge
from tests.conformance.report import Result
from tests.conformance.samples import LIMIT, dtype_name, is_asked, spread
from tests.support.agreement import assert_agree, both_raised, wide
from tests.support.arguments import on, outcome, tensors

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
ROW = "modules"


class Case(NamedTuple):
    """An input of a module: what it is made of, what it is called with, and in which mode."""

    made_of: tuple[tuple, dict]
    called_with: tuple[tuple, dict]
    dtype: torch.dtype
    training: bool


@pytest.mark.parametrize(
    "info", [m for m in module_db if is_asked(m.name)], ids=lambda info: info.name
)
def test_module(info, record):
    gaps = gaps_of(info.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [*_results(info, gaps), *_errors(info)]
    record(results)
    judge(results, gaps)


def _results(info: Any, gaps: list[Gap]) -> Iterator[Result]:
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for training in modules(module_db)._get_training_flags(info):
            cases = _cases(info, dtype, training)
            chosen = cases if gaps else spread(cases, LIMIT)
            for question in (trains, infers, draws):
                asked, message = first_failure(question, info, chosen)
                mode = "train" if training else "eval"
                message = message and f"{question.__name__} ({mode}) {message}"
                if asked:
                    yield Result(ROW, info.name, dtype_name(dtype), message)


def _errors(info: Any) -> Iterator[Result]:
    make = info.module_error_inputs_func
    if make is None:
        return
    for training in modules(module_db)._get_training_flags(info):
        torch.manual_seed(0)
        given = make(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
        )
        asked, message = first_failure(errors, info, list(given))
        if asked:
            yield Result(ROW, info.name, "", message and f"errors {message}")


def _cases(info: Any, dtype: torch.dtype, training: bool) -> list[Case]:
    torch.manual_seed(0)
    given = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    return [
        Case(_arguments(i.constructor_input), _arguments(i.forward_input), dtype, training)
        for i in given
    ]


def _arguments(given: Any) -> tuple[tuple, dict]:
    return given.args, given.kwargs


# --- what is asked, each of a module and one of its cases -----------------------------------------


def trains(info: Any, case: Case, number: int) -> bool:
    """Forward and backward: the outputs, all gradients, and the buffers afterwards."""
    built = _build(info, case)

    def double() -> Any:
        return outcome(_train, _widened(built, case), wide(on("cpu", case.called_with)))[0]

    expected = outcome(_train, copy.deepcopy(built), on("cpu", case.called_with))
    actual = outcome(_train, copy.deepcopy(built).to("jax"), on("jax", case.called_with))
    if not both_raised(actual, expected):
        assert {t.device.type for t in tensors(actual[0])} <= {"jax"}, "left the device"
        assert_agree(actual[0], expected[0], double)
    return True


def infers(info: Any, case: Case, number: int) -> bool:
    """A state that went to the CPU and back into a new module, which then evaluates."""
    cpu = _build(info, case)
    moved = copy.deepcopy(cpu).to("jax")
    truth = _widened(cpu, case)
    failed = [
        outcome(_apply, cpu, on("cpu", case.called_with))[1],
        outcome(_apply, moved, on("jax", case.called_with))[1],
        outcome(_apply, truth, wide(on("cpu", case.called_with)))[1],
    ]
    if any(failed):  # is for `trains` to judge
        return False
    back = _build(info, case, seed=1)
    back.load_state_dict(moved.state_dict())
    with torch.device("jax" if number == 0 else "cpu"):  # made there, or moved there
        new = _ready(info, case, 2, "jax")
    new.load_state_dict(back.state_dict())
    expected = outcome(_evaluate, cpu, on("cpu", case.called_with))
    actual = outcome(_evaluate, new, on("jax", case.called_with))
    if not both_raised(actual, expected):
        arguments = wide(on("cpu", case.called_with))
        assert_agree(actual[0], expected[0], lambda: outcome(_evaluate, truth, arguments)[0])
    return True


def draws(info: Any, case: Case, number: int) -> bool:
    """Fractional pooling where it draws for itself: every output is the maximum of a window."""
    if info.module_cls not in (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d):
        return False
    module = _build(info, case)
    module._random_samples = None
    (x,), _ = on("cpu", case.called_with)
    expected = module(x)
    actual = copy.deepcopy(module).to("jax")(x.to("jax"))
    pool, planar = (
        (F.max_pool2d, 2) if info.module_cls is nn.FractionalMaxPool2d else (F.max_pool3d, 3)
    )
    windows = pool(x, module.kernel_size, stride=1).flatten(-planar).unsqueeze(-2)
    for output in (tensors(actual)[0], tensors(expected)[0]):
        assert (output.cpu().flatten(-planar).unsqueeze(-1) == windows).any(-1).all()
    assert_agree(_zeros(actual), _zeros(expected))
    return True


def errors(info: Any, error: Any, number: int) -> bool:
    """Bad arguments, at construction or at the call: the same exception type as on the CPU."""
    expected = outcome(_provoke, info, error.module_error_input, "cpu")
    if expected[1] is None:
        return False
    return both_raised(outcome(_provoke, info, error.module_error_input, "jax"), expected)


# --- pieces ---------------------------------------------------------------------------------------


def _build(info: Any, case: Case, seed: int = 0) -> nn.Module:
    """The module on the CPU, with all its parameters in place."""
    return _ready(info, case, seed, "cpu")


def _ready(info: Any, case: Case, seed: int, device: str) -> nn.Module:
    torch.manual_seed(seed)
    args, kwargs = on(device, case.made_of)
    module = info.module_cls(*args, **kwargs).to(device, case.dtype).train(case.training)
    if info.is_lazy:  # its parameters get their shapes from the first input
        with torch.no_grad():
            _apply(module, on(device, case.called_with))
    return module


def _widened(module: nn.Module, case: Case) -> nn.Module:
    return copy.deepcopy(module).to(wide(torch.empty(0, dtype=case.dtype)).dtype)


def _apply(module: nn.Module, arguments: tuple[tuple, dict]) -> Any:
    args, kwargs = arguments
    return module(*args, **kwargs)


def _train(module: nn.Module, arguments: tuple[tuple, dict]) -> Any:
    outputs = _apply(module, arguments)
    roots = [t for t in tensors(outputs) if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [incoming(t) for t in roots])
    leaves = [*module.parameters(), *(t for t in tensors(arguments) if t.requires_grad)]
    return outputs, [t.grad for t in leaves], dict(module.state_dict())


def _evaluate(module: nn.Module, arguments: tuple[tuple, dict]) -> Any:
    with torch.no_grad():
        return _apply(module.eval(), arguments), dict(module.state_dict())


def _provoke(info: Any, given: Any, device: str) -> None:
    args, kwargs = on(device, _arguments(given.constructor_input))
    with torch.device(device):
        module = info.module_cls(*args, **kwargs)
    _apply(module.to(device), on(device, _arguments(given.forward_input)))


def _zeros(value: Any) -> list[torch.Tensor]:
    return [torch.zeros_like(t) for t in tensors(value)]
