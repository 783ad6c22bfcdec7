"""Helpers of tests over eight virtual devices."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from torch_jax.memory import storage

RULES = {
    "emb.weight": ("model", None),
    "up.weight": ("model", "data"),
    "down.weight": ("data", "model"),
    "*": (),
}


def grid() -> Any:
    """The mesh of most tests."""
    return torch_jax.mesh(data=4, model=2)


def shard(x: Any, *spec: Any) -> Any:
    """A tensor over that mesh."""
    return torch_jax.shard(x, grid(), spec)


def spec(tensor: torch.Tensor) -> Any:
    """How the memory of a tensor is split; None where it lies on one device."""
    sharding: Any = storage.memory_of(tensor).sharding
    if not hasattr(sharding, "spec"):
        return None
    parts = tuple(sharding.spec)
    while parts and parts[-1] is None:
        parts = parts[:-1]
    return parts


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within the reordering of sums."""
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)


def says(kind: type[Exception], message: str, function: Callable[[], Any]) -> None:
    """``function`` raises this."""
    try:
        function()
    except kind as error:
        assert re.search(message, str(error)), str(error)
        return
    raise AssertionError(f"nothing was raised where {message!r} was expected")


class Net(nn.Module):
    """A small model with a tie."""

    def __init__(self, device: Any = None):
        super().__init__()
        self.emb = nn.Embedding(16, 8, device=device)
        self.norm = nn.LayerNorm(8, device=device)
        self.up, self.down = nn.Linear(8, 16, device=device), nn.Linear(16, 8, device=device)
        self.head = nn.Linear(8, 16, bias=False, device=device)
        self.head.weight = self.emb.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of tokens."""
        h = self.emb(x)
        return self.head(h + self.down(torch.relu(self.up(self.norm(h)))))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and targets."""
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(16, (2, 8, 6), generator=generator)) for _ in range(count)]


def train(
    net: nn.Module, optimizer: Any, place: Callable, runs: Callable = lambda f: f, count: int = 4
) -> list[float]:
    """The losses of some steps."""

    @runs
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step(place(x), place(y)).item() for x, y in batches(count)]


def lazily(step: Callable) -> Callable:
    """The step in lazy mode."""

    def run(*args: Any) -> Any:
        with torch_jax.lazy():
            return step(*args)

    return run


def adamw(net: nn.Module, foreach: bool = False) -> Any:
    """The optimizer of most tests."""
    return torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=foreach)


def expected_losses(count: int = 4) -> tuple[nn.Module, list[float]]:
    """A model as it was before training, and the losses on the CPU."""
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    return net, train(other, adamw(other), lambda x: x, count=count)


def check_training(net: nn.Module, losses: list[float], expected: list[float], opt: Any) -> None:
    """The losses are right, and parameters and states lie where they lay."""
    same(torch.tensor(losses), torch.tensor(expected))
    assert net.head.weight is net.emb.weight
    for name, parameter in net.named_parameters():
        wanted = RULES.get(name, ())
        wanted = wanted[:1] if wanted[1:] == (None,) else wanted
        assert spec(parameter) == wanted, (name, spec(parameter))
        for key in ("exp_avg", "exp_avg_sq"):
            found = spec(opt.state[parameter][key])
            assert found == wanted, (name, key, found)


def purely(step: Callable) -> Callable:
    """The step without its Python from the second or third call on."""
    return torch_jax.jit(step, pure=True)


def on_data(x: torch.Tensor) -> torch.Tensor:
    """A batch over the axis of data."""
    return shard(x, "data")


def check_eager_training(
    net: nn.Module, expected: list[float], on_cpu: bool, optimizer_first: bool, foreach: bool
) -> None:
    """A copy of a model is sharded where it is, before or after its optimizer is made."""
    one = copy.deepcopy(net)
    one = one if on_cpu else one.to("jax")
    known = list(one.parameters())
    optimizer = adamw(one, foreach) if optimizer_first else None
    assert torch_jax.shard(one, grid(), RULES) is one
    assert all(a is b for a, b in zip(known, one.parameters(), strict=True))
    optimizer = optimizer or adamw(one, foreach)
    check_training(one, train(one, optimizer, on_data), expected, optimizer)


# --- programs -------------------------------------------------------------------------------------

_SIZES = {"f32": 4, "s32": 4, "s64": 8, "pred": 1, "f64": 8, "u32": 4}
_COLLECTIVE = r"(?m)^ *(?:ROOT )?%\S+ = (.*?) (all-\w+|reduce-scatter|collective-\w+)(?:-start)?\("


def collectives(text: str) -> Counter:
    """Return how often a program runs each collective, over how many bytes."""
    found: Counter = Counter()
    for shapes, kind in re.findall(_COLLECTIVE, text):
        sizes = re.findall(r"(\w+)\[([0-9,]*)\]", shapes)
        count = (
            _SIZES[dtype] * math.prod(map(int, filter(None, dims.split(","))))
            for dtype, dims in sizes
        )
        found[kind, sum(count)] += 1
    return found


def gathered(found: Counter) -> int:
    """The bytes that all-gathers give."""
    return sum(size * count for (kind, size), count in found.items() if kind == "all-gather")
