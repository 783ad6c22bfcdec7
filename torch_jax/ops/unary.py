"""Functions of one operand: rounding, exponentials, trigonometry, special functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torch_jax.ops.derivatives import magnitude, slope
from torch_jax.ops.promotion import category, floating, opmath
from torch_jax.ops.registry import op

Unary = Callable[[jax.Array], jax.Array]


def wide_float(x: jax.Array) -> jax.Array:
    """Return ``x`` in the float (or complex) dtype PyTorch computes in."""
    return x.astype(opmath(floating(x.dtype)))


def float_op(name: str, function: Unary) -> None:
    """Enter ``function``, computed in the float dtype that PyTorch computes in."""

    def lowering(self):
        return function(wide_float(self))

    lowering.__doc__ = f"``{getattr(function, '__name__', name)}``; integers become floats."
    op(name)(lowering)


def _erfinv(x):
    """Refine by one step of Newton's where the function is steep; XLA's loses digits there."""
    size = jnp.abs(x)
    steep = (size > 0.5) & (size < 1)
    y = jnp.abs(lax.erf_inv(jnp.where(steep, x, 0)))
    excess = (1 - size) - lax.erfc(y)
    refined = y - excess * (math.sqrt(math.pi) / 2) * jnp.exp(y * y)
    return jnp.where(steep, jnp.copysign(refined, x), lax.erf_inv(x))


def _by_quadrant(function: Unary, real: int, imag: int) -> Unary:
    """Return ``function`` with the signs of the parts of its complex argument.

    So a zero's sign shows its side of a branch cut. Of the real and the imaginary part, 1 means
    that sign, -1 the other, 0 no change.
    """

    def signed(value, part, sign):
        return jnp.copysign(value, sign * part) if sign else value

    def of_quadrant(x):
        if category(x.dtype) != 3:
            return function(x)
        y = function(x)
        return lax.complex(signed(y.real, x.real, real), signed(y.imag, x.imag, imag))

    of_quadrant.__doc__ = function.__doc__
    return of_quadrant


sqrt = _by_quadrant(jnp.sqrt, 0, 1)


def _exp(x):
    """Return ``exp(x)``; 0 for complex minus infinity, under any angle."""
    y = jnp.exp(x)
    return jnp.where(x.real == -np.inf, 0, y) if category(x.dtype) == 3 else y


def _exp2(x):
    """Put the whole part into the exponent: XLA's own ``exp2`` loses digits with its size."""
    if category(x.dtype) == 3:
        return _exp(lax.complex(x.real * math.log(2), x.imag * math.log(2)))
    whole = jnp.clip(jnp.round(x), -2000, 2000)
    whole = jnp.where(jnp.isnan(x), 0, whole)
    rest = jnp.where(jnp.isinf(x), 0, x - whole)
    return jnp.ldexp(jnp.exp(rest * math.log(2)), whole.astype(jnp.int32))


def _cosh(x):
    """Multiply exponentials: XLA's ``cosh`` loses digits with the size of ``x``."""
    if category(x.dtype) == 3:
        return _hyperbolic(_cosh, _sinh, x)
    half = jnp.exp(jnp.abs(x) / 2)
    return half / 2 * half + jnp.exp(-jnp.abs(x)) / 2


def _sinh(x):
    if category(x.dtype) == 3:
        return _hyperbolic(_sinh, _cosh, x)
    half = jnp.exp(jnp.abs(x) / 2)
    large = half / 2 * half - jnp.exp(-jnp.abs(x)) / 2
    return jnp.where(jnp.abs(x) < 1, jnp.sinh(x), jnp.copysign(large, x))


def _hyperbolic(real: Unary, imag: Unary, z: jax.Array) -> jax.Array:
    x, y = z.real, z.imag
    zero = jnp.zeros_like(x)
    return lax.complex(
        real(x) * jnp.where(y == 0, 1, jnp.cos(y)),
        jnp.where((y == 0) | (x == 0) & (imag is _sinh), zero, imag(x) * jnp.sin(y)),
    )


def sigmoid(x):
    """Return the logistic function, of complex numbers too."""
    return 1 / (1 + jnp.exp(-x)) if category(x.dtype) == 3 else jax.nn.sigmoid(x)


