"""Every optimizer of PyTorch's optimizer database takes the steps that it takes on the CPU."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from tests.conformance.checks import first_failure, incoming
from tests.conformance.gaps import OTHER_LAYOUTS, Gap, gaps_of, judge
from tests.conformance.report import Result
from tests.conformance.samples import LIMIT, dtype_name, is_asked, spread
from tests.support.agreement import assert_agree, both_raised, wide
from tests.support.arguments import outcome, tensors

ROW = "optimizers"
STEPS = 4
SAVED_AFTER = 2  # steps, when a state is saved and loaded elsewhere

_SHAPES = [(4, 3), (3, 3), (4,), ()]
_MATRICES = [(4, 3), (3, 3)]  # all that Muon takes


class Case(NamedTuple):
    """The arguments of an optimizer, the dtype of its parameters, and which steps it runs."""

    options: dict[str, Any]
    dtype: torch.dtype
    implementation: dict[str, bool]
    on_cpu: dict[str, bool]  # the implementation that it is compared with

    def settings(self, device: str) -> dict[str, Any]:
        """All keyword arguments on ``device``."""
        chosen = dict(self.options, **(self.implementation if device == "jax" else self.on_cpu))
        if device != "jax":
            chosen.pop("capturable", None)  # the CPU has none
        return chosen


@pytest.mark.parametrize(
    "info", [o for o in optim_db if is_asked(o.name)], ids=lambda info: info.name
)
def test_optimizer(info, record):
    gaps = gaps_of(info.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [*_results(info, gaps), *_errors(info)]
    if info.name not in OTHER_LAYOUTS:
        record(results)
    judge(results, gaps)


def _results(info: Any, gaps: list[Gap]) -> Iterator[Result]:
    for dtype in _dtypes(info):
        cases = list(_cases(info, dtype))
        chosen = cases if gaps else spread(cases, LIMIT)
        for question in (steps, goes_on, differentiates):
            asked, message = first_failure(question, info, chosen)
            if asked:
                message = message and f"{question.__name__} {message}"
                yield Result(ROW, info.name, dtype_name(dtype), message)


def _errors(info: Any) -> Iterator[Result]:
    torch.manual_seed(0)
    given = info.optim_error_inputs_func("cpu", torch.float32)
    asked, message = first_failure(errors, info, given)
    if asked:
        yield Result(ROW, info.name, "", message and f"errors {message}")


def _dtypes(info: Any) -> list[torch.dtype]:
    """Single precision, real and complex – double for LBFGS.

    What LBFGS keeps are differences of gradients that are nearly equal: of those float32 has no
    digits that could be compared.
    """
    single = not info.step_requires_closure
    complex_ = torch.complex64 if single else torch.complex128
    return [torch.float32 if single else torch.float64, *([complex_] * info.supports_complex)]


def _cases(info: Any, dtype: torch.dtype) -> Iterator[Case]:
    for given in info.optim_inputs_func(device="cpu"):
        for implementation in _implementations(info):
            yield Case(given.kwargs, dtype, implementation, implementation)
    for given in info.optim_inputs_func(device="cuda"):  # which has the capturable ones
        if given.kwargs.get("capturable"):
            for foreach in (False, True):
                yield Case(given.kwargs, dtype, {"foreach": foreach}, {"foreach": False})


def _implementations(info: Any) -> list[dict[str, bool]]:
    """The default one, and all that are asked for by name."""
    named = [n for n in info.supported_impls if n != "fused" or "cpu" in info.supports_fused_on]
    loop = [{"foreach": False}] if "foreach" in named else []
    return [{}, *loop, *({name: True} for name in named)]


# --- what is asked, each of an optimizer and one of its cases -------------------------------------


def steps(info: Any, case: Case, number: int) -> bool:
    """Parameters and state after each step."""
    expected = outcome(_train, info, case, "cpu")
    actual = outcome(_train, info, case, "jax")
    if not both_raised(actual, expected):
        _assert_agree(info, case, actual[0], expected[0])
    return True


def goes_on(info: Any, case: Case, number: int) -> bool:
    """A state saved on either device is loaded on jax, where the steps go on as they would have."""
    if case.implementation.get("differentiable"):
        return False
    expected, error = outcome(_train, info, case, "cpu")
    if error is not None:
        return False
    for device in ("jax", "cpu"):
        first = _Run(info, case, device)
        first.train(SAVED_AFTER)
        second = _Run(info, case, "jax")
        second.restore(first)
        _assert_agree(info, case, second.train(STEPS), expected[SAVED_AFTER:], SAVED_AFTER)
    return True


def differentiates(info: Any, case: Case, number: int) -> bool:
    """Through one step and through all, to the first parameters and to the gradients given."""
    if not case.implementation.get("differentiable"):
        return False
    for count in (1, STEPS):
        expected = outcome(_differentiate, info, case, count, "cpu")
        actual = outcome(_differentiate, info, case, count, "jax")
        if not both_raised(actual, expected):
            truth = outcome(_differentiate, info, case, count, "cpu", double=True)[0]
            assert_agree(actual[0], expected[0], lambda truth=truth: truth)
    return True


def errors(info: Any, error: Any, number: int) -> bool:
    """Bad arguments, or a step that cannot be: the same exception type as on the CPU."""
    given = error.optimizer_error_input
    expected = outcome(_provoke, info, given, "cpu")
    if expected[1] is None:
        return False
    return both_raised(outcome(_provoke, info, given, "jax"), expected)


# --- pieces ---------------------------------------------------------------------------------------


class _Run:
    """Parameters and their optimizer, the same on every device."""

    def __init__(self, info: Any, case: Case, device: str, double: bool = False):
        self.info, self.dtype, self.device, self.double = info, case.dtype, device, double
        settings = copy.deepcopy(case.settings(device))
        self.differentiable = bool(settings.get("differentiable"))
        few = info.only_supports_sparse_grads or info.optim_cls is torch.optim.Muon
        self.shapes = _MATRICES if few else _SHAPES
        self.leaves = [self._draw(i, shape).requires_grad_() for i, shape in enumerate(self.shapes)]
        self.params = [p.clone() if self.differentiable else p for p in self.leaves]
        # begin a step after the others; the CPU's fused SGD cannot do so within a group
        self.late = {0} if settings.get("fused") else {0, 2}
        groups: Any = self.params
        if info.supports_param_groups:
            groups = [{"params": self.params[:1]}, {"params": self.params[1:], "lr": 0.02}]
        self.optimizer = info.optim_cls(groups, **(wide(settings) if double else settings))
        self.gradients: list[torch.Tensor] = []  # all that were given
        self.taken = 0

    def train(self, until: int) -> list[Any]:
        """Take steps until there are so many; parameters and state after each."""
        return [self._step() for _ in range(self.taken, until)]

    def restore(self, other: _Run) -> None:
        """Be where another run is, by way of a file."""
        file = io.BytesIO()
        torch.save(other.optimizer.state_dict(), file)
        file.seek(0)
        self.optimizer.load_state_dict(torch.load(file))
        with torch.no_grad():
            for mine, theirs in zip(self.params, other.params, strict=True):
                mine.copy_(theirs)
        self.taken = other.taken

    def _step(self) -> Any:
        if self.info.step_requires_closure:
            self.optimizer.step(self._loss)
        else:
            self._give_gradients()
            self.optimizer.step()
        self.taken += 1
        assert all(p.device.type == self.device for p in self.params)
        state = [dict(self.optimizer.state.get(p, {})) for p in self.params]
        return self._kept([self.params, state])

    def _loss(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = sum((p.abs().square() - 1).square().sum() for p in self.params)
        loss.backward()
        return loss

    def _give_gradients(self) -> None:
        for i, param in enumerate(self.params):
            gradient = self._draw(1000 * (1 + self.taken) + i, param.shape)
            gradient.requires_grad_(self.differentiable)
            self.gradients.append(gradient)
            if self.info.only_supports_sparse_grads:
                gradient = gradient.to_sparse()
            late = not self.taken and i in self.late
            param.grad = None if late else gradient

    def _draw(self, seed: int, shape: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(shape, dtype=self.dtype, generator=generator)
        return (wide(drawn) if self.double else drawn).to(self.device)

    def _kept(self, value: Any) -> Any:
        """A copy, numbers as tensors: they are as exact as the parameters that they come from."""
        if isinstance(value, torch.Tensor):
            return value.detach().clone()
        if isinstance(value, list):
            return [self._kept(v) for v in value]
        if isinstance(value, dict):
            return {k: self._kept(v) for k, v in value.items()}
        return torch.tensor(value) if isinstance(value, float) else value


def _train(info: Any, case: Case, device: str, double: bool = False) -> list[Any]:
    return _Run(info, case, device, double).train(STEPS)


def _differentiate(
    info: Any, case: Case, count: int, device: str, double: bool = False
) -> list[Any]:
    run = _Run(info, case, device, double)
    run.train(count)
    roots = [p for p in run.params if p.requires_grad]
    given = [incoming(p) for p in roots]
    inputs = [*run.leaves, *run.gradients]
    return list(torch.autograd.grad(roots, inputs, given, allow_unused=True))


def _assert_agree(info: Any, case: Case, actual: Any, expected: Any, first: int = 0) -> None:
    def truth() -> Any:
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):  # Muon rounds to it
            return _train(info, case, "cpu", double=True)[first:]

    assert_agree(actual, expected, lambda: outcome(truth)[0])


def _provoke(info: Any, given: Any, device: str) -> None:
    params = given.params
    if params is None:
        params = [torch.nn.Parameter(torch.ones(2, 3))]
    moved = {id(t): _moved(t, device) for t in tensors(params)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = info.optim_cls(copy.deepcopy(params, moved), **given.kwargs)
    optimizer.step()


def _moved(x: torch.Tensor, device: str) -> torch.Tensor:
    new = x.detach().to(device, copy=True).requires_grad_(x.requires_grad)
    new.grad = None if x.grad is None else x.grad.to(device)
    return new
