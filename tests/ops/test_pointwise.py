"""Arithmetic, comparisons, logic and bits against the CPU."""

import itertools

import pytest
import torch

from tests.support.compare import check, check_raises
from tests.support.values import INF, NAN, SPECIAL, make

INTS = [torch.uint8, torch.int8, torch.int64]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def pairs():
    """Every special value with every other."""
    a, b = zip(*itertools.product(SPECIAL.tolist(), repeat=2), strict=True)
    return torch.tensor(a), torch.tensor(b)


ARITHMETIC = [torch.add, torch.sub, torch.mul, torch.div]
SAME_DTYPE = [torch.maximum, torch.minimum, torch.fmax, torch.fmin]
FLOAT_BINARY = [
    *ARITHMETIC,
    *SAME_DTYPE,
    torch.atan2,
    torch.hypot,
    torch.copysign,
    torch.logaddexp,
    torch.logaddexp2,
    torch.xlogy,
    torch.special.xlog1py,
    torch.heaviside,
    torch.remainder,
    torch.fmod,
    torch.floor_divide,
    torch.float_power,
    torch.pow,
]
ROUNDING = [None, "trunc", "floor"]


def named(functions):
    return pytest.mark.parametrize("f", functions, ids=lambda f: f.__name__)


@named(FLOAT_BINARY)
def test_special_values(f):
    check(f, *pairs(), grad=False)


@named([f for f in FLOAT_BINARY if f not in (torch.heaviside, torch.floor_divide)])
def test_gradients(f):
    check(f, make(torch.float32, 3, 4, grad=True).abs(), make(torch.float32, 4, grad=True).abs())


@named(FLOAT_BINARY)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_float_dtypes(f, dtype):
    check(f, make(dtype, 3, 4).t(), make(dtype, 4, 1))


@pytest.mark.slow
@named([*ARITHMETIC, *SAME_DTYPE])
@pytest.mark.parametrize("dtypes", list(itertools.product([*INTS, torch.float32], repeat=2)))
def test_promotion(f, dtypes):
    x, y = (make(d, 2, 3, low=1) for d in dtypes)
    check(f, x, y)
    check(f, x, y[0, 0])
    check(f, x[0, 0], y[0, 1])


