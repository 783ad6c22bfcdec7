"""Attention of any shape, by blocks of query rows, of which each meets all keys that it may see.

A block's scores are complete rows: their softmax needs no second pass, and none of them is stored.
Under a causal mask a block is given the keys up to its own last row only, so that half of the
work is skipped. The gradient computes the scores of a block again, from log-sum-exp, with a row for
each key: two of its three products then take them as they lie, and one needs them turned.

Arrays here have five dims: batch, heads of keys, heads of the query for each of these, rows, width.
Products take their operands in the input's dtype and sum in float32; the softmax is in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.attention_forms import Group
from torch_jax.ops.conv_forms import padded
from torch_jax.ops.precision import precision
from torch_jax.ops.promotion import HALVES, opmath

# The factors of dropout, by the start of a block and the shape of its weights.
Dropout = Callable[[Any, tuple[int, ...]], jax.Array]


class Attention(NamedTuple):
    """The arguments of a call."""

    query: jax.Array  # (batch, key heads, query heads for each, rows, width)
    key: jax.Array  # (batch, key heads, keys, width)
    value: jax.Array  # likewise, with a width of its own
    # numbers added to scores (bool: the keys seen), of the scores' five dims or 1
    bias: jax.Array | None
    is_causal: bool  # whether row i sees the keys up to i only
    scale: float  # of the scores
    dropout: Dropout | None  # the factors of weights
    groups: tuple[Group, ...]  # the blocks
    # Whether weights are divided by their sum, and not the result, which is less work: XLA's GPU
    # compiler then makes one kernel of a softmax.
    divides_weights: bool


def product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``einsum`` of two operands in the second one's dtype, summed in float32 or better."""
    wide = opmath(b.dtype)
    a = a.astype(b.dtype)
    return jnp.einsum(equation, a, b, precision=precision(b.dtype), preferred_element_type=wide)


def forward(call: Attention) -> tuple[jax.Array, jax.Array]:
    """Return the result, in float32 or better, and log-sum-exp of each row's scores.

    Rows that see nothing give 0, and a log-sum-exp of -inf.
    """
    sees = _rows_that_see(call)
    if sees is not None and call.bias is not None:
        # a row that sees nothing is given all keys here, so that it does not divide by 0
        opened = call.bias | ~sees if call.bias.dtype == bool else jnp.where(sees, call.bias, 0)
        call = call._replace(bias=opened)
    found = [_by_blocks(group, _attend, call) for group in call.groups]
    out, sums = (_joined(list(parts), 3) for parts in zip(*found, strict=True))
    if sees is None:
        return out, sums
    return jnp.where(sees, out, 0), jnp.where(sees[..., 0], sums, -jnp.inf)


def _rows_that_see(call: Attention) -> jax.Array | None:
    """Return which rows see a key, of the scores' dims or 1; None where all do, by the shapes.

    The mask decides, and not the scores: XLA's GPU compiler makes one kernel of a softmax only
    where nothing is selected inside.
    """
    rows, keys = call.query.shape[3], call.key.shape[2]
    if isinstance(keys, int) and keys == 0:
        return jnp.zeros((1,) * 5, bool)
    if call.bias is None:
        return None
    sees = call.bias if call.bias.dtype == bool else call.bias != -jnp.inf
    if call.is_causal:
        sees = sees & (jnp.arange(rows)[:, None] >= jnp.arange(keys))
    return sees.any(-1, keepdims=True)


def _attend(call: Attention, block: _Block) -> tuple[jax.Array, jax.Array]:
    weights, total, log_sum_exp = _exponentials(call, block)
    if call.divides_weights:
        weights = weights / total
    if call.dropout is not None:
        weights = weights * call.dropout(block.start, weights.shape)
    out = product("nhgqk,nhkd->nhgqd", weights, block.keys(call.value))
    return out if call.divides_weights else out / total, log_sum_exp[..., 0]


def _exponentials(call: Attention, block: _Block) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return weights times their sum, their sum, and log-sum-exp.

    Dividing by the sum is ten times as accurate as subtracting its logarithm from the scores.
    """
    scores = product("nhgqd,nhkd->nhgqk", block.rows(call.query), block.keys(call.key))
    scores = _masked(scores, call, block, lambda x: x)
    largest = scores.max(-1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights, total, largest + jnp.log(total)


def backward(
    call: Attention, grad: jax.Array, out: jax.Array, log_sum_exp: jax.Array, of_bias: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Return gradients of query, key, value and, if asked for, of the bias; given the result's.

    They are in float32 or better.
    """
    # A row of nothing but -inf: its weights are to be 0, not exp(-inf + inf).
    of_rows = jnp.where(log_sum_exp == -jnp.inf, jnp.inf, log_sum_exp)[..., None]
    # The sum of weights times their gradients. Of half types it is not taken from the result,
    # which is rounded.
    inner = None
    if out.dtype not in HALVES:
        inner = (grad * out).sum(-1, keepdims=True)

    def of_block(call: Attention, block: _Block) -> tuple[tuple, tuple]:
        rows, grads = _flat(block.rows(call.query)), _flat(block.rows(grad))
        keys, values = block.keys(call.key), block.keys(call.value)
        shape = (*keys.shape[:3], call.query.shape[2], block.length)
        of_weights = product("nhkd,nhrd->nhkr", values, grads.astype(values.dtype)).reshape(shape)
        scores = product("nhkd,nhrd->nhkr", keys, rows).reshape(shape)
        scores = _masked(scores, call, block, _turned)
        if scores.dtype == of_rows.dtype:
            weights = dropped = jnp.exp(scores - _turned(block.rows(of_rows)))
        else:  # PyTorch keeps log-sum-exp in float32, which is too little for float64
            found, total, _ = _exponentials(call, block)
            found = jnp.where(block.rows(of_rows) == jnp.inf, 0, found / total)
            weights = dropped = _turned(found)
        if call.dropout is not None:
            kept = _turned(call.dropout(block.start, (*shape[:2], *shape[3:], shape[2])))
            dropped, of_weights = weights * kept, of_weights * kept
        if inner is None:
            of_row = (of_weights * weights).sum(2, keepdims=True)
        else:
            of_row = _turned(block.rows(inner))
        of_scores = weights * (of_weights - of_row)
        turned = of_scores.reshape(*shape[:3], -1)
        query = product("nhkr,nhkd->nhrd", turned, keys) * call.scale
        query = query.reshape(*shape[:2], *shape[3:], -1)
        key = product("nhkr,nhrd->nhkd", turned, rows) * call.scale
        value = product("nhkr,nhrd->nhkd", dropped.reshape(turned.shape), grads)
        if not of_bias or call.bias is None:
            return (query,), (key, value)
        # the transpose of the bias's broadcast over a block, but for its rows, one or as many
        of_scores = jnp.moveaxis(of_scores, 2, 4)
        axes = [d for d in range(5) if call.bias.shape[d] == 1 and of_scores.shape[d] != 1]
        return (query, of_scores.sum(axes, keepdims=True)), (key, value)

    return _summed_up(call, of_block, of_bias)


