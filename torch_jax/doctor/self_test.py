"""Small tests of operators, views, gradients and a compiled step, against the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torch_jax.capture.jit import jit
from torch_jax.doctor.installation import Item


def self_test() -> Iterator[Item]:
    """Yield each part's result on the device, against the CPU, with its seconds."""
    for name, part in _PARTS.items():
        start = time.perf_counter()
        problem = ""
        try:
            torch.testing.assert_close(part("jax"), part("cpu"), rtol=1e-4, atol=1e-5)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - start
        yield Item(name, f"{'failed' if problem else 'right'}, {seconds:.2f} s", problem)


def _operator(device: str) -> torch.Tensor:
    x = torch.arange(12.0, device=device).view(3, 4)
    return (x @ x.T).softmax(-1).cpu()


def _view(device: str) -> torch.Tensor:
    x = torch.zeros(3, 4, device=device)
    x[1].add_(2)
    x.t()[0] = 5
    return x.cpu()


def _gradient(device: str) -> torch.Tensor:
    x = torch.linspace(0, 1, 8, device=device, requires_grad=True)
    torch.nn.functional.gelu(x).sum().backward()
    assert x.grad is not None
    return x.grad.cpu()


def _step(device: str) -> torch.Tensor:
    """Run training steps of a function under torch_jax.jit."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = jit(step) if device == "jax" else step
    x = torch.ones(3, 4, device=device)
    return torch.stack([run(x).detach().cpu() for _ in range(3)])


_PARTS: dict[str, Callable[[str], Any]] = {
    "operators": _operator,
    "writes to views": _view,
    "gradients": _gradient,
    "a compiled step": _step,
}