for _name, _function in {
    "acos": _by_quadrant(jnp.arccos, 0, -1),
    "acosh": _by_quadrant(jnp.arccosh, 0, 1),
    "asin": _by_quadrant(jnp.arcsin, 1, 1),
    "asinh": _by_quadrant(jnp.arcsinh, 1, 1),
    "atan": _by_quadrant(jnp.arctan, 1, 1),
    "atanh": _by_quadrant(jnp.arctanh, 1, 1),
    "cosh": _cosh,
    "deg2rad": lambda x: x * (math.pi / 180),
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": _erfinv,
    "exp": _exp,
    "exp2": _exp2,
    "i0": slope(jsp.i1)(jsp.i0),
    "rad2deg": lambda x: x * (180 / math.pi),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / sqrt(x),
    "sigmoid": sigmoid,
    "sinh": _sinh,
    "special_modified_bessel_i0": jsp.i0,
    "special_modified_bessel_i1": jsp.i1,
    "sqrt": sqrt,
}.items():
    float_op(_name, _function)
for _name in "cos expm1 log log10 log1p log2 sin sinc tan tanh".split():
    float_op(_name, getattr(jnp, _name))
for _name in "entr i0e i1 i1e log_ndtr ndtri".split():
    float_op(f"special_{_name}", getattr(jsp, _name))


def _rounding(name: str, function: Unary) -> None:
    def lowering(self):
        return function(self) if category(self.dtype) == 2 else self

    lowering.__doc__ = f"``{function.__name__}``; integers are whole already."
    op(name)(lowering)


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name, getattr(jnp, _name))


op("round.decimals")(lambda self, *, decimals: jnp.round(wide_float(self), decimals))
op("neg")(lambda self: -self)  # unsigned integers wrap around
op("frac", meta="trunc")(lambda self: self - jnp.trunc(self))  # of the sign of ``self``


@op("abs")
def absolute(self):
    """Return reals for complex numbers, infinite where a part is.

    XLA takes squares and absolute values of integers for positive, though they wrap around: it
    would leave out ``lax.abs`` of them.
    """
    if jnp.issubdtype(self.dtype, jnp.signedinteger):
        return jnp.maximum(self, -self)
    if category(self.dtype) < 3:
        return magnitude(self)
    size = jnp.abs(self)
    return jnp.where(jnp.isinf(self.real) | jnp.isinf(self.imag), np.inf, size)


@op("sign")
def sign(self):
    """Return the sign; 0 for NaN."""
    if self.dtype == jnp.bool_:
        return self
    if category(self.dtype) == 1:
        return jnp.sign(self)
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


# for complex, the number over its absolute value
op("sgn")(lambda self: jnp.sign(self) if category(self.dtype) == 3 else sign(self))
# of a float the bit, so also of -0.0 and NaN
op("signbit")(lambda self: jnp.signbit(self) if category(self.dtype) == 2 else self < 0)


@op("nan_to_num")
def nan_to_num(self, nan=None, posinf=None, neginf=None):
    """Replace NaN and infinities; these become the largest numbers unless others are given."""
    return jnp.nan_to_num(self, nan=0 if nan is None else nan, posinf=posinf, neginf=neginf)


@op("logit")
def logit(self, eps=None):
    """Clamp to ``[eps, 1 - eps]`` first where ``eps`` is given; the lower limit goes first."""
    x = wide_float(self)
    if eps is not None:
        low = jnp.asarray(eps).astype(x.dtype)
        x = jnp.where(x < low, low, jnp.where(x > 1 - low, 1 - low, x))
    return jnp.log(x / (1 - x))


@op("logit_backward")
def logit_backward(grad_output, self, eps=None):
    """Return NaN outside ``[0, 1]`` where ``eps`` is None or negative; else 0 beyond its limits."""
    x = wide_float(self)
    g = grad_output.astype(x.dtype)
    given = jnp.asarray(-1 if eps is None else eps).astype(x.dtype)
    low, outside = jnp.where(given < 0, 0, given), jnp.where(given < 0, np.nan, 0)
    return jnp.where((x < low) | (x > 1 - low), outside, g / (x * (1 - x)))


@op("frexp.Tensor")
def frexp(self):
    """Return mantissa and int32 exponent."""
    mantissa, exponent = jnp.frexp(wide_float(self))
    special = ~jnp.isfinite(self)
    return jnp.where(special, self, mantissa), jnp.where(special, 0, exponent).astype(jnp.int32)
