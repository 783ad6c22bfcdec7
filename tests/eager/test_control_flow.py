"""``torch.cond``, ``while_loop``, ``scan``, ``map``: Python in eager mode, JAX's under a trace."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch._higher_order_ops import map as hop_map
from torch._higher_order_ops import scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

from torch_jax.memory import transfer
from torch_jax.memory.storage import wrap


def branch(x):
    weight = torch.full((4,), 2.0, device=x.device)
    return torch.cond(x.sum() > 0, lambda x: x.sin() * weight, lambda x: x.cos(), (x,))


def loop(x):
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (start, x))


def running(x):
    return scan(lambda c, a: (c + a, c * a), torch.zeros((), device=x.device), x)


def mapped(x):
    return hop_map(lambda a: a * 2 + 1, x.view(2, 2))


def gradient(function):
    def call(x):
        x = x.detach().requires_grad_()
        results = pytree.tree_leaves(function(x))
        total = sum(r.sum() for r in results if r.is_floating_point())
        return torch.autograd.grad(total, x)[0]

    return call


PROGRAMS = {
    "cond": (branch, "cond"),
    "while_loop": (loop, "while"),
    "scan": (running, "scan"),
    "map": (mapped, "scan"),
    "gradient of cond": (gradient(branch), "cond"),
    "gradient of scan": (gradient(running), "scan"),
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("function, primitive", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.slow
def test_the_same_in_eager_mode_under_a_trace_and_on_the_cpu(function, primitive, sign):
    x = sign * torch.arange(1.0, 5.0)
    expected = pytree.tree_leaves(function(x))
    eager = pytree.tree_leaves(function(x.to("jax")))

    def program(array):
        results = pytree.tree_leaves(function(wrap(array, torch.float32)))
        return [transfer.value_of(r) for r in results]

    with jax.enable_x64(True):
        array = sign * jnp.arange(1.0, 5.0, dtype=jnp.float32)
        jaxpr = jax.make_jaxpr(program)(array)
        traced = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, array)
    assert primitive in [equation.primitive.name for equation in jaxpr.jaxpr.eqns]
    for want, one, other in zip(expected, eager, traced, strict=True):
        torch.testing.assert_close(one.detach().cpu(), want.detach())
        torch.testing.assert_close(torch.tensor(other.tolist(), dtype=want.dtype), want.detach())


def causal(batch, head, i, j):
    return i >= j


@pytest.mark.slow
def test_flex_attention_with_a_score_function_and_with_a_mask():
    query = torch.randn(1, 2, 16, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    q = query.to("jax").requires_grad_()
    scored = flex_attention(
        q, q, q, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf"))
    )
    mask = create_block_mask(causal, 1, 1, 16, 16, device="jax")
    masked = flex_attention(q, q, q, block_mask=mask)
    for result in (scored, masked):
        torch.testing.assert_close(result.detach().cpu(), expected)
    (by_flex,) = torch.autograd.grad(scored.sum(), q)
    fused = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    (by_fused,) = torch.autograd.grad(fused.sum(), q)
    torch.testing.assert_close(by_flex.cpu(), by_fused.cpu())
