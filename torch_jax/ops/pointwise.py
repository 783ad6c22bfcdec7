"""Arithmetic of two or three operands: sums, products, quotients, powers, limits.

Operands are brought to their common dtype first. Half types are computed in float32 and rounded
once; in sums, products and quotients a number or zero-dim operand of theirs is not rounded before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax import target
from torch_jax.ops.derivatives import as_it_is, differentiated_as
from torch_jax.ops.gamma import igamma, igammac, zeta
from torch_jax.ops.promotion import (
    HALVES,
    cast,
    category,
    convert,
    floating,
    opmath,
    promote,
    result_type,
)
from torch_jax.ops.registry import known, op


def wide(*operands: Any, to_float: bool = False) -> list[Any]:
    """Return the operands in the dtype PyTorch computes their result in; None stays None."""
    dtype = result_type(*operands)
    dtype = opmath(floating(dtype) if to_float else dtype)
    return [None if x is None else cast(jnp.asarray(x), dtype) for x in operands]


def pointwise(*names: str, to_float: bool = False, **options: Any) -> Callable[..., Any]:
    """Enter a function that takes its operands :func:`wide`, and flags as they are, in the table.

    It may be called as the operator is, with operands of any dtypes.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def lowering(*args: Any, **by_name: Any) -> Any:
            operands = iter(wide(*(x for x in args if type(x) is not bool), to_float=to_float))
            return function(*(x if type(x) is bool else next(operands) for x in args), **by_name)

        return op(*names, **options)(lowering)

    return enter


def is_one(x: Any) -> bool:
    """Return whether a factor is the schema's default, which is never traced."""
    return type(x) is int and x == 1


def _scaled(x, factor):
    return x if is_one(factor) else x * jnp.asarray(factor).astype(x.dtype)


def _times_alpha(x, alpha):
    """Scale by a number that must be of no higher kind, and a bool for bools only."""
    kind = 1 if is_one(alpha) else category(jnp.asarray(alpha).dtype)
    if kind > max(category(x.dtype), 1) or (kind == 0 and category(x.dtype) > 0):
        raise TypeError(f"alpha of dtype {jnp.asarray(alpha).dtype} for operands of {x.dtype}")
    return _scaled(x, alpha)


@op("add.Tensor", "add.Scalar")
def add(self, other, *args, alpha=1):
    """Add; of bools, ``or``; ``alpha`` is positional in the Scalar overload."""
    self, other = wide(self, other)
    return self + _times_alpha(other, args[0] if args else alpha)


@op("sub.Tensor", "sub.Scalar")
def sub(self, other, *args, alpha=1):
    """Subtract, but no bools; ``alpha`` is positional in the Scalar overload."""
    if any(category(jnp.asarray(x).dtype) == 0 for x in (self, other)):
        raise TypeError("subtraction of bools")  # the CPU says it in more words
    self, other = wide(self, other)
    return self - _times_alpha(other, args[0] if args else alpha)


@op("rsub.Tensor", "rsub.Scalar")
def rsub(self, other, *args, alpha=1):
    """Return ``other - alpha * self``."""
    return sub(other, self, *args, alpha=alpha)


@op("_add_relu.Tensor", "_add_relu.Scalar")
def add_relu(self, other, *args, alpha=1):
    """Return ``relu(self + alpha * other)``; NaN becomes 0, infinity the largest number."""
    total = add(self, other, *args, alpha=alpha)
    if category(total.dtype) == 2:
        return jnp.where(total > 0, jnp.minimum(total, jnp.finfo(total.dtype).max), 0)
    return jnp.maximum(total, 0)


pointwise("mul.Tensor", "mul.Scalar")(lambda self, other: self * other)  # of bools, ``and``


def quotient(a, b):
    """Return ``a / b`` as PyTorch rounds it: on the CPU correctly; else one bit may differ.

    XLA multiplies with the reciprocal of a divisor that is one number for many elements, as
    PyTorch's CUDA kernels do; 41 / 41 is then less than 1.
    """
    return exact_quotient(a, b) if target.on_cpu() else a / b


def exact_quotient(a, b):
    """Return ``a / b``, correctly rounded: XLA takes no reciprocal of what depends on elements."""
    return a / (jnp.where(a != a, a, b) if category(a.dtype) == 2 else b)


