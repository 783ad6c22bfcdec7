"""``torch.utils.checkpoint``, policies of what it keeps, and ``scan_layers``: values and memory."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import torch_jax
from tests.support import executors
from tests.support.jitted import assert_run, both

DOTS = torch_jax.checkpoint_policy("dots_saveable")
NAMED = torch_jax.checkpoint_policy(names=["hidden"])
OPERATORS = functools.partial(
    create_selective_checkpoint_contexts, [torch.ops.aten.sin.default, torch.ops.aten.mm.default]
)
CONTEXTS = {
    "nothing": {},
    "dots": {"context_fn": DOTS},
    "names": {"context_fn": NAMED},
    "operators": {"context_fn": OPERATORS},
}


class Block(nn.Module):
    """A layer with a wide middle, which has a name."""

    def __init__(self, width=4, wide=8):
        super().__init__()
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x):
        """From (batch, width) to the same."""
        hidden = torch_jax.checkpoint_name(torch.sin(torch.tanh(self.up(x))), "hidden")
        return x + self.down(torch.sin(hidden * 2))


def blocks(count, *sizes):
    torch.manual_seed(0)
    return nn.ModuleList(Block(*sizes) for _ in range(count))


def through(layers, x, options):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False, **options)
    return x


def gradients(layers, run, device, runs=lambda function: function):
    """Of the parameters and the input, after three calls."""
    layers.to(device)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device).requires_grad_()

    @runs
    def step(x):
        return torch.autograd.grad(run(x).square().sum(), [x, *layers.parameters()])

    for _ in range(3):
        found = step(x)
    return [gradient.cpu() for gradient in found]


def check(run, runs):
    """``run(layers, x)`` has the gradients of plain layers on the CPU."""

    def plainly(layers, x):
        for layer in layers:
            x = layer(x)
        return x

    layers = blocks(2)
    expected = gradients(layers, functools.partial(plainly, layers), "cpu")
    found = gradients(layers, functools.partial(run, layers), "jax", runs)
    torch.testing.assert_close(found, expected)


@executors.each
@pytest.mark.parametrize("what", CONTEXTS)
def test_gradients_are_those_without_a_checkpoint(what, executor):
    check(lambda layers, x: through(layers, x, CONTEXTS[what]), executors.EXECUTORS[executor])


@pytest.mark.parametrize("executor", ["eager", "jit"])
@pytest.mark.parametrize("what", CONTEXTS)
def test_scanned_layers_take_the_same_policies(what, executor):
    scan = functools.partial(torch_jax.scan_layers, checkpoint=True, **CONTEXTS[what])
    check(scan, executors.EXECUTORS[executor])


@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
def test_checkpoints_in_a_checkpoint(executor):
    def inner(layers, x):
        return checkpoint(through, layers, x, CONTEXTS["dots"], use_reentrant=False)

    check(inner, executors.EXECUTORS[executor])


@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_several_results_and_arguments(executor, reentrant):
    def parts(x, y):
        return (x * y).sin(), None, (x + y).tanh()

    def grads(device, runs):
        x, y = (torch.linspace(0, n, 3).to(device).requires_grad_() for n in (1, 2))

        @runs
        def step(x, y):
            x.grad = y.grad = None
            a, _, b = checkpoint(parts, x, y, use_reentrant=reentrant)
            (a * b).sum().backward()
            return x.grad, y.grad

        for _ in range(3):
            found = step(x, y)
        return [gradient.cpu() for gradient in found]

    expected = grads("cpu", lambda function: function)
    torch.testing.assert_close(grads("jax", executors.EXECUTORS[executor]), expected)


@pytest.mark.parametrize("executor", ["eager", "lazy", "jit"])
def test_gradients_of_gradients(executor):
    def second(device, runs):
        x = torch.linspace(0.1, 1, 3).to(device).requires_grad_()

        @runs
        def step(x):
            y = checkpoint(lambda x: x.sin() * x, x, use_reentrant=False)
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return torch.autograd.grad(first.sum(), x)[0]

        return [step(x).cpu() for _ in range(3)]

    expected = second("cpu", lambda function: function)
    torch.testing.assert_close(second("jax", executors.EXECUTORS[executor]), expected)


@both
def test_a_step_with_a_policy(pure):
    layers = blocks(2).to("jax")

    @torch_jax.jit(pure=pure)
    def step(x):
        layers.zero_grad()
        through(layers, x, CONTEXTS["operators"]).square().sum().backward()
        return [parameter.grad for parameter in layers.parameters()]

    x = torch.ones(3, 4, device="jax")
    first = [gradient.cpu() for gradient in step(x)]
    for _ in range(3):
        torch.testing.assert_close([gradient.cpu() for gradient in step(x)], first)
    assert_run(step, pure)


def test_kinds_and_names():
    with pytest.raises(ValueError, match="'dots_saveable'.*not 'dots_savable'"):
        torch_jax.checkpoint_policy("dots_savable")
    for device in ("cpu", "jax"):
        x = torch.ones(2, device=device, requires_grad=True)
        y = torch_jax.checkpoint_name(x, "x")
        y.sum().backward()
        assert y.device == x.device and y.tolist() == x.grad.tolist() == [1, 1]


# --- memory ---------------------------------------------------------------------------------------


def temporaries(run):
    """MiB of temporaries of a compiled step over eight layers."""
    layers = blocks(8, 64, 256).to("jax")

    def step(x):
        layers.zero_grad()
        run(layers, x).square().sum().backward()
        return [parameter.grad for parameter in layers.parameters()]

    program = torch_jax.lower(step, torch.ones(2048, 64, device="jax"))
    return program.memory_analysis().temp_size_in_bytes / 2**20


def checkpointed(**options):
    return lambda layers, x: through(layers, x, options)


def scanned(**options):
    return lambda layers, x: torch_jax.scan_layers(layers, x, **options)


@pytest.mark.xla_default
def test_only_what_a_policy_keeps_takes_memory():
    # x of each layer is 0.5 MiB, what is in its middle 2 MiB, and its second product 0.5
    nothing = temporaries(checkpointed())
    assert nothing < 13
    assert nothing + 8 * 2 <= temporaries(checkpointed(context_fn=NAMED)) < 8 * 2 + 14
    assert nothing + 8 * 2 <= temporaries(checkpointed(context_fn=DOTS)) < 8 * 2.5 + 14
    assert temporaries(scanned()) > 40


@pytest.mark.xla_default
def test_scanned_layers_keep_nothing_with_a_checkpoint():
    assert temporaries(scanned(checkpoint=True)) < 16
