"""Activation functions and their gradients. Half types are computed in float32."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.ops.derivatives import slope
from torch_jax.ops.pointwise import wide
from torch_jax.ops.registry import op
from torch_jax.ops.unary import logistic


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


@op("_prelu_kernel")
def prelu(self, weight):
    """Use the weight, already broadcast."""
    return jnp.where(self > 0, self, weight * self)


@op("_prelu_kernel_backward")
def prelu_backward(grad_output, self, weight):
    """Return gradients of the input and of the weight at each element."""
    g, x, w = wide(grad_output, self, weight)
    return jnp.where(x > 0, g, w * g), jnp.where(x > 0, 0, x * g)


@op("leaky_relu")
def leaky_relu(self, negative_slope=0.01):
    """Do ``jax.nn.leaky_relu``."""
    x, slope = wide(self, negative_slope)
    return jnp.where(x > 0, x, x * slope)


@op("leaky_relu_backward")
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    """Use the result, if given, for the sign of the input."""
    g, x, slope = wide(grad_output, self, negative_slope)
    return jnp.where(x > 0, g, g * slope)


@op("rrelu_with_noise_backward")
def rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result):
    """Use the slopes drawn (``noise``), or in evaluation their mean."""
    g, x, n, low, high = wide(grad_output, self, noise, lower, upper)
    if not training:
        return jnp.where(x > 0, g, g * ((low + high) / 2))
    return g * n


@op("elu")
@slope(lambda x, alpha=1, scale=1, i=1: elu_backward(1, alpha, scale, i, False, x))
def elu(self, alpha=1, scale=1, input_scale=1):
    """Return ``scale * x`` above 0, ``scale * alpha * (exp(input_scale * x) - 1)`` below."""
    x, a, s, i = wide(self, alpha, scale, input_scale)
    return jnp.where(x < 0, jnp.expm1(x * i) * a * s, x * s)


@op("elu_backward")
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    """Take the input or the result."""
    g, x, a, s, i = wide(grad_output, self_or_result, alpha, scale, input_scale)
    below = g * i * (x + a * s) if is_result else g * i * a * s * jnp.exp(x * i)
    return jnp.where(x <= 0, below, g * s)


@op("celu")
def celu(self, alpha=1.0):
    """Return ``elu`` that is smooth for every ``alpha``."""
    return elu(self, alpha, 1.0, 1.0 / jnp.asarray(alpha))


_SQRT1_2 = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def _normal_cdf(x):
    # by erf, as in PyTorch: erfc would be exact in the tail, and take more than twice the time
    return 0.5 * (1 + jax.lax.erf(x * _SQRT1_2))


@op("gelu")
def gelu(self, *, approximate="none"):
    """Return ``x`` times the normal distribution function, or its approximation by tanh."""
    (x,) = wide(self)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x)))
    return x * _normal_cdf(x)


@op("gelu_backward")
def gelu_backward(grad_output, self, *, approximate="none"):
    """Compute the derivative in closed form."""
    g, x = wide(grad_output, self)
    if approximate == "tanh":
        t = jnp.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return g * (_normal_cdf(x) + x * density)


@op("silu")
def silu(self):
    """Return ``x * sigmoid(x)``, of complex numbers too."""
    (x,) = wide(self)
    return x * logistic(x)


@op("silu_backward")
def silu_backward(grad_output, self):
    """Compute the derivative in closed form."""
    g, x = wide(grad_output, self)
    s = logistic(x)
    return g * jnp.conj(s * (1 + x * (1 - s)))


@op("mish")
def mish(self):
    """Return ``x * tanh(softplus(x))``."""
    (x,) = wide(self)
    return x * jnp.tanh(jax.nn.softplus(x))


@op("mish_backward")
def mish_backward(grad_output, self):
    """Compute the derivative in closed form."""
    g, x = wide(grad_output, self)
    t = jnp.tanh(jax.nn.softplus(x))
    return g * (t + x * jax.nn.sigmoid(x) * (1 - t * t))


@op("hardtanh")
@slope(lambda x, low=-1, high=1: hardtanh_backward(1, x, low, high))
def hardtanh(self, min_val=-1, max_val=1):
    """Clamp; NaN stays."""
    x, low, high = wide(self, min_val, max_val)
    return jnp.minimum(jnp.maximum(x, low), high)


@op("hardtanh_backward")
def hardtanh_backward(grad_output, self, min_val, max_val):
    """Return 0 at the limits and beyond."""
    g, x, low, high = wide(grad_output, self, min_val, max_val)
    return jnp.where((x <= low) | (x >= high), 0, g)


@op("hardsigmoid")
@slope(lambda x: hardsigmoid_backward(1, x))
def hardsigmoid(self):
    """Return ``clamp(x + 3, 0, 6) / 6``."""
    (x,) = wide(self)
    return jnp.clip(x + 3, 0, 6) / 6


@op("hardsigmoid_backward")
def hardsigmoid_backward(grad_output, self):
    """Return 1/6 inside (-3, 3), which PyTorch rounds to float32 for float64, too."""
    g, x = wide(grad_output, self)
    return jnp.where((x > -3) & (x < 3), g * float(np.float32(1 / 6)), 0)


@op("hardswish")
@slope(lambda x: hardswish_backward(1, x))
def hardswish(self):
    """Return ``x * hardsigmoid(x)``."""
    (x,) = wide(self)
    return x * jnp.clip(x + 3, 0, 6) / 6


@op("hardswish_backward")
def hardswish_backward(grad_output, self):
    """Compute the derivative in closed form: 0 at -3, and 1 from 3 on."""
    g, x = wide(grad_output, self)
    return jnp.where(x <= -3, 0, jnp.where(x < 3, g * (x / 3 + 0.5), g))


@op("softplus")
@slope(lambda x, beta=1, threshold=20: softplus_backward(1, x, beta, threshold))
def softplus(self, beta=1, threshold=20):
    """Return ``log(1 + exp(beta x)) / beta``, or ``x`` where ``beta x`` exceeds ``threshold``."""
    x, b, t = wide(self, beta, threshold)
    return jnp.where(x * b > t, x, jnp.log1p(jnp.exp(x * b)) / b)


@op("softplus_backward")
def softplus_backward(grad_output, self, beta, threshold):
    """Return ``g * sigmoid(beta x)``."""
    g, x, b, t = wide(grad_output, self, beta, threshold)
    return jnp.where(x * b > t, g, g * jax.nn.sigmoid(x * b))


@op("softshrink")
def softshrink(self, lambd=0.5):
    """Move nearer to 0 by ``lambd``; 0 within; NaN stays."""
    x, edge = wide(self, lambd)
    return jnp.where(x > edge, x - edge, jnp.where(x < -edge, x + edge, x * 0))


@op("hardshrink")
def hardshrink(self, lambd=0.5):
    """Return 0 within ``lambd`` of 0."""
    x, edge = wide(self, lambd)
    return jnp.where((x >= -edge) & (x <= edge), 0, x)


@op("softshrink_backward")
def softshrink_backward(grad_output, self, lambd):
    """Return 0 within ``lambd`` of 0."""
    g, x, edge = wide(grad_output, self, lambd)
    return jnp.where((x >= -edge) & (x <= edge), 0, g)


@op("hardshrink_backward")
def hardshrink_backward(grad_out, self, lambd):
    """Return 0 within ``lambd`` of 0."""
    return softshrink_backward(grad_out, self, lambd)


@op("log_sigmoid_forward", meta=False)
@slope(lambda x: (log_sigmoid_backward(1, x, None), 0))
def log_sigmoid_forward(self):
    """Return the buffer ``exp(-|x|)``, as on CPU; the meta function leaves it empty."""
    (x,) = wide(self)
    buffer = jnp.exp(-jnp.abs(x))
    result = jnp.minimum(x, 0) - jnp.log1p(buffer)
    return result.astype(self.dtype), buffer.astype(self.dtype)


@op("log_sigmoid_backward")
def log_sigmoid_backward(grad_output, self, buffer):
    """Return ``g * sigmoid(-x)``; the buffer is not needed."""
    g, x = wide(grad_output, self)
    return g * jax.nn.sigmoid(-x)


@op("glu")
def glu(self, dim=-1):
    """Multiply the first half by the sigmoid of the second."""
    (both,) = wide(self)
    x, gate = jnp.split(both, 2, dim)
    return x * jax.nn.sigmoid(gate)


@op("glu_backward")
def glu_backward(grad_output, self, dim):
    """Return gradients of both halves, joined."""
    g, x = wide(grad_output, self)
    x, gate = jnp.split(x, 2, dim)
    s = jax.nn.sigmoid(gate)
    return jnp.concatenate([g * s, g * x * s * (1 - s)], dim)


@op("glu_jvp")
def glu_jvp(glu, x, dx, dim):
    """Return the forward derivative."""
    y, x, dx = wide(glu, x, dx)
    gate = jnp.split(x, 2, dim)[1]
    da, dgate = jnp.split(dx, 2, dim)
    s = jax.nn.sigmoid(gate)
    return da * s + y * (dgate - s * dgate)


@op("glu_backward_jvp")
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    """Return the forward derivative of ``glu_backward``."""
    g, x, dg, dx = wide(grad_glu, x, dgrad_glu, dx)
    return jax.jvp(lambda g, x: glu_backward(g, x, dim), (g, x), (dg, dx))[1]
