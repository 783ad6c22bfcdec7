"""Random numbers: each operator is a pure function of its arguments and a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.budgets import BITS_OF_A_PERMUTATION
from torch_jax.ops.promotion import category, opmath, or_float
from torch_jax.ops.registry import op
from torch_jax.ops.scan import accumulated
from torch_jax.ops.sort import search

# ---- building blocks


def _unit(key, shape, dtype):
    """Draw uniform in [0, 1), multiples of 2^-(mantissa bits of ``dtype``), in ``opmath``."""
    bits = jnp.finfo(dtype).nmant + 1
    words = np.uint64 if bits > 24 else np.uint32
    random = jax.random.bits(key, shape, words) >> words(words().itemsize * 8 - bits)
    return random.astype(opmath(dtype)) * opmath(dtype).type(2.0**-bits)


def _uniform(key, shape, dtype, low=0.0, high=1.0):
    """Draw in [low, high) in ``opmath``, then round; numbers rounded up to high become low."""
    if category(dtype) != 2:
        raise NotImplementedError(f"uniform numbers of {dtype}")
    low, high = (jnp.asarray(x).astype(opmath(dtype)) for x in (low, high))
    x = (_unit(key, shape, opmath(dtype)) * (high - low) + low).astype(dtype)
    return jnp.where(x >= high.astype(dtype), low.astype(dtype), x)


def _normal(key, shape, dtype):
    """Draw standard normals, in ``opmath``; a complex one has variance 1 in all."""
    if category(dtype) < 2:
        raise NotImplementedError(f"normals of {dtype}")
    return jax.random.normal(key, shape, opmath(dtype))


def _integers(key, shape, low, high):
    """Draw int64 uniform in [low, high), by remainder of more random bits, as PyTorch does.

    Of the bounds one may be 2^64 more or less: they are taken modulo 2^64, as int64 is.
    """
    low, high = (jnp.asarray(bound).astype(jnp.int64) for bound in (low, high))
    count = (high - low).astype(np.uint64)  # 0 for all of int64
    bits = jax.random.bits(key, shape, np.uint64)
    is_small = count - 1 < 1 << 16
    bits = jnp.where(is_small, bits >> 32 ^ bits & np.uint64(0xFFFFFFFF), bits)
    offset = jnp.where(count != 0, lax.rem(bits, jnp.maximum(count, 1)), bits)
    return offset.astype(jnp.int64) + low


def _limit(dtype) -> int:
    """Return one more than the greatest number that ``random_`` gives without bounds."""
    if category(dtype) == 0:
        return 2
    if category(dtype) == 1:
        return int(jnp.iinfo(dtype).max) + 1
    return (1 << jnp.finfo(dtype).nmant + 1) + 1


# ---- new tensors


@op("torch_jax::draw_key", random=True, meta=False)
def draw_key(like, *, key):
    """Draw the two words of a key, with which another operator may draw the same at any time."""
    return jax.random.key_data(key)


_SIZED: dict[str, Any] = {"random": True, "drawn_like": "size", "meta": False}


@op("rand", "rand.generator", **_SIZED)
def rand(size, *, dtype=None, key):
    """Draw uniform in [0, 1)."""
    dtype = or_float(dtype)
    if category(dtype) == 3:
        return lax.complex(*(_unit(k, size, np.finfo(dtype).dtype) for k in jax.random.split(key)))
    return _uniform(key, size, dtype)


@op("randn", "randn.generator", **_SIZED)
def randn(size, *, dtype=None, key):
    """Draw standard normals."""
    dtype = or_float(dtype)
    return _normal(key, size, dtype).astype(dtype)


@op("randint", "randint.generator", integers=("high",), **_SIZED)
def randint(high, size, *, dtype=np.int64, key):
    """Draw integers in [0, high)."""
    return randint_low(0, high, size, dtype=dtype, key=key)


@op("randint.low", "randint.low_generator", integers=("low", "high"), **_SIZED)
def randint_low(low, high, size, *, dtype=np.int64, key):
    """Draw integers in [low, high)."""
    return _integers(key, size, low, high).astype(np.int64 if dtype is None else dtype)


def _enter_like(function: Callable[..., jax.Array], *names: str, bounds: tuple = ()) -> None:
    """Enter a function of bounds and a size for the size and dtype of a tensor."""

    @op(*names, random=True, drawn_like="self", integers=bounds)
    def like(self, *bounds, dtype=None, key):
        return function(*bounds, self.shape, dtype=dtype or self.dtype, key=key)


_enter_like(rand, "rand_like", "rand_like.generator")
_enter_like(randn, "randn_like", "randn_like.generator")
_enter_like(randint, "randint_like", "randint_like.generator", bounds=("high",))
_enter_like(
    randint_low,
    "randint_like.low_dtype",
    "randint_like.low_generator_dtype",
    bounds=("low", "high"),
)


@op("randperm", "randperm.generator", random=True, drawn_like="n")
def randperm(n, *, dtype=np.int64, key):
    """Draw a permutation of ``range(n)``."""
    if np.dtype(dtype) != jnp.bfloat16 and n > _limit(dtype):
        raise RuntimeError(f"n cannot be greater than {_limit(dtype)} for {dtype} type.")
    bits = np.uint64((n - 1).bit_length())
    if bits > BITS_OF_A_PERMUTATION:
        return jax.random.permutation(key, lax.iota(np.int32 if n < 2**31 else np.int64, n))
    # JAX's function sorts pairs, twice: where it computes on a CPU this is eleven times as fast
    keys = jax.random.bits(key, (n,), np.uint64) << bits | lax.iota(np.uint64, n)
    found = (lax.sort(keys) & (np.uint64(1) << bits) - np.uint64(1)).astype(np.int64)
    return lax.min(found, np.int64(n - 1))  # which no check of indices then has to look at


# ---- filling a tensor (``uniform_`` and similar are derived from these)


def _check_bounds(self, from_=0.0, to=1.0):
    greatest = jnp.finfo(self.dtype).max if category(self.dtype) >= 2 else 0
    ok = (abs(from_) <= greatest) & (abs(to) <= greatest) & (0 <= to - from_)
    return ok, "uniform_ expects from <= to, both finite numbers of the dtype", RuntimeError


@op("uniform", random=True, drawn_like="self", check=_check_bounds)
def uniform(self, low=0.0, high=1.0, *, key):
    """Draw uniform in [from, to)."""
    if category(self.dtype) == 3:
        keys = jax.random.split(key)
        real = jnp.finfo(self.dtype).dtype
        return lax.complex(*(_uniform(k, self.shape, real, low, high) for k in keys))
    return _uniform(key, self.shape, self.dtype, low, high)


def _check_std(std=1.0):
    return jnp.all(jnp.asarray(std) >= 0), "normal expects all elements of std >= 0.0", RuntimeError


@op("normal_functional", random=True, drawn_like="self", check=_check_std)
def normal_functional(self, mean=0.0, std=1.0, *, key):
    """Draw as ``normal_``."""
    return _normal(key, self.shape, self.dtype) * std + mean


@op("normal.float_float", random=True, drawn_like="size", check=_check_std)
def normal_size(mean, std, size, *, dtype=None, key):
    """Draw a new tensor."""
    return _normal(key, size, or_float(dtype)) * std + mean


# The meta function promotes a mean and a deviation of two dtypes.
_BY_MEAN: dict[str, Any] = {"random": True, "check": _check_std, "meta": False}


@op("normal.float_Tensor", drawn_like="std", **_BY_MEAN)
@op("normal.Tensor_float", "normal.Tensor_Tensor", drawn_like="mean", **_BY_MEAN)
def normal(mean, std=1.0, *, key):
    """Draw once for each mean and standard deviation, broadcast."""
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    dtype = next(x.dtype for x in (mean, std) if jnp.ndim(x) or not getattr(x, "weak_type", True))
    return (_normal(key, shape, dtype) * std + mean).astype(dtype)


def _draw(key, p, shape):
    """Draw True with probability ``p``."""
    p = jnp.asarray(p)
    dtype = np.float64 if p.dtype == np.float64 else np.float32
    return _unit(key, shape, np.dtype(dtype)) < p.astype(dtype)


def _inside(self, p=None):
    p = self if p is None else p
    message = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    return jnp.all((p >= 0) & (p <= 1)), message, RuntimeError


@op("bernoulli.Tensor", host=("p",), random=True, check=_inside)
@op("bernoulli", random=True, drawn_like="self", check=_inside)
def bernoulli(self, p=None, *, key):
    """Draw 1 with the probability in each element, or in each of ``p``, broadcast."""
    return _draw(key, self if p is None else p, self.shape)


@op("bernoulli.p", "bernoulli_.float", random=True, drawn_like="self")
def bernoulli_p(self, p=0.5, *, key):
    """Draw 1 with one probability; in place it has a default that it lacks here."""
    return _draw(key, jnp.asarray(p, np.float32), self.shape)


@op("random.to", random=True, drawn_like="self", integers=("to",))
def random_to(self, to, *, key):
    """Draw integers in [0, to)."""
    return random(self, 0, to, key=key)


@op("random", random=True, drawn_like="self")
@op("random.from", random=True, drawn_like="self", integers=("from", "to"))
def random(self, low=0, to=None, *, key):
    """Draw integers in [from, to), or from there to the greatest up to which the dtype is exact."""
    to = np.uint64(_limit(self.dtype) % (1 << 64)) if to is None else to
    return _integers(key, self.shape, low, to).astype(self.dtype)


def _positive(name: str, of: str) -> Callable[..., tuple[Any, str, type[Exception]]]:
    """Return the check of a number that must be positive, as its default is."""
    what = name.replace("lambd", "lambda")
    return lambda **given: (given.get(name, 1) > 0, f"{of} expects {what} > 0.0", RuntimeError)


@op("exponential", random=True, drawn_like="self", check=_positive("lambd", "exponential_"))
def exponential(self, lambd=1.0, *, key):
    """Draw with rate ``lambd``; never 0, but for an infinite rate."""
    wide = opmath(self.dtype)
    u = 1 - _unit(key, self.shape, wide)  # never 0
    return -jnp.minimum(jnp.log(u), -jnp.finfo(wide).eps / 2) / jnp.asarray(lambd).astype(wide)


@op("geometric", random=True, drawn_like="self")
def geometric(self, p, *, key):
    """Draw the number of trials up to the first success: 1, 2, …"""
    wide = opmath(self.dtype) if category(self.dtype) == 2 else np.dtype(np.float32)
    log = jnp.log1p(-jnp.asarray(p, wide))
    trials = jnp.ceil(jnp.log(1 - _unit(key, self.shape, wide)) / log)
    return jnp.maximum(trials, 1)


@op("cauchy", random=True, drawn_like="self", check=_positive("sigma", "cauchy_"))
def cauchy(self, median=0.0, sigma=1.0, *, key):
    """Draw ``median + sigma * tan(pi * (u - 1/2))``."""
    return jax.random.cauchy(key, self.shape, opmath(self.dtype)) * sigma + median


@op("log_normal", random=True, drawn_like="self", check=_positive("std", "log_normal_"))
def log_normal(self, mean=1.0, std=2.0, *, key):
    """Draw the exponential of a normal."""
    return jnp.exp(_normal(key, self.shape, self.dtype) * std + mean)


# ---- distributions with parameters in tensors


def _check_rate(self):
    message = "invalid Poisson rate, expected rate to be non-negative"
    return jnp.all(self >= 0), message, RuntimeError


@op("poisson", random=True, drawn_like="self", check=_check_rate)
def poisson(self, generator=None, *, key):
    """Draw counts, in the dtype of the rates."""
    return jax.random.poisson(key, self.astype(opmath(self.dtype)), dtype=np.int64)


@op("binomial", random=True, drawn_like="count", meta=False)
def binomial(count, prob, generator=None, *, key):
    """Draw successes in ``count`` trials."""
    shape = jnp.broadcast_shapes(count.shape, prob.shape)
    wide = opmath(count.dtype)
    n, p = (jnp.broadcast_to(x, shape).astype(wide) for x in (count, prob))
    return jax.random.binomial(key, n, p, shape, wide).astype(count.dtype)


@op("_standard_gamma", random=True, drawn_like="self")
def _standard_gamma(self, generator=None, *, key):
    """Draw with scale 1; at least the least positive number, as PyTorch."""
    wide = opmath(self.dtype)
    x = jax.random.gamma(key, self.astype(wide), dtype=wide)
    return jnp.maximum(x, jnp.finfo(self.dtype).tiny)


@op("_standard_gamma_grad", meta=False)
def _standard_gamma_grad(self, output):
    """Return the derivative of a gamma draw by its concentration."""
    wide = opmath(self.dtype)
    return lax.random_gamma_grad(self.astype(wide), output.astype(wide)).astype(self.dtype)


@op("_sample_dirichlet", random=True, drawn_like="self", unit="row", meta=False)
def _sample_dirichlet(self, generator=None, *, key):
    """Draw gammas that sum to 1, from logarithms so that small ones do not vanish; never 0 or 1."""
    wide, limits = opmath(self.dtype), jnp.finfo(self.dtype)
    logs = jax.random.loggamma(key, self.astype(wide), dtype=wide)
    x = jnp.exp(logs - logs.max(-1, keepdims=True))
    total = x.sum(-1, dtype=accumulated(wide), keepdims=True).astype(wide)
    return jnp.clip(x / total, limits.tiny, 1 - limits.epsneg).astype(self.dtype)


def _check_weights(self, num_samples, replacement=False):
    ok = jnp.all((self >= 0) & (self < jnp.inf)) & jnp.all(self.sum(-1) > 0)
    if not replacement:
        ok &= jnp.all(jnp.count_nonzero(self, -1) >= num_samples)
    message = "probability tensor contains either `inf`, `nan` or element < 0, or too many zeros"
    return ok, message, RuntimeError


@op(
    "multinomial",
    random=True,
    drawn_like="self",
    unit="weights",
    check=_check_weights,
    meta=False,
)
def multinomial(self, num_samples, replacement=False, *, key):
    """Draw positions by weight: by the cumulative sum, or without replacement by a race.

    In a race of exponential clocks whose rates are the weights, the order of arrival is that of
    drawing without replacement.
    """
    if self.ndim not in (1, 2) or num_samples < 1:
        raise ValueError(f"{num_samples} samples of {self.ndim} dims")  # the CPU has the words
    weights = self.astype(opmath(self.dtype))
    if not replacement or num_samples == 1:
        clocks = -jnp.log(1 - _unit(key, self.shape, weights.dtype))
        speed = jnp.where(weights > 0, weights / jnp.maximum(clocks, 1e-38), -1)
        return lax.top_k(speed, num_samples)[1].astype(np.int64)
    total = lax.cumsum(weights.astype(accumulated(weights.dtype)), weights.ndim - 1)
    u = _unit(key, (*self.shape[:-1], num_samples), weights.dtype) * total[..., -1:]
    u = jnp.minimum(u, jnp.nextafter(total[..., -1:], jnp.zeros((), u.dtype)))
    return search(total, u, right=True).astype(np.int64)


@op("rrelu_with_noise", "rrelu_with_noise_functional", random=True)
def rrelu_with_noise(self, noise, lower=0.125, upper=1 / 3, training=False, generator=None, *, key):
    """In training draw a slope for each negative element: they become the new ``noise``."""
    wide = opmath(self.dtype)
    x = self.astype(wide)
    if not training:
        slope = (jnp.asarray(lower).astype(wide) + upper) / 2
        return jnp.where(x < 0, x * slope, x), noise
    slopes = jnp.where(x <= 0, _uniform(key, self.shape, wide, lower, upper), 1)
    return x * slopes, slopes
