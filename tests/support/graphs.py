"""Compile the same code with ``torch.compile(backend="jax")`` and compare it with the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support import executors
from tests.support.compare import assert_same, to_cpu, to_jax
from torch_jax.memory.storage import tensors_in


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="jax", **({"fullgraph": True} | options))


def check(function: Callable[..., Any], *args: Any, calls: int = 2, **options: Any) -> None:
    """A function of tensors, on the CPU and compiled: results, written inputs, gradients.

    Floats among the arguments are others at each call.
    """
    run = compiled(function, **options)
    for call in range(calls):
        theirs = to_cpu(args)
        for tensor in tensors_in(theirs):
            if tensor.is_floating_point():
                tensor.data.mul_(1 - call / 4)
        ours = to_jax(theirs)
        leaves = [[t for t in side if isinstance(t, torch.Tensor)] for side in (theirs, ours)]
        expected, actual = function(*theirs), run(*ours)
        assert_same(actual, expected)
        assert_same(leaves[1], leaves[0])
        outputs = [
            [t for t in (r if isinstance(r, list | tuple) else [r]) if is_differentiable(t)]
            for r in (expected, actual)
        ]
        if outputs[0]:
            wanted = [
                torch.autograd.grad(
                    [o.float().square().sum() for o in side],
                    [t for t in inputs if t.requires_grad and t.is_leaf],
                    allow_unused=True,
                )
                for side, inputs in zip(outputs, leaves, strict=True)
            ]
            assert_same(list(wanted[1]), list(wanted[0]), strides=False, scale=5)


def is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def check_model(
    model: nn.Module, *inputs: Any, scale: float = 10.0, executor: str = "graph"
) -> None:
    """A model in training and in evaluation: outputs, gradients and statistics."""
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours) if executor == "graph" else executors.by(executor, ours)
    for training in (True, False):
        model.train(training), ours.train(training)
        expected, actual = first(model(*inputs)), first(run(*to_jax(inputs)))
        assert_same(actual, expected, strides=False, scale=scale)
        expected.square().mean().backward()
        actual.square().mean().backward()
        for p, q in zip(ours.parameters(), model.parameters(), strict=True):
            assert_same(p.grad, q.grad, strides=False, scale=scale)
        for p, q in zip(ours.buffers(), model.buffers(), strict=True):
            assert_same(p, q, scale=scale)
        with torch.no_grad():
            assert_same(first(run(*to_jax(inputs))), first(model(*inputs)), False, scale)


def first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result
