"""Random programs of views and writes under ``torch.compile``, held against eager mode.

A program takes a tensor of the CPU, one of the device, a leaf of autograd and two numbers. Results
are compared with those of the same program run eagerly: values, devices, gradients, who shares
memory with whom, and where views of the inputs lie. What PyTorch's own ``aot_eager`` gets wrong as
well is no fault of the backend. ``PROGRAMS`` is how many the slow test draws; the number of the
first depends on ``TESTS_COMMIT`` (:mod:`tests.support.seeds`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.support.seeds import first_number

QUICK = 3
PROGRAMS = int(os.environ.get("PROGRAMS", "24"))
SEED = first_number(QUICK + PROGRAMS)
CALLS = [(4, 1), (4, 2), (6, 3)]  # rows, and a number that chooses some

VIEWS = """{x}[n:] | {x}[n] | {x}[..., n] | {x}[:, ::2] | {x}.t() | {x}.unbind(0)[n]
    | {x}.chunk(2)[1] | {x}.expand(2, *{x}.shape) | {x}.unfold(0, 2, 2) | {x}.transpose(0, -1)
    | {x}.diagonal() | {x}.narrow(0, n, 1) | {x}.unsqueeze(-1) | {x}.view(-1)"""
WRITES = """{x}.add_(n) | {x}.mul_(s) | {x}[n] = s | {x}.neg_() | {x}[n:] += 1 | {x}[..., 0].sub_(n)
    | {x}.relu_() | {x}.clamp_(min=n) | {x}.copy_({x}.sum())"""
VALUES = """{x} * 2 | {x} + s | {x}.sum(0) | {x}.cpu() * n | {x}.to('jax', copy=True) | {x} * w
    | torch.cat([{x}, {x}]) | torch.zeros(n + 1, device={x}.device) + w | {x}.sin().mean()"""
NUMBERS = "n = {x}.shape[0] - 2 | n = n - 1"
PLACES = "base | base.t() | base[1:] | base[::2] | base[:, ::2] | base[1:].t()".split(" | ")
RESULTS = ["({})", "[{}]", "dict(zip('abcd', ({},)))", "(({},), n, s)"]


class Program:
    """A program that a seed draws: statements that run eagerly, whatever the call."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.places, self.dynamic = draw.choices(PLACES, k=2), draw.choice([None, True])
        self.body: list[str] = []
        names = ["x", "y"]
        while len(self.body) < 6:
            kinds = draw.choice([VIEWS, VIEWS, WRITES, WRITES, VALUES, NUMBERS])
            line = draw.choice(kinds.split(" | ")).strip().format(x=draw.choice(names))
            new = [f"v{len(self.body)}"] if kinds in (VIEWS, VALUES) else []
            self.body.append(" = ".join([*new, line]))
            if self.runs([*names, *new]):
                names += new
            else:
                self.body.pop()
        returned = draw.sample(names, min(4, len(names)))
        self.results = draw.choice(RESULTS).format(", ".join(returned))

    def text(self, results: str) -> str:
        """Return the source of the function."""
        lines = "".join(f"\n    {line}" for line in self.body)
        return f"import torch\ndef function(x, y, w, n, s):{lines}\n    return {results}"

    def function(self, results: str) -> Callable[..., Any]:
        """Return the function."""
        space: dict[str, Any] = {}
        exec(self.text(results), space)
        return space["function"]

    def runs(self, names: list[str]) -> bool:
        """Return whether eager mode runs it, and its backward pass."""
        function = self.function(f"[{', '.join(names)}]")
        try:
            return bool([list(observed(function, *self.arguments(at))) for at in range(len(CALLS))])
        except (IndexError, RuntimeError, ValueError):
            return False

    def arguments(self, call: int) -> tuple[list[torch.Tensor], tuple]:
        """Return the tensors that inputs are views of, and the inputs."""
        rows, n = CALLS[call]
        generator = torch.Generator().manual_seed(call)
        bases = [torch.randn(rows, rows, generator=generator).to(on) for on in ("cpu", "jax")]
        views = [eval(at, {"base": of}) for at, of in zip(self.places, bases, strict=True)]
        leaf = torch.tensor(1.5, requires_grad=True)
        return [*bases, leaf], (*views, leaf, n, 0.5 + call)

    def check(self, backend: str = "jax") -> None:
        """Compare calls of the compiled function."""
        function = self.function(self.results)
        run = torch.compile(function, backend=backend, dynamic=self.dynamic)
        for call in range(len(CALLS)):
            seen = [list(observed(f, *self.arguments(call))) for f in (function, run)]
            where = f"call {call}, {self.places}, {self.dynamic}\n{self.text(self.results)}"
            for expected, actual in zip(*seen, strict=True):
                torch.testing.assert_close(actual, expected, msg=f"{{}}\n{where}".format)

    def is_pytorchs(self) -> bool:
        """Return whether Dynamo and AOTAutograd have the fault without a compiler, too."""
        torch._dynamo.reset()
        try:
            self.check("aot_eager")
        except Exception:
            return True
        return False


def observed(function: Callable[..., Any], bases: list[torch.Tensor], args: tuple) -> Iterator[Any]:
    """Yield all that a user sees of a call, and of writes to its inputs after it."""
    result = pytree.tree_leaves(function(*args))
    tensors = [*bases, *(one for one in result if isinstance(one, torch.Tensor))]
    yield [one for one in result if not isinstance(one, torch.Tensor)]
    memories: dict[int, int] = {}
    for one in tensors:
        memory = memories.setdefault(one.untyped_storage()._cdata, len(memories))
        place = (*one.stride(), one.storage_offset()) if memory < 2 and one.numel() else ()
        yield [memory, one.device.type == "cpu", one.requires_grad, *place]
    yield [one.detach().cpu() for one in tensors]
    losses = [one.cpu().square().sum() for one in tensors if one.requires_grad]
    yield torch.autograd.grad(sum(losses), bases[-1])
    with torch.no_grad():
        for base in bases:
            base.mul_(3)
    yield [one.detach().cpu() for one in tensors]


SLOW = [pytest.mark.slow, pytest.mark.every_case]
SEEDS = [
    pytest.param(SEED + at, marks=SLOW if at >= QUICK else []) for at in range(QUICK + PROGRAMS)
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program(seed):
    program = Program(seed)
    try:
        program.check()
    except Exception:
        if not program.is_pytorchs():
            raise
