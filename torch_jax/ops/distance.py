"""Distances between the rows of two batches of matrices, and their gradients.

Differences are broadcast and reduced in one fused loop, so that the table of all differences is
never stored.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.derivatives import differentiated_as, root, transposed
from torch_jax.ops.reduction import ORDERS, vector_norm
from torch_jax.ops.registry import known, op


@op("_euclidean_dist")
def euclidean_dist(x1, x2):
    """Use one matrix product: ``|a|² + |b|² - 2 a·b``, which loses digits where rows are near.

    As on the CPU the squares are columns of the product, so that the same digits are lost.
    """
    a, b = (jnp.sum(x * x, -1, keepdims=True) for x in (x1, x2))
    left = jnp.concatenate([-2 * x1, a, jnp.ones_like(a)], -1)
    right = jnp.concatenate([x2, jnp.ones_like(b), b], -1)
    square = jnp.matmul(left, right.swapaxes(-1, -2), precision=lax.Precision.HIGHEST)
    return root(jnp.maximum(square, 0))


def _with_all_largest(difference, p):
    """Return a distance for which each of equal largest differences has the whole slope."""
    distance = vector_norm(difference, p, (-1,))
    if known(p) != np.inf:
        return distance
    slope = _slope(difference, distance[..., None], p)
    return jnp.sum(lax.stop_gradient(slope) * difference, -1)


@differentiated_as(_with_all_largest)
def _distance(difference, p):
    return vector_norm(difference, p, (-1,))


def _differences(x1, x2):
    return x1[..., :, None, :] - x2[..., None, :, :]


# the values of ``compute_mode``, and the number of rows beyond which the product is used
_IF_LARGE, _WITH_PRODUCT = 0, 1
_LARGE = 25


@op("_cdist_forward", static={"p": ORDERS})
@differentiated_as(lambda x1, x2, p, compute_mode: _distance(_differences(x1, x2), p))
def cdist(x1, x2, p, compute_mode):
    """Use the product for Euclidean distances of many rows, as on CPU."""
    mode = compute_mode or _IF_LARGE
    large = max(x1.shape[-2], x2.shape[-2]) > _LARGE
    if known(p) == 2 and (mode == _WITH_PRODUCT or (mode == _IF_LARGE and large)):
        return euclidean_dist(x1, x2)
    return _distance(_differences(x1, x2), p)


def _slope(difference, distance, p: float):
    """Return the derivative of ``distance`` by ``difference``; 0 where it is not defined."""
    size, sign = jnp.abs(difference), jnp.sign(difference)
    if known(p) == 0:
        return jnp.zeros_like(difference)
    if known(p) == 1:
        return sign
    if known(p) == np.inf:
        return jnp.where(size == distance, sign, 0)
    undefined = (distance == 0) | ((size == 0) & (p < 1))
    safe = jnp.where(undefined, 1, distance)
    ratio = jnp.where(undefined, 1, size) / safe
    if known(p) == 2:
        return jnp.where(undefined, 0, difference / safe)
    return jnp.where(undefined, 0, sign * ratio ** (p - 1))


@op("_cdist_backward", static={"p": ORDERS})
def cdist_backward(grad, x1, x2, p, cdist):
    """Return the gradient of the first operand."""
    if grad.size == 0 or x1.size == 0:
        return jnp.zeros_like(x1)  # not broadcast to the batch of ``x2``
    slope = _slope(_differences(x1, x2), cdist[..., None], p)
    return jnp.sum(grad[..., None] * slope, -2)


@op("_pdist_forward", static={"p": ORDERS})
def pdist(self, p=2.0):
    """Return distances of the pairs of rows above the diagonal."""
    i, j = np.triu_indices(len(self), 1)
    return _distance(self[i] - self[j], p)


@op("_pdist_backward", static={"p": ORDERS})
def pdist_backward(grad, self, p, pdist):
    """Return gradients: each pair pulls at both of its rows."""
    i, j = np.triu_indices(len(self), 1)
    pull = grad[:, None] * _slope(self[i] - self[j], pdist[:, None], p)
    return transposed(lambda rows: rows[i] - rows[j], pull, self.shape)