def rounded(x, dtype):
    """Return ``x``, computed in float32, with the digits of the half type ``dtype``."""
    if x.dtype == dtype:
        return x
    limits = jnp.finfo(dtype)
    return lax.reduce_precision(x, limits.nexp, limits.nmant)


@differentiated_as(lambda a, b: jnp.zeros_like(a))
def _floor_divide(a, b):
    """Divide as Python's ``//``; the float remainder is taken off first: an exact quotient."""
    rest = lax.rem(a, b)
    is_float = category(a.dtype) == 2
    quotient = (a - rest) / b if is_float else lax.div(a, b)
    quotient = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    if not is_float:
        return quotient
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(a), a / b), floor)
    return jnp.where(b == 0, a / b, floor)


def _check_divisor(self, other):
    """Return, for ``check=``, whether no integer is divided by zero."""
    dtype = result_type(self, other)
    if category(dtype) == 1:  # a number that the dtype cannot hold wraps: 256 is 0 for uint8
        divisor = jnp.asarray(other).astype(dtype)
        return jnp.all(divisor != 0), "ZeroDivisionError", RuntimeError
    return None


@op("div.Tensor", "div.Scalar")
@op(
    *("div.Tensor_mode", "div.Scalar_mode"),
    check=lambda self, other, rounding_mode: rounding_mode and _check_divisor(self, other),
)
def divide(self, other, *, rounding_mode=None):
    """Divide truly without a rounding mode: integers give a float."""
    if rounding_mode is None:
        result = quotient(*wide(self, other, to_float=True))
        return as_it_is(result) if category(result.dtype) == 2 else result
    dtype, is_number = result_type(self, other), jnp.ndim(other) == 0
    a, b = jnp.broadcast_arrays(*wide(self, other))
    if rounding_mode == "floor":
        return _floor_divide(a, b)
    if category(dtype) != 2:
        return lax.div(a, b)
    exact = exact_quotient(a, b)
    return jnp.trunc(exact if is_number else rounded(exact, dtype))


@op("floor_divide", meta="mul.Tensor", check=_check_divisor)
@op("floor_divide.Scalar", meta="mul.Scalar", check=_check_divisor)
def floor_divide(self, other):
    """Do ``div`` with ``rounding_mode="floor"``. The meta function, in Python, loses strides."""
    return divide(self, other, rounding_mode="floor")


def _with_fixed_sign(self, other):
    a, b = wide(self, other, to_float=True)
    return a * lax.stop_gradient(jnp.sign(a) * jnp.copysign(1, b))


@op("copysign.Tensor", meta="div.Tensor")
@op("copysign.Scalar", meta="div.Scalar")
@differentiated_as(_with_fixed_sign)
def copysign(self, other):
    """Do ``jnp.copysign``. The meta function, in Python, loses strides."""
    return jnp.copysign(*wide(self, other, to_float=True))


def _of_one_dtype(*operands: Any, to_float: bool = False) -> list[Any]:
    """Return the operands :func:`wide`, with numbers among them rounded to the result's dtype."""
    dtype = result_type(*operands)
    dtype = floating(dtype) if to_float else dtype
    each = zip(operands, wide(*operands, to_float=to_float), strict=True)
    return [x if getattr(given, "dtype", None) == dtype else rounded(x, dtype) for given, x in each]


def _integer_power(base, exponent):
    """Return an integer power; a negative exponent gives the reciprocal's integer part.

    ``jnp.power`` looks at the exponent's last six bits only.
    """

    def step(state):
        power, square, left = state
        power = jnp.where(left % 2 == 1, power * square, power)
        return power, square * square, left // 2

    base, exponent = jnp.broadcast_arrays(base, exponent)
    start = jnp.ones_like(base), base, jnp.maximum(exponent, 0)
    power, *_ = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)
    if not jnp.issubdtype(base.dtype, jnp.signedinteger):
        return power
    odd = jnp.where(exponent % 2 == 0, 1, -1).astype(base.dtype)
    reciprocal = jnp.where(base == 1, 1, jnp.where(base == -1, odd, 0)).astype(base.dtype)
    return jnp.where(exponent < 0, reciprocal, power)


def _power_but_0_to_0(self, exponent):
    self, exponent = _of_one_dtype(self, exponent)
    both = (self == 0) & (exponent == 0)
    return jnp.where(both, 1, jnp.power(jnp.where(both, 1, self), exponent))


