"""Proofs that functions under ``torch_jax.jit`` need replacements."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import torch_jax
from tests.patches.needs import need, ones
from torch_jax.recorded import metrics

# --- torch_jax.jit --------------------------------------------------------------------------------


@need("torch.autograd.backward")
def backward_passes_of_results_are_one_program() -> bool:
    return _is_recorded(lambda loss, weight: loss.backward())


@need("torch.autograd.grad")
def gradients_of_results_are_one_program() -> bool:
    return _is_recorded(torch.autograd.grad)


def _is_recorded(go_back: Callable[[torch.Tensor, torch.Tensor], Any]) -> bool:
    """Whether a backward pass that comes after a compiled function is run as one program."""
    weight = ones(2).requires_grad_()
    loss = torch_jax.jit(lambda: (weight * 2).sin().sum())()
    before = metrics.COUNTS.counted["operators"]
    go_back(loss, weight)
    return metrics.COUNTS.counted["operators"] > before


@need("torch._is_all_true")
def distributions_look_at_no_value() -> bool:
    from torch.distributions import Normal

    density = torch_jax.jit(lambda x: Normal(x, x, validate_args=True).log_prob(x), pure=True)
    return density(ones(2)).shape == (2,)


@need("torch.distributions.constraints._PositiveDefinite.check")
def matrices_are_checked_with_no_look_at_a_value() -> bool:
    from torch.distributions.constraints import positive_definite

    return torch_jax.jit(positive_definite.check, pure=True)(ones(2, 2)).shape == ()


@need("torch.manual_seed")
def seeds_are_set_by_each_call() -> bool:
    def seed(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return x + 1

    return _drawn_between(torch_jax.jit(seed, pure=True)) == _drawn_between(seed)


def _drawn_between(step: Callable[[torch.Tensor], Any]) -> list[float]:
    """What the CPU draws after calls of which the third skips Python."""
    torch.default_generator.manual_seed(7)
    return [torch.rand(1).item() for _ in range(4) if step(ones(2)) is not None]


@need("torch.seed")
def seeds_of_the_system_are_refused() -> bool:
    try:
        torch_jax.jit(lambda x: x + torch.seed() % 2, pure=True)(ones(2))
    except torch_jax.NotTraceableError:
        return True
    return False


def _install(handler: Any) -> Iterator[Any]:
    """What Python has for a signal, and what it says that it has."""
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield signal.getsignal.__wrapped__(signal.SIGTERM)  # type: ignore[attr-defined]
        yield signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@need("signal.signal")
def handlers_may_be_called_later() -> bool:
    has, _ = _install(print)
    return has is not print


@need("signal.getsignal")
def handlers_are_what_was_given() -> bool:
    _, says = _install(print)
    return says is print


@need("torch.get_rng_state", "torch.set_rng_state")
def states_of_the_host_are_put_back() -> bool:
    def seed(x: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state()
        torch.manual_seed(3)
        torch.set_rng_state(state)
        return x + 1

    run = torch_jax.jit(seed, pure=True)
    return _drawn_between(run) == _drawn_between(seed) and not run.explain().notes


@need("torch.nn.Module.zero_grad")
def modules_drop_gradients_at_each_call() -> bool:
    return _drops_gradients(lambda layer: layer)


@need("torch.optim.Optimizer.zero_grad")
def optimizers_drop_gradients_at_each_call() -> bool:
    return _drops_gradients(lambda layer: torch.optim.SGD(layer.parameters(), 0.1))


def _drops_gradients(owner: Callable[[nn.Module], Any]) -> bool:
    layer = nn.Linear(2, 2).to("jax")
    zero = owner(layer)

    def step(x: torch.Tensor) -> None:
        zero.zero_grad()
        layer(x).sum().backward()

    return _is_observed_once(step) and layer.bias.grad.tolist() == [3, 3]


def _is_observed_once(
    step: Callable[[torch.Tensor], Any], between: Callable[[], Any] = lambda: None
) -> bool:
    """Whether later calls of a pure step, with ``between`` in between, are the same program."""
    compiled_step = torch_jax.jit(step, pure=True)
    for _ in range(4):
        compiled_step(ones(3, 2))
        between()
    explained = compiled_step.explain()
    return explained.observed == 1 and not explained.notes


@need("torch.amp.grad_scaler.GradScaler._maybe_opt_step")
def scaled_steps_run_the_python_of_pure_functions() -> bool:
    layer = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("jax")

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(layer(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return not _is_observed_once(step)
