"""The exponential of a matrix, by a Taylor polynomial and repeated squaring as on CPU.

The polynomial has degree 18 in five products: Bader, Blanes and Casas, Computing the matrix
exponential with an optimized Taylor polynomial approximation, Mathematics 7 (2019), 1174. JAX's
``expm`` solves linear systems for a rational function and is less accurate in float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op

# a row each for the polynomial's five sums of 1, A, A², A³ and A⁶
_SUMS = np.array(
    [
        [0, -1.00365581030144618e-01, -8.02924648241156932e-03, -8.92138498045729985e-04, 0],
        [0, 3.97849749499645078e-01, 1.36783778460411720, 0.498289622525382669]
        + [-6.37898194594723280e-04],
        [-10.9676396052962062, 1.68015813878906206, 5.71779846478865511e-02]
        + [-6.98210122488052056e-03, 3.34975017086070471e-05],
        [-9.04316832390810593e-02, -6.76404519071381882e-02, 6.75961301770459655e-02]
        + [2.95552570429315521e-02, -1.39180257516060693e-05],
        [0, 0, -9.23364619367118555e-02, -1.69364939002081723e-02, -1.40086798182036094e-05],
    ]
)

# the norm up to which the polynomial is exact to the last digit
_REACH = {np.dtype(np.float32): 3.010066362817634, np.dtype(np.float64): 1.090863719290036}


def _polynomial(a: jax.Array) -> jax.Array:
    def product(x, y):
        return jnp.matmul(x, y, precision=Precision.HIGHEST)

    square = product(a, a)
    cube = product(square, a)
    powers = jnp.stack([jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape), a])
    powers = jnp.concatenate([powers, jnp.stack([square, cube, product(cube, cube)])])
    weights = _SUMS.astype(np.finfo(a.dtype).dtype)
    b = [sum(w * power for w, power in zip(row, powers, strict=True) if w) for row in weights]
    ninth = product(b[0], b[4]) + b[3]
    return b[1] + product(b[2] + ninth, ninth)


@op("linalg_matrix_exp")
def linalg_matrix_exp(self):
    """Compute half types in float32."""
    if self.size == 0:
        return self
    a = self.astype(opmath(self.dtype))
    real = np.finfo(a.dtype).dtype
    norm = jnp.max(jnp.sum(jnp.abs(a), -2), -1)
    needed = jnp.ceil(jnp.log2(norm / np.asarray(_REACH[real], real)))
    # beyond the range of exponents nothing but zeros would be squared
    count = jnp.clip(jnp.nan_to_num(needed), 0, np.finfo(real).maxexp)[..., None, None]

    def square(i, x):
        return jnp.where(i < count, jnp.matmul(x, x, precision=Precision.HIGHEST), x)

    most = jnp.max(count).astype(jnp.int32)
    return jax.lax.fori_loop(0, most, square, _polynomial(a * jnp.exp2(-count).astype(a.dtype)))
