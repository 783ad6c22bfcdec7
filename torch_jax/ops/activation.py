"""Activation functions and their gradients. Half types are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.ops.derivatives import slope
from torch_jax.ops.pointwise import pointwise, wide
from torch_jax.ops.registry import op
from torch_jax.ops.unary import sigmoid


@op("relu")
@slope(lambda x: threshold_backward(1, x, 0))
def relu(self):
    """Clamp below at 0; NaN stays."""
    return jnp.maximum(self, 0)


@op("threshold")
def threshold(self, threshold, value):
    """Return ``value`` where not above ``threshold``; NaN stays."""
    return jnp.where(self <= threshold, jnp.asarray(value).astype(self.dtype), self)


@op("threshold_backward")
def threshold_backward(grad_output, self, threshold):
    """Return 0 where not above ``threshold``."""
    return jnp.where(self <= threshold, 0, grad_output)


op("_prelu_kernel")(lambda self, weight: jnp.where(self > 0, self, weight * self))


@pointwise("_prelu_kernel_backward")
def prelu_backward(g, x, weight):
    """Return gradients of the input and of the weight at each element."""
    return jnp.where(x > 0, g, weight * g), jnp.where(x > 0, 0, x * g)


@pointwise("elu_backward")
def elu_backward(g, alpha, scale, input_scale, is_result, x):
    """Take the input or the result."""
    slope = x + alpha * scale if is_result else alpha * scale * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, g * input_scale * slope, g * scale)


@pointwise("elu")
@slope(lambda x, alpha=1, scale=1, i=1: elu_backward(1, alpha, scale, i, False, x))
def elu(x, alpha=1, scale=1, input_scale=1):
    """Return ``scale * x`` above 0, ``scale * alpha * (exp(input_scale * x) - 1)`` below."""
    return jnp.where(x < 0, jnp.expm1(x * input_scale) * alpha * scale, x * scale)


_SQRT1_2 = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def _normal_cdf(x):
    # by erf, as in PyTorch: erfc would be exact in the tail, and take more than twice the time
    return 0.5 * (1 + jax.lax.erf(x * _SQRT1_2))


@pointwise("gelu")
def gelu(x, *, approximate="none"):
    """Return ``x`` times the normal distribution function, or its approximation by tanh."""
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x)))
    return x * _normal_cdf(x)


@pointwise("gelu_backward")
def gelu_backward(g, x, *, approximate="none"):
    """Compute the derivative in closed form."""
    if approximate == "tanh":
        t = jnp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return g * (_normal_cdf(x) + x * density)


def _activation(name: str, function: Callable, backward: Callable) -> None:
    """Enter a function of ``x`` and numbers, and its gradient, which takes ``g`` before these."""
    pointwise(name)(slope(lambda *args: backward(1, *args))(function))
    pointwise(f"{name}_backward")(backward)


def _silu_backward(g, x):
    s = sigmoid(x)
    return g * jnp.conj(s * (1 + x * (1 - s)))


def _mish_backward(g, x):
    t = jnp.tanh(jax.nn.softplus(x))
    return g * (t + x * jax.nn.sigmoid(x) * (1 - t * t))


def _outside(g, x, edge=0.5):
    return jnp.where((x >= -edge) & (x <= edge), 0, g)


_activation("silu", lambda x: x * sigmoid(x), _silu_backward)  # of complex numbers, too
_activation("mish", lambda x: x * jnp.tanh(jax.nn.softplus(x)), _mish_backward)
_activation(
    "leaky_relu",
    lambda x, slope=0.01: jnp.where(x > 0, x, x * slope),
    # the result, if given, has the sign of the input
    lambda g, x, slope=0.01, of_result=False: jnp.where(x > 0, g, g * slope),
)
_activation(
    "hardtanh",
    lambda x, low=-1, high=1: jnp.minimum(jnp.maximum(x, low), high),  # NaN stays
    lambda g, x, low=-1, high=1: jnp.where((x <= low) | (x >= high), 0, g),
)
_activation(
    "hardsigmoid",
    lambda x: jnp.clip(x + 3, 0, 6) / 6,
    # PyTorch rounds 1/6 to float32, for float64 too
    lambda g, x: jnp.where((x > -3) & (x < 3), g * float(np.float32(1 / 6)), 0),
)
_activation(
    "hardswish",
    lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    lambda g, x: jnp.where(x <= -3, 0, jnp.where(x < 3, g * (x / 3 + 0.5), g)),
)
_activation(
    "softplus",
    lambda x, b=1, t=20: jnp.where(x * b > t, x, jnp.log1p(jnp.exp(x * b)) / b),
    lambda g, x, b=1, t=20: jnp.where(x * b > t, g, g * jax.nn.sigmoid(x * b)),
)
_activation(
    "softshrink",
    lambda x, d=0.5: jnp.where(x > d, x - d, jnp.where(x < -d, x + d, x * 0)),  # NaN stays
    _outside,
)
_activation("hardshrink", lambda x, d=0.5: _outside(x, x, d), _outside)


# of the results
pointwise("sigmoid_backward")(lambda g, y: g * jnp.conj((1 - y) * y))
pointwise("tanh_backward")(lambda g, y: g * jnp.conj(1 - y * y))


@pointwise("log_sigmoid_backward")
def log_sigmoid_backward(g, x, buffer):
    """Return ``g * sigmoid(-x)``; the buffer is not needed."""
    return g * jax.nn.sigmoid(-x)


@op("log_sigmoid_forward", meta=False)
@slope(lambda x: (log_sigmoid_backward(1, x, None), 0))
def log_sigmoid_forward(self):
    """Return the buffer ``exp(-|x|)``, as on CPU; the meta function leaves it empty."""
    (x,) = wide(self)
    buffer = jnp.exp(-jnp.abs(x))
    result = jnp.minimum(x, 0) - jnp.log1p(buffer)
    return result.astype(self.dtype), buffer.astype(self.dtype)


@op("glu")
def glu(self, dim=-1):
    """Multiply the first half by the sigmoid of the second."""
    (x,) = wide(self)
    return jax.nn.glu(x, dim)


@op("glu_backward")
def glu_backward(grad_output, self, dim):
    """Return gradients of both halves, joined."""
    g, x = wide(grad_output, self)
    return jax.vjp(lambda x: glu(x, dim), x)[1](g)[0]


op("glu_jvp")(lambda _glu, x, dx, dim: jax.jvp(lambda x: glu(x, dim), (x,), (dx,))[1])


@op("glu_backward_jvp")
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    """Return the forward derivative of ``glu_backward``."""
    g, x, dg, dx = wide(grad_glu, x, dgrad_glu, dx)
    return jax.jvp(lambda g, x: glu_backward(g, x, dim), (g, x), (dg, dx))[1]