def _summed_up(call: Attention, of_block: Any, of_bias: bool) -> tuple:
    keys = call.key.shape[2]  # of which no row of a group may see the last
    of_rows, of_keys = [], []
    for group in call.groups:
        rows, sums = _by_blocks(group, of_block, call, sums=True)
        of_rows.append(rows)
        of_keys.append([padded(x, 2, [(0, keys - x.shape[2])]) for x in sums])
    key, value = (sum(parts[1:], parts[0]) for parts in zip(*of_keys, strict=True))
    query = _joined([rows[0] for rows in of_rows], 3)
    bias = None
    if of_bias and call.bias is not None:
        width = call.bias.shape[-1]
        parts = [padded(x, 4, [(0, width - x.shape[4])]) for _, x in of_rows]
        bias = _joined(parts, 3)
        if call.bias.shape[3] == 1:
            bias = bias.sum(3, keepdims=True)
    return query, key, value, bias


class _Block(NamedTuple):
    """Some rows of the query, and the keys that they are given: the first ``seen``."""

    start: Any
    length: int
    seen: int

    def rows(self, x: jax.Array) -> jax.Array:
        """Return the block's rows of an array with five dims, or with one row for all."""
        if x.shape[3] == 1 or x.shape[3] == self.length:
            return x
        if isinstance(self.start, int):
            return lax.slice_in_dim(x, self.start, self.start + self.length, axis=3)
        return lax.dynamic_slice_in_dim(x, self.start, self.length, 3)

    def keys(self, x: jax.Array) -> jax.Array:
        return x if x.shape[2] == self.seen else lax.slice_in_dim(x, 0, self.seen, axis=2)


def _by_blocks(group: Group, function: Any, call: Attention, sums: bool = False) -> Any:
    """Return the results of ``function`` for the blocks of a group, their rows joined.

    With ``sums`` a block gives two tuples, of which the arrays of the second are added up.
    """
    if group.stop - group.start == group.block:
        return function(call, _Block(group.start, group.block, group.keys))

    def step(total: Any, start: Any) -> Any:
        found = function(call, _Block(start, group.block, group.keys))
        if not sums:
            return None, found
        rows, parts = found
        return tuple(a + b for a, b in zip(total, parts, strict=True)), rows

    first = None
    if sums:
        shapes = jax.eval_shape(lambda: step((0, 0), group.start)[0])
        first = tuple(jnp.zeros(x.shape, x.dtype) for x in shapes)
    total, rows = lax.scan(step, first, jnp.arange(group.start, group.stop, group.block))
    # (blocks, batch, heads, heads, rows, …) as (batch, heads, heads, all rows, …)
    moved = (jnp.moveaxis(x, 0, 3) for x in rows)
    rows = tuple(x.reshape(*x.shape[:3], -1, *x.shape[5:]) for x in moved)
    return (rows, total) if sums else rows


def _joined(parts: list[jax.Array], axis: int) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def _masked(
    scores: jax.Array, call: Attention, block: _Block, turn: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Return products of rows and keys as scores; ``turn`` orders a mask's dims like theirs."""
    scores = scores * call.scale
    if call.bias is not None:
        bias = block.rows(call.bias)
        if bias.shape[-1] != 1:
            bias = bias[..., : block.seen]
        bias = turn(bias)
        if bias.dtype == jnp.bool_:
            scores = jnp.where(bias, scores, -jnp.inf)
        else:
            scores = scores + bias.astype(scores.dtype)
    if call.is_causal:
        rows = block.start + jnp.arange(block.length)
        sees = rows[:, None] >= jnp.arange(block.seen)
        scores = jnp.where(turn(sees[None, None, None]), scores, -jnp.inf)
    return scores


def _turned(x: jax.Array) -> jax.Array:
    """Return (…, heads, rows, keys) as (…, keys, heads, rows)."""
    return jnp.moveaxis(x, 4, 2)


def _flat(x: jax.Array) -> jax.Array:
    """Return rows of all heads that share keys, in sequence: products want one such dim."""
    return x.reshape(*x.shape[:2], -1, x.shape[4])