@pytest.mark.slow
@named(ARITHMETIC)
@pytest.mark.parametrize("dtype", [torch.bool, *INTS, *FLOATS, torch.complex64])
@pytest.mark.parametrize("number", [True, 3, -1.5, 1j])
def test_python_numbers(f, dtype, number):
    x = make(dtype, 2, 3)
    if f is torch.sub and (dtype == torch.bool or number is True):
        return check_raises(f, x, number)
    # complex32 has no twin in JAX, and bcomplex32, from torch 2.14 on, no kernels on the CPU
    halves = (torch.float16, torch.bfloat16)[: 1 + hasattr(torch, "bcomplex32")]
    if dtype in halves and number == 1j:
        number = 2
    check(f, x, number)
    check(lambda x: f(x, number), x[0, 0])


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize("mode", ROUNDING)
def test_rounding_modes(dtype, mode):
    x, y = make(dtype, 40, low=-9, high=10), make(dtype, 40, low=1)
    y = torch.where(y == 0, 3, y)
    check(lambda x, y: torch.div(x, y, rounding_mode=mode), x, y)
    check(lambda x: torch.div(x, 3, rounding_mode=mode), x)
    check(lambda x: x // 2, x)
    check(lambda x: 7 % torch.where(x == 0, 5, x), x)
    if dtype.is_floating_point:
        check(lambda x, y: torch.div(x, y, rounding_mode=mode), *pairs())


def test_quotients_are_exact():
    x = torch.arange(1.0, 200, device="jax")
    for n in (41, 47.0, torch.tensor(49.0, device="jax")):
        assert torch.equal(x * n / n, x)
        assert torch.equal(torch.div(x * n, n, rounding_mode="trunc"), x)


@pytest.mark.parametrize("dtype", [*INTS, torch.float32])
def test_remainders_have_the_right_sign(dtype):
    x = torch.arange(-8 if dtype != torch.uint8 else 0, 9).to(dtype)
    for f, y in itertools.product((torch.remainder, torch.fmod), (3, -3)):
        if dtype != torch.uint8 or y > 0:
            check(f, x, y)
            check(f, x, torch.full_like(x, y))


def test_alpha():
    x, y = make(torch.float32, 3, grad=True), make(torch.float32, 2, 3, grad=True)
    check(lambda x, y: torch.add(x, y, alpha=2.5), x, y)
    check(lambda x, y: torch.sub(x, y, alpha=2), x, y)
    check(lambda x, y: torch.rsub(x, y, alpha=3), x, y)
    check(lambda x: torch.add(x, 2, alpha=3), x)
    check(lambda x, y: torch.add(x, y, alpha=3), make(torch.int8, 3), make(torch.int8, 3))
    check(lambda x, y: torch.add(x, y, alpha=True), make(torch.bool, 3), make(torch.bool, 3))


def test_integers_wrap_around():
    x = torch.tensor([127, -128, 100], dtype=torch.int8)
    check(lambda x: x + 100, x)
    check(lambda x: x * x, x)
    check(lambda x: x**3, x)
    check(lambda x: x - 250, x.to(torch.uint8))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 2.5, -1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_powers(exponent, dtype):
    x = make(dtype, 3, 4, grad=dtype.is_floating_point)
    if dtype == torch.int64 and exponent < 0 and isinstance(exponent, int):
        return check_raises(lambda x: x**exponent, x)
    # near the branch cut and for large powers complex rounding differs by more
    scale = 4 if dtype.is_complex else 1
    check(lambda x: x**exponent, x.abs() if dtype.is_floating_point else x, scale=scale)
    check(lambda x: x**exponent, SPECIAL)
    return check(lambda x: 2**x, x, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_powers_of_a_complex_zero(dtype):
    exponents = torch.tensor([0, 1, -1, 2.5, -0.5, 1j, -1j, 1 + 1j, -1 - 1j], dtype=dtype)
    check(torch.pow, torch.zeros(9, dtype=dtype), exponents)
    check(lambda e: 0**e, exponents)
    for exponent in (0, 1, -1, -2, 0.5, -0.5, 2.5, -2.5, 1j):
        check(lambda x, e=exponent: x**e, torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("dtype", FLOATS)
def test_roots_of_special_numbers(dtype, exponent):
    check(lambda x: x**exponent, torch.tensor([-INF, -0.0, INF, NAN], dtype=dtype))


def test_integer_tensor_powers():
    base, exponent = torch.arange(-3, 4).repeat(7), torch.arange(-3, 4).repeat_interleave(7)
    check(torch.pow, base[base != 0], exponent[base != 0])
    check(torch.pow, make(torch.int32, 4), make(torch.float32, 4).abs())


@named([torch.gcd, torch.lcm])
def test_divisors(f):
    check(f, make(torch.int64, 50, low=-90, high=90), make(torch.int64, 50, low=-9, high=60))
    check(f, make(torch.int32, 5), torch.tensor(0, dtype=torch.int32))


def test_divisors_of_the_least_integers():
    values = torch.tensor([-(2**31), 1 - 2**31, -9, -2, -1, 0, 1, 6, 2**31 - 1], dtype=torch.int32)
    check(torch.gcd, values.repeat(9), values.repeat_interleave(9))
    check(torch.gcd, values.repeat(9), values.to(torch.int64).repeat_interleave(9) << 32)
    check(torch.lcm, values[2:-1].repeat(6), values[2:-1].repeat_interleave(6))


def test_nextafter():
    check(torch.nextafter, *pairs())
    check(torch.nextafter, make(torch.float64, 5), make(torch.float64, 1))


def test_ldexp_frexp():
    check(torch.ldexp, make(torch.float32, 5, grad=True), torch.arange(5) - 2)
    check(lambda x: tuple(torch.frexp(x)), SPECIAL[torch.isfinite(SPECIAL)])


@pytest.mark.slow
def test_incomplete_gamma():
    x = torch.linspace(0.1, 8, 20)
    check(torch.special.gammainc, x, x.flip(0))
    check(torch.special.gammaincc, x, x.flip(0))


@pytest.mark.slow
def test_ternary():
    x, y, z = (make(torch.float32, *s, grad=True) for s in ((3, 1), (4,), (3, 4)))
    check(lambda *a: torch.addcmul(*a, value=0.5), x, y, z)
    check(lambda *a: torch.addcdiv(*a, value=-2), x, y, z)
    check(torch.addcmul, x, y, z)
    check(torch.lerp, x, y, z)
    check(lambda x, y: torch.lerp(x, y, 0.3), x, y)
    check(lambda x, y: torch.lerp(x, y, 1.0), x, y)
    check(lambda *a: torch.addcmul(*a, value=3), *(make(torch.int32, 3) for _ in range(3)))
    half = [t.detach().bfloat16() for t in (x, y, z)]
    check(torch.addcmul, *half)
    check(torch.lerp, *half)


@pytest.mark.slow
def test_clamp():
    x = make(torch.float32, 3, 4, grad=True)
    check(lambda x: x.clamp(-1, 1), x)
    check(lambda x: x.clamp(min=0.5), x)
    check(lambda x: x.clamp(max=0), x)
    check(lambda x: x.clamp(1, -1), x)
    check(lambda x: x.clamp_min(0.1), x)
    check(lambda x, y: x.clamp(y, y + 1), x, make(torch.float32, 4))
    check(lambda x, y: x.clamp_max(y), x, make(torch.float32, 4, grad=True))
    check(lambda x: x.clamp(0, 2), SPECIAL)
    check(lambda x: x.clamp(0.5), make(torch.int64, 5))
    check(lambda x: x.clamp(-1, 1), make(torch.int8, 5))
    check(lambda x: x.clamp(1, 2), make(torch.bfloat16, 5))


def test_where_and_masks():
    x, y, mask = (
        make(torch.float32, 3, 4, grad=True),
        make(torch.float32, 4),
        make(torch.bool, 3, 1),
    )
    check(torch.where, mask, x, y)
    check(lambda m, x: torch.where(m, x, 2), mask, x)
    check(lambda m, x: torch.where(m, x, 2.5), mask, make(torch.int32, 3, 4))
    check(torch.where, mask, make(torch.int8, 4), make(torch.float64, 3, 1)[0, 0])
    check(lambda x, m: x.masked_fill(m, -INF), x, mask)
    check(lambda x, m: x.masked_fill(m, torch.tensor(2.0).to(x.device)), x, mask)
    check(lambda x, m: x.masked_fill_(m, 7), make(torch.int32, 4, 3).t(), mask)
    check(lambda x: x.masked_fill(x > 0, 0), make(torch.bfloat16, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_half_types(dtype):
    """Remainders and powers round them first: else a multiple of 0.3 has another remainder."""
    x = torch.linspace(-9, 9, 99).to(dtype)
    for of_two in (torch.remainder, torch.fmod, torch.pow, torch.xlogy):
        for number in (0.3, 70000.0) if of_two is not torch.pow else (3.0,):
            check(of_two, x, number, executor="jit")
    check(lambda x: torch.pow(0.3, x), x, executor="jit")
    check(lambda x: x % torch.tensor(0.3, device=x.device), x, executor="jit")


def test_quotients_of_quotients_and_logarithms_of_powers():
    """XLA would multiply divisors, whose product is 0 or infinite, and take logarithms apart."""
    x = torch.tensor([1e-30, 1e30, -3.0, 0.3, 0.0, INF, NAN])
    check(lambda x: x / x, x.clone().requires_grad_(), executor="jit")
    check(lambda x: x / x / x, x, executor="jit")
    check(lambda x: x / x[0] / x[0], x[:1], executor="jit")
    for exponent in (-5, 5, torch.full((7,), -5.0)):
        check(lambda x, p: (x**p).log(), x, exponent, executor="jit")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_masks(dtype):
    """XLA would choose 0, where infinities and NaN are to give NaN."""
    x, mask = torch.tensor([INF, -INF, NAN, 2.0], dtype=dtype), torch.tensor([False] * 3 + [True])
    for product in (
        lambda x, m: x * m,
        lambda x, m: x * m.to(x.dtype),
        lambda x, m: x.mul_(m),
        lambda x, m: torch.addcmul(x, x, m.type_as(x)),
        lambda x, m: x * torch.eye(4, device=x.device, dtype=x.dtype),
    ):
        check(product, x, mask, executor="jit")


@named([torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
@pytest.mark.slow
def test_comparisons(f):
    check(f, *pairs())
    for a, b in itertools.product([torch.bool, torch.uint8, torch.int64, torch.float32], repeat=2):
        check(f, make(a, 3, 4), make(b, 4))
        check(f, make(a, 3, 4), 1)
    check(f, make(torch.int64, 5), 0.5)
    check(f, make(torch.bfloat16, 5), 0.1)
    check(lambda x: getattr(x.clone(), f"{f.__name__}_")(1), make(torch.float32, 4))


@named([torch.logical_and, torch.logical_or, torch.logical_xor])
def test_logic(f):
    for dtype in (torch.bool, torch.int64, torch.float32, torch.complex64):
        check(f, make(dtype, 3, 4), make(torch.float32, 4))
        check(torch.logical_not, make(dtype, 3))
    check(f, torch.ones(1), torch.tensor(1e-300, dtype=torch.float64))  # promoted to zero


@named([torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_bits(f, dtype):
    check(f, make(dtype, 3, 4), make(dtype, 4))
    check(f, make(dtype, 3), 1 if dtype != torch.bool else True)
    check(torch.bitwise_not, make(dtype, 3))
    check(lambda x: 5 & x.int(), make(dtype, 3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_shifts(dtype):
    x = make(dtype, 30, low=-100, high=100)
    by = (torch.arange(30) % (x.element_size() * 8)).to(dtype)
    check(torch.bitwise_left_shift, x, by)
    check(torch.bitwise_right_shift, x, by)
    check(lambda x: (x << 2, x >> 1, 1 << x.clamp(0, 5), x.__lshift__(1)), x)
    if dtype != torch.uint8:
        check(torch.bitwise_right_shift, x, torch.full_like(x, 64))
        check(torch.bitwise_left_shift, x, torch.full_like(x, -1))


@pytest.mark.slow
def test_closeness():
    x = torch.tensor([1.0, 2.0, NAN, INF, -INF])
    y = torch.tensor([1.0, 2.00001, NAN, INF, INF])
    for f in (torch.isclose, torch.allclose, torch.equal):
        check(f, x, y)
        check(f, x[:2], y[:2])
    check(lambda x, y: torch.isclose(x, y, equal_nan=True), x, y)
    check(lambda x, y: torch.allclose(x, y, equal_nan=True), x[:4], y[:4])
    check(torch.equal, x[:2], x[:3])
    check(torch.equal, make(torch.int32, 3), make(torch.int32, 3))


@named([torch.add, torch.mul, torch.div])
def test_in_place_and_out(f):
    name = f.__name__
    x, y = make(torch.float32, 3, 4), make(torch.float32, 3, 1)
    check(lambda x, y: getattr(x, f"{name}_")(y), x, y)
    check(lambda x: getattr(x.t()[1:], f"{name}_")(2), x)
    check(lambda x, y, out: f(x, y, out=out), x, y, torch.empty(0))
    check(lambda x, y, out: f(x, y, out=out), x, y, torch.empty(4, 3, dtype=torch.float64).t())
    check(lambda x: getattr(x, f"{name}_")(x), x)
    check_raises(lambda x: getattr(x, f"{name}_")(1.5), make(torch.int32, 3))
    check_raises(f, x, make(torch.float32, 5))


@pytest.mark.slow
def test_foreach():
    xs = [make(torch.float32, 3), make(torch.float32, 2, 2)]
    ys = [make(torch.float32, 3) + 1, make(torch.float32, 2, 2) * 2]
    check(torch._foreach_add, xs, ys)
    check(lambda x, y: torch._foreach_add(x, y, alpha=3), xs, ys)
    check(torch._foreach_mul, xs, 2.5)
    check(torch._foreach_div, xs, [2.0, 3.0])
    check(lambda x, y: torch._foreach_addcmul(x, x, y, 0.5), xs, ys)
    check(lambda x, y: torch._foreach_addcdiv(x, x, y, [0.5, 2.0]), xs, ys)
    check(lambda x, y: torch._foreach_lerp(x, y, 0.25), xs, ys)
    check(lambda x: torch._foreach_add_(x, 1), xs)
    check(torch._foreach_clamp_min, xs, 0.0)
    check(torch._foreach_maximum, xs, ys)
    check(lambda x: torch._foreach_pow(x, 2), xs)
    check(torch._foreach_neg, xs)
    check(torch._foreach_norm, xs)
    check(lambda x: torch._foreach_powsum(x, 3), xs)
    check(lambda x, y: torch._foreach_copy_(x, y), xs, ys)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_shapes(shape):
    for f in FLOAT_BINARY:
        check(f, make(torch.float32, *shape), make(torch.float32, *shape))


def test_division_of_integers_by_zero():
    x, zeros = torch.tensor([6, 7]), torch.tensor([2, 0])
    for f in (torch.floor_divide, torch.remainder, torch.fmod):
        check_raises(f, x, zeros)
        check_raises(f, x, 0)
        check(f, x, 0.0)
    check_raises(lambda x: torch.div(x, 0, rounding_mode="trunc"), x)
    check_raises(lambda x: x.remainder_(0), x)
    check(lambda x, y: torch.div(x, y), x, zeros)


def test_integer_power_of_large_exponents():
    x, exponent = torch.tensor([3, -3, 2, -1, 1, 0]), torch.tensor([64, 101, 63, 1000001, -5, 0])
    check(torch.pow, x, exponent)
    check(lambda x: x**101, x)


def test_refused_dtypes():
    ints, bools, complexes = torch.tensor([1]), torch.tensor([True]), torch.tensor([1j])
    check_raises(lambda x: torch.lerp(x, x, 0.5), ints)
    check_raises(torch.bitwise_and, ints, 1.5)
    check_raises(torch.lt, complexes, 1)
    check_raises(lambda x: torch._foreach_abs([x]), bools)
    check_raises(lambda x: x.frac_(), ints)
    check_raises(lambda x: torch.add(x, x, alpha=0.5), ints)