@op("pow.Tensor_Tensor", "pow.Scalar")
@differentiated_as(_power_but_0_to_0)
def power(self, exponent):
    """Return the power; integers stay integers."""
    self, exponent = _of_one_dtype(self, exponent)
    if category(self.dtype) == 1:
        return _integer_power(self, exponent)
    if category(self.dtype) == 3:
        return jnp.where(self == 0, _power_of_zero(exponent), jnp.power(self, exponent))
    return as_it_is(jnp.power(self, exponent))


def _power_of_zero(exponent):
    """Return complex powers of 0 as the C library: only the sign of the real part counts."""
    real = jnp.where(exponent.real < 0, jnp.inf, jnp.nan)
    power = lax.complex(real, jnp.full_like(real, jnp.nan)).astype(exponent.dtype)
    return jnp.where(exponent.real > 0, 0, power)


_POWERS: dict[Any, Callable[[jax.Array], jax.Array]] = {
    0: jnp.ones_like,
    1: lambda x: x,
    2: jnp.square,
    3: lambda x: x * x * x,
    0.5: jnp.sqrt,
    -0.5: lambda x: 1 / jnp.sqrt(x),
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


@op("pow.Tensor_Scalar", static={"exponent": lambda n: n in _POWERS or type(n) is int and n < 0})
def power_scalar(self, exponent):
    """Return the power; common exponents, which are static, make products and roots of it."""
    dtype, constant = result_type(self, exponent), known(exponent)
    if category(dtype) == 1 and (constant or 0) < 0:
        raise ValueError("Integers to negative integer powers are not allowed.")
    (x,) = wide(self.astype(dtype))
    is_power_on_cpu = dtype == jnp.float16 and constant in (0.5, -0.5)  # so -inf has a root
    if category(dtype) >= 1 and constant in _POWERS and not is_power_on_cpu:
        return _POWERS[constant](x)
    return power(self.astype(dtype), jnp.asarray(exponent).astype(dtype))


def logaddexp(a, b):
    """Do ``jnp.logaddexp``; the angle of complex results is not wrapped around."""
    return _complex_logaddexp(a, b) if category(a.dtype) == 3 else jnp.logaddexp(a, b)


def _complex_logaddexp(a, b):
    swap = a.real >= b.real
    low, high = jnp.where(swap, b, a), jnp.where(swap, a, b)
    total = jnp.log1p(jnp.exp(low - high)) + high
    same = jnp.isinf(low.real) & (low.real == high.real)
    infinite = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
    total = jnp.where(same, infinite, total)
    return jnp.where(jnp.isnan(a), a, jnp.where(jnp.isnan(b), b, total))


def _x_times(log: Callable[[jax.Array], jax.Array], least: int) -> Callable[..., Any]:
    """Return ``x * log(y)``, 0 where ``x`` is, except for NaN in ``y``; ``log(least)`` is -inf."""

    def product(x, y):
        return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0, x * log(y)))

    def slopes(x, y):
        nothing = (x == 0) & (y <= least)
        return x * log(jnp.where(nothing, 1, y))

    return differentiated_as(slopes)(product)


def _arctan2_off_0(a, b):
    nothing = (a == 0) & (b == 0)
    return jnp.where(nothing, 0, jnp.arctan2(a, jnp.where(nothing, 1, b)))


def _elementwise(
    names: str, function: Callable[..., Any], to_float: bool = False, **options: Any
) -> None:
    """Enter a JAX function of operands of one dtype under names of ATen."""

    def lowering(self, other):
        return function(*jnp.broadcast_arrays(*_of_one_dtype(self, other, to_float=to_float)))

    op(*names.split(), **options)(lowering)


def _gcd(a, b):
    """Return the greatest common divisor by Euclid; JAX's never ends at the least integer."""

    def step(pair):
        a, b = pair
        ends = a == 0
        return jnp.where(ends, 0, lax.rem(b, jnp.where(ends, 1, a))), jnp.where(ends, b, a)

    return lax.while_loop(lambda pair: (pair[0] != 0).any(), step, (jnp.abs(a), jnp.abs(b)))[1]


def _lcm(a, b):
    divisor = _gcd(a, b)
    parts = lax.div(a, jnp.where(divisor == 0, 1, divisor))
    return jnp.where(divisor == 0, 0, jnp.abs(parts * b))


