"""Flash attention: no matrix of scores is ever whole, neither forwards nor backwards.

A program of the grid holds a block of queries (backwards once more a block of keys) and goes over
the blocks of the other side. What the backward pass needs besides is one number for each query,
the logarithm of its sum of exponentials.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.experimental import pallas as pl

import torch_jax

BLOCK = 16


def _block(width: int) -> pl.BlockSpec:
    """The block of the program's number, of the head of its other number."""
    return pl.BlockSpec((None, BLOCK, width), lambda head, i: (head, i, 0))


def _whole(length: int, width: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, length, width), lambda head, i: (head, 0, 0))


def _grid(q, *_others, **_static):
    return q.shape[0], q.shape[1] // BLOCK


def _numbers(q):
    """One number for each query."""
    return jax.ShapeDtypeStruct((*q.shape[:2], 1), q.dtype)


def _scores(q, k, first_query, first_key, causal):
    scores = (q @ k.T) * (q.shape[-1] ** -0.5)
    if not causal:
        return scores
    queries = first_query + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    keys = first_key + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    return jnp.where(queries >= keys, scores, -jnp.inf)


def _part(ref, i):
    return ref[pl.ds(i * BLOCK, BLOCK), :]


def _query_specs(q, k, v, *others, **_):
    length, width = q.shape[1:]
    specs = [_block(width), _whole(length, width), _whole(length, width)]
    return specs + [_block(other.shape[-1]) for other in others]


@torch_jax.pallas_op(
    out_shape=lambda q, *_, **__: q,
    grid=_grid,
    in_specs=_query_specs,
    out_specs=lambda q, *_, **__: _block(q.shape[2]),
)
def queries_kernel(q_ref, k_ref, v_ref, do_ref, sums_ref, delta_ref, dq_ref, *, causal):
    """The gradient of a block of queries."""
    first = pl.program_id(1) * BLOCK
    q, do = q_ref[...], do_ref[...]

    def add(i, dq):
        k, v = _part(k_ref, i), _part(v_ref, i)
        p = jnp.exp(_scores(q, k, first, i * BLOCK, causal) - sums_ref[...])
        return dq + (p * (do @ v.T - delta_ref[...])) @ k

    count = k_ref.shape[0] // BLOCK
    dq_ref[...] = lax.fori_loop(0, count, add, jnp.zeros_like(q)) * (q.shape[-1] ** -0.5)


def _key_specs(k, v, q, *others, **_):
    length, width = k.shape[1:]
    specs = [_block(width), _block(width), _whole(length, width)]
    return specs + [_whole(length, other.shape[-1]) for other in others]


@torch_jax.pallas_op(
    out_shape=lambda k, v, *_, **__: (k, v),
    grid=_grid,
    in_specs=_key_specs,
    out_specs=lambda k, v, *_, **__: (_block(k.shape[2]), _block(v.shape[2])),
)
def keys_kernel(k_ref, v_ref, q_ref, do_ref, sums_ref, delta_ref, dk_ref, dv_ref, *, causal):
    """The gradients of a block of keys and values."""
    first = pl.program_id(1) * BLOCK
    k, v = k_ref[...], v_ref[...]

    def add(i, sums):
        dk, dv = sums
        q, do = _part(q_ref, i), _part(do_ref, i)
        p = jnp.exp(_scores(q, k, i * BLOCK, first, causal) - _part(sums_ref, i))
        ds = p * (do @ v.T - _part(delta_ref, i))
        return dk + ds.T @ q, dv + p.T @ do

    count = q_ref.shape[0] // BLOCK
    dk, dv = lax.fori_loop(0, count, add, (jnp.zeros_like(k), jnp.zeros_like(v)))
    dk_ref[...], dv_ref[...] = dk * (k.shape[-1] ** -0.5), dv


def _backward(arguments, results, gradients, *, causal):
    (q, k, v), (o, sums), (do, _) = arguments, results, gradients
    delta = jnp.sum(o * do, axis=-1, keepdims=True)
    dq = queries_kernel.of_arrays(q, k, v, do, sums, delta, causal=causal)
    return dq, *keys_kernel.of_arrays(k, v, q, do, sums, delta, causal=causal)


@torch_jax.pallas_op(
    out_shape=lambda q, k, v, *, causal: (q, _numbers(q)),
    grid=_grid,
    in_specs=_query_specs,
    out_specs=lambda q, k, v, *, causal: (_block(q.shape[2]), _block(1)),
    backward=_backward,
)
def forward_kernel(q_ref, k_ref, v_ref, o_ref, sums_ref, *, causal):
    """A block of queries: its attention, and the logarithms of its sums of exponentials."""
    first = pl.program_id(1) * BLOCK
    q = q_ref[...]

    def add(i, so_far):
        most, total, o = so_far
        scores = _scores(q, _part(k_ref, i), first, i * BLOCK, causal)
        now = jnp.maximum(most, scores.max(axis=1, keepdims=True))
        p, shrunk = jnp.exp(scores - now), jnp.exp(most - now)
        total = total * shrunk + p.sum(axis=1, keepdims=True)
        return now, total, o * shrunk + p @ _part(v_ref, i)

    start = jnp.full((BLOCK, 1), -jnp.inf, q.dtype), jnp.zeros((BLOCK, 1), q.dtype)
    count = k_ref.shape[0] // BLOCK
    most, total, o = lax.fori_loop(0, count, add, (*start, jnp.zeros_like(q)))
    o_ref[...], sums_ref[...] = o / total, most + jnp.log(total)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """``scaled_dot_product_attention`` of ``[..., length, width]``; lengths are of whole blocks."""
    if q.shape[-2] % BLOCK or k.shape[-2] % BLOCK:
        raise ValueError(f"lengths {q.shape[-2]} and {k.shape[-2]} are no multiples of {BLOCK}")
    if q.shape != k.shape or q.shape != v.shape:
        raise ValueError("queries, keys and values have other shapes than each other")
    heads = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    o, _ = forward_kernel(*heads, causal=causal)
    return o.view_as(q)
