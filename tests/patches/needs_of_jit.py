"""What shows that functions under ``torch_jax.jit`` need replacements."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import torch_jax
from tests.patches.needs import need, ones

# --- torch_jax.jit --------------------------------------------------------------------------------


@need("torch.autograd.backward")
def backward_passes_are_not_differentiated() -> bool:
    weight = ones(2).requires_grad_()

    def step() -> torch.Tensor:
        loss = (weight * 2).sin().sum()
        loss.backward()
        return loss

    return torch_jax.jit(step)().shape == ()


@need("torch.autograd.grad")
def gradients_are_not_differentiated() -> bool:
    weight = ones(2).requires_grad_()

    def step() -> torch.Tensor:
        loss = (weight * 2).sin().sum()
        torch.autograd.grad(loss, weight)
        return loss

    return torch_jax.jit(step)().shape == ()


@need("torch.manual_seed")
def seeds_are_set_by_each_call() -> bool:
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        return x + 1, torch.rand(2)

    step = torch_jax.jit(draw)
    drawn = [step(ones(2))[1].tolist() for _ in range(3)]
    return drawn[0] == drawn[1] == drawn[2]


@need("torch.seed")
def seeds_of_the_system_are_refused() -> bool:
    try:
        torch_jax.jit(lambda x: x + torch.seed() % 2)(ones(2))
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
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.get_rng_state()
        drawn = torch.rand(2)
        torch.set_rng_state(state)
        return x + 1, drawn

    step = torch_jax.jit(draw)
    drawn = [step(ones(2))[1].tolist() for _ in range(3)]
    return drawn[0] == drawn[1] == drawn[2]


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

    return _is_traced_once(step) and layer.bias.grad.tolist() == [3, 3]


def _is_traced_once(
    step: Callable[[torch.Tensor], Any], between: Callable[[], Any] = lambda: None
) -> bool:
    """Whether later calls of a compiled step, with ``between`` in between, are the same program."""
    compiled_step = torch_jax.jit(step)
    for _ in range(4):
        compiled_step(ones(3, 2))
        between()
    return compiled_step.explain().traces == 1


@need("torch.optim._adafactor.max", "torch.optim._adafactor.min")
def adafactor_is_traced_once() -> bool:
    layer = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.Adafactor(layer.parameters(), lr=0.9)  # min(0.9, 1 / sqrt(step))

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

    return _is_traced_once(step)


@need(
    "torch.amp.grad_scaler.GradScaler.scale",
    "torch.amp.grad_scaler.GradScaler._maybe_opt_step",
    "torch.amp.grad_scaler.GradScaler._unscale_grads_",
)
def scaled_steps_are_traced_once() -> bool:
    layer = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("jax")

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(layer(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    rates = optimizer.param_groups[0]
    return _is_traced_once(step, lambda: rates.update(lr=rates["lr"] * 0.9))