_fmax = differentiated_as(lambda a, b: jnp.where((a >= b) | jnp.isnan(b), a, b))(jnp.fmax)
_fmin = differentiated_as(lambda a, b: jnp.where((a <= b) | jnp.isnan(b), a, b))(jnp.fmin)
_XLOGY = "xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other"
_XLOG1PY = "special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar"
_REMAINDER = "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor"

_elementwise("atan2", differentiated_as(_arctan2_off_0)(jnp.arctan2), to_float=True)
_elementwise(_XLOGY, _x_times(jnp.log, 0), to_float=True)
_elementwise(_XLOG1PY, _x_times(jnp.log1p, -1), to_float=True)
_elementwise(_REMAINDER, jnp.remainder, check=_check_divisor)  # of the divisor's sign
_elementwise("fmod.Tensor fmod.Scalar", lax.rem, check=_check_divisor)  # of the dividend's
_elementwise("maximum", jnp.maximum)
_elementwise("minimum", jnp.minimum)
_elementwise("fmax", _fmax)
_elementwise("fmin", _fmin)
_elementwise("heaviside", lambda x, v: jnp.where(x == 0, v, (x > 0).astype(v.dtype)))  # NaN: 0
_elementwise("logaddexp", logaddexp)
_elementwise("gcd", _gcd)
_elementwise("lcm", _lcm)
_elementwise("hypot", jnp.hypot)
_elementwise("logaddexp2", jnp.logaddexp2)
_elementwise("igamma", igamma)
_elementwise("igammac", igammac)
op("nextafter")(lambda self, other: jnp.nextafter(*promote(self, other)))  # of half types, too


@op("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar")
def special_zeta(self, other):
    """Return Hurwitz's zeta; of half types the CPU has none."""
    if result_type(self, other) in HALVES:
        raise NotImplementedError("zeta of half types")
    return zeta(*wide(self, other, to_float=True))


@pointwise("addcmul")
def addcmul(self, tensor1, tensor2, *, value=1):
    """Return ``self + value * tensor1 * tensor2``."""
    return self + _scaled(tensor1 * tensor2, value)


@pointwise("addcdiv")
def addcdiv(self, tensor1, tensor2, *, value=1):
    """Return ``self + value * tensor1 / tensor2``."""
    return self + _scaled(tensor1 / tensor2, value)


@op("lerp.Tensor", "lerp.Scalar")
def lerp(self, end, weight):
    """Count from the nearer end, so that weight 1 gives ``end`` exactly."""
    self, end, weight = wide(self, end, weight)
    is_near = jnp.abs(weight) < 0.5
    step = jnp.where(is_near, weight, weight - 1) * (end - self)
    return jnp.where(is_near, self, end) + step


def _clamped(self, min=None, max=None):
    self, low, high = promote(self, min, max)
    if low is not None:  # it has no slope where both limits are one
        slope = low if high is None else jnp.where(low == high, lax.stop_gradient(low), low)
        self = jnp.where(self < low, slope, self)
    return self if high is None else jnp.where(self > high, high, self)


@op("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor")
@differentiated_as(_clamped)
def clamp(self, min=None, max=None):
    """Limit; ``max`` counts where the limits cross; NaN stays."""
    self, low, high = promote(self, min, max)
    if category(self.dtype) == 3:
        raise NotImplementedError("clamp is not supported for complex types")
    if low is not None:
        self = jnp.maximum(self, low)
    return self if high is None else jnp.minimum(self, high)


op("clamp_max", "clamp_max.Tensor")(lambda self, max: clamp(self, None, max))
op("copy")(lambda self, src: convert(jnp.broadcast_to(src, self.shape), self.dtype))


@op("where.self", meta=lambda condition: condition.dtype == jnp.bool_)
def where(condition, self, other):
    """Do ``jnp.where`` with PyTorch's promotion. The meta function takes no uint8 condition."""
    return jnp.where(condition != 0, *promote(self, other))


@op("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self, mask, value):
    """Return ``value`` where ``mask`` is true, in the dtype of ``self``."""
    value = jnp.asarray(value)
    if category(value.dtype) == 3 > category(self.dtype):
        raise ValueError(f"a complex value for {self.dtype}")  # the CPU has the words
    return jnp.where(mask, convert(value, self.dtype), self)


@op("_masked_scale")
def masked_scale(self, mask, scale):
    """Return ``self * mask * scale``, of dropout."""
    x = self.astype(opmath(self.dtype))
    return x * cast(mask, x.dtype) * scale
