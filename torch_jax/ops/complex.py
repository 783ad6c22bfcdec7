"""Complex numbers from their parts, and back."""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.promotion import HALVES, category, opmath, promote
from torch_jax.ops.registry import op


def _make(real, imag):
    wide = opmath(real.dtype)  # complex32 has no twin in JAX
    return lax.complex(*jnp.broadcast_arrays(real.astype(wide), imag.astype(wide)))


@op("complex")
def complex_(real, imag):
    """Return complex numbers from real and imaginary part, of one dtype."""
    if real.dtype != imag.dtype:
        raise TypeError(f"complex() of {real.dtype} and {imag.dtype}")
    return _make(*promote(real, imag))


def _polar_off_0(size, angle):
    size, angle = promote(size, angle)
    return _make(*(jnp.where(size == 0, 0, size) * part(angle) for part in (jnp.cos, jnp.sin)))


@op("polar")
@differentiated_as(_polar_off_0)
def polar(size, angle):
    """Return complex numbers from absolute value and angle; the CPU refuses half types."""
    if size.dtype in HALVES:
        raise NotImplementedError(f"polar of {size.dtype}")
    size, angle = promote(size, angle)
    return _make(size * jnp.cos(angle), size * jnp.sin(angle))


@op("angle")
def angle(self):
    """Return the angle; of reals, pi below zero; -0.0 is not below; NaN stays."""
    if category(self.dtype) == 3:
        return jnp.angle(self)
    if category(self.dtype) < 2:
        return jnp.where(self < 0, math.pi, 0.0)
    pi = np.asarray(math.pi, self.dtype)
    return jnp.where(jnp.isnan(self), self, jnp.where(self < 0, pi, 0).astype(self.dtype))


@op("conj_physical", "_conj_physical")
def conj_physical(self):
    """Do ``jnp.conj``; reals unchanged."""
    return jnp.conj(self) if category(self.dtype) == 3 else self
