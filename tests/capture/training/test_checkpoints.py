"""``torch.utils.checkpoint``, policies of kept values, and ``scan_layers``: values and memory."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import torch_jax
from tests.support import executors
from tests.support.jitted import assert_run, both

OPERATORS = [torch.ops.aten.sin.default, torch.ops.aten.mm.default]
CONTEXTS = {
    "nothing": {},
    "dots": {"context_fn": torch_jax.checkpoint_policy("dots_saveable")},
    "names": {"context_fn": torch_jax.checkpoint_policy(names=["hidden"])},
    "operators": {"context_fn": functools.partial(create_selective_checkpoint_contexts, OPERATORS)},
}
PLAIN, JITTED = ("eager", "jit"), ("eager", "lazy", "jit")


class Block(nn.Module):
    """A layer with a wide middle, which has a name."""

    def __init__(self, width=4, wide=8):
        super().__init__()
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x):
        hidden = torch_jax.checkpoint_name(torch.sin(torch.tanh(self.up(x))), "hidden")
        return x + self.down(torch.sin(hidden * 2))


def blocks(count, *sizes):
    torch.manual_seed(0)
    return nn.ModuleList(Block(*sizes) for _ in range(count))


def through(layers, x, options):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False, **options)
    return x


def scanned(layers, x, options):
    return torch_jax.scan_layers(layers, x, checkpoint=True, **options)


def nested(layers, x, options):
    return checkpoint(through, layers, x, options, use_reentrant=False)


def assert_same_gradients(executor, gradients, expected=None):
    """``gradients(device, wrap)`` gives the same on the CPU, and by the executor on the device."""
    on_cpu = (expected or gradients)("cpu", lambda function: function)
    torch.testing.assert_close(gradients("jax", executors.EXECUTORS[executor]), on_cpu)


WAYS = [
    *(executors.param(e, through, what) for e in executors.EXECUTORS for what in CONTEXTS),
    *(executors.param(e, scanned, what) for e in PLAIN for what in CONTEXTS),
    *(executors.param(e, nested, "dots") for e in JITTED),
]


@pytest.mark.parametrize("way, what, executor", WAYS)
def test_gradients_are_those_without_a_checkpoint(way, what, executor):
    def gradients(run, device, wrap):
        layers = blocks(2).to(device)
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device).requires_grad_()
        leaves = [x, *layers.parameters()]
        step = wrap(lambda x: torch.autograd.grad(run(layers, x).square().sum(), leaves))
        return [[gradient.cpu() for gradient in step(x)] for _ in range(3)]

    def plainly(layers, x):
        return nn.Sequential(*layers)(x)

    run = functools.partial(way, options=CONTEXTS[what])
    expected = functools.partial(gradients, plainly)
    assert_same_gradients(executor, functools.partial(gradients, run), expected)


@pytest.mark.parametrize("executor", JITTED)
@pytest.mark.parametrize("reentrant", [False, True])
def test_several_results_and_arguments(executor, reentrant):
    def gradients(device, wrap):
        x, y = (torch.linspace(0, n, 3).to(device).requires_grad_() for n in (1, 2))

        def parts(x, y):
            return ((x * y).sin(), None, (x + y).tanh())

        def step(x, y):
            x.grad = y.grad = None
            a, _, b = checkpoint(parts, x, y, use_reentrant=reentrant)
            (a * b).sum().backward()
            return x.grad, y.grad

        step = wrap(step)
        return [[gradient.cpu() for gradient in step(x, y)] for _ in range(3)]

    assert_same_gradients(executor, gradients)


@both
def test_a_step_with_a_policy(pure):
    layers, x = blocks(2).to("jax"), torch.ones(3, 4, device="jax")

    @torch_jax.jit(pure=pure)
    def step(x):
        layers.zero_grad()
        through(layers, x, CONTEXTS["operators"]).square().sum().backward()
        return [parameter.grad for parameter in layers.parameters()]

    first, *others = ([gradient.cpu() for gradient in step(x)] for _ in range(4))
    for gradients in others:
        torch.testing.assert_close(gradients, first)
    assert_run(step, pure)


def test_kinds_and_names():
    with pytest.raises(ValueError, match="'dots_saveable'.*not 'dots_savable'"):
        torch_jax.checkpoint_policy("dots_savable")
    for device in ("cpu", "jax"):
        x = torch.ones(2, device=device, requires_grad=True)
        y = torch_jax.checkpoint_name(x, "x")
        y.sum().backward()
        assert y.device == x.device and y.tolist() == x.grad.tolist() == [1, 1]


@pytest.mark.xla_default
def test_only_what_a_policy_keeps_takes_memory():
    def temporaries(run):
        """MiB of temporaries of a compiled step over eight layers."""
        layers = blocks(8, 64, 256).to("jax")

        def step(x):
            layers.zero_grad()
            run(layers, x).square().sum().backward()
            return [parameter.grad for parameter in layers.parameters()]

        program = torch_jax.lower(step, torch.ones(2048, 64, device="jax"))
        return program.memory_analysis().temp_size_in_bytes / 2**20

    kept = {
        n: temporaries(lambda layers, x, o=o: through(layers, x, o)) for n, o in CONTEXTS.items()
    }
    # x of each layer is 0.5 MiB, what is in its middle 2 MiB, and its second product 0.5
    assert kept["nothing"] < 13
    least = 8 * 2 + 8  # of eight layers, and of the one that is computed
    assert least <= kept["names"] < 8 * 2 + 14
    assert least <= kept["dots"] < 8 * 2.5 + 14
    assert temporaries(torch_jax.scan_layers) > 40
    assert temporaries(functools.partial(scanned, options={})) < 16


def test_layers_in_a_loop_draw_other_numbers_at_each_call():
    layers = nn.ModuleList([nn.Dropout(0.5), nn.Dropout(0.5)])

    @torch_jax.jit(pure=True)
    def run(x):
        with torch.no_grad():
            return torch_jax.scan_layers(layers, x)

    x = torch.ones(64, device="jax")
    seen = {tuple(run(x).tolist()) for _ in range(4)}
    assert len(seen) == 4
