"""Functions of one operand, and complex numbers, against the CPU."""

import math

import pytest
import torch

from tests.support.compare import check, check_raises
from tests.support.values import INF, SPECIAL, make

pytestmark = pytest.mark.xla_both

EVERYWHERE = """
    sin cos tan sinh cosh tanh asinh atan exp exp2 expm1 erf erfc sigmoid sinc abs neg sign sgn
    floor ceil round frac trunc square positive deg2rad rad2deg nan_to_num isnan isinf isfinite
    isposinf isneginf signbit angle i0 reciprocal
""".split()
INSIDE_ONE = "asin acos atanh erfinv logit".split()
ABOVE_ZERO = "log log2 log10 log1p sqrt rsqrt lgamma digamma".split()
ABOVE_ONE = ["acosh"]
SPECIAL_NAMES = """
    ndtr log_ndtr ndtri entr i0e i1 i1e erfcx spherical_bessel_j0 modified_bessel_i0
    modified_bessel_i1
""".split()
COMPLEX = """
    sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh exp exp2 log log2 log10 sqrt rsqrt
    sigmoid sinc abs neg sgn square reciprocal angle nan_to_num isnan isinf conj_physical
""".split()


def domain(name, dtype=torch.float32, *shape):
    x = make(dtype, *(shape or (4, 5)))
    if name in INSIDE_ONE:
        return (x / 5).clamp(-0.9, 0.9).abs() + 0.05
    if name in ABOVE_ZERO:
        return x.abs() + 0.1
    return x.abs() + 1.1 if name in ABOVE_ONE else x


NAMES = [*EVERYWHERE, *INSIDE_ONE, *ABOVE_ZERO, *ABOVE_ONE]


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(name):
    f = getattr(torch, name)
    check(f, domain(name).requires_grad_())
    check(f, domain(name, torch.float64).t())
    check(f, SPECIAL)
    check(f, torch.empty(0, 3))
    check(f, domain(name)[0, 0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(name, dtype):
    if hasattr(torch, name):
        check(getattr(torch, name), domain(name, dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integers(name, dtype):
    x = make(dtype, 10)
    try:
        getattr(torch, name)(x)
    except RuntimeError:
        check_raises(getattr(torch, name), x)
    else:
        check(getattr(torch, name), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    for dtype in (torch.complex64, torch.complex128):
        check(getattr(torch, name), make(dtype, 4, 5, grad=name != "nan_to_num"), scale=2)


@pytest.mark.parametrize("name", SPECIAL_NAMES)
def test_special(name):
    f = getattr(torch.special, name)
    x = make(torch.float32, 40) * 3
    x = x.sigmoid() if name == "ndtri" else x
    differentiable = not name.startswith(("modified", "spherical"))
    check(f, x.requires_grad_(differentiable), scale=2)
    check(f, x.detach().double(), scale=100)  # series of different lengths
    check(f, torch.arange(3))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.slow
def test_polygamma(n):
    x = torch.cat([make(torch.float32, 20).abs() + 0.1, -make(torch.float32, 5).abs() - 0.1])
    check(lambda x: torch.polygamma(n, x), x, scale=5)
    check(lambda x: torch.polygamma(n, x), x[:20].requires_grad_(), scale=5)


@pytest.mark.slow
def test_zeta_and_mvlgamma():
    check(torch.special.zeta, torch.arange(0.5, 8), torch.linspace(-3, 4, 8), scale=5)
    check(lambda x: torch.special.zeta(3.0, x), torch.rand(5) + 0.2)
    check(lambda x: torch.mvlgamma(x, 3), (torch.rand(5) + 2).requires_grad_())


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_round_decimals(decimals):
    check(lambda x: torch.round(x, decimals=decimals), make(torch.float32, 20) * 30)
    check(lambda x: torch.round(x, decimals=decimals), make(torch.float64, 20) * 30)


def test_nan_to_num_and_logit_options():
    check(lambda x: x.nan_to_num(1.0, posinf=5.0, neginf=-7.0), SPECIAL.clone().requires_grad_())
    check(lambda x: x.nan_to_num(nan=2.0), SPECIAL.bfloat16())
    check(lambda x: torch.logit(x, 0.2), torch.rand(20).requires_grad_())
    check(lambda x: torch.logit(x, 0.2), torch.tensor([-1.0, 0.0, 1.0, 2.0, math.nan]))


@pytest.mark.slow
def test_complex_parts():
    a, b = make(torch.float32, 3, 4, grad=True), make(torch.float32, 4, grad=True)
    check(torch.complex, a, b.detach().expand(3, 4))
    check(lambda a, b: torch.polar(a, b.expand(3, 4)), a, b)
    z = make(torch.complex64, 3, 4, grad=True)
    check(lambda z: z.conj() * z, z)
    check(lambda z: (z.real * 2, z.imag + 1), z)
    check(lambda z: torch.view_as_real(z).sum(-1), z)
    check(lambda z: z.conj_physical_(), z.detach())
    check(lambda z: z.conj().imag.abs(), z.detach())


@pytest.mark.parametrize("name", ["exp", "sqrt", "neg", "tanh", "floor"])
def test_in_place_and_out(name):
    x = make(torch.float32, 4, 5)
    check(getattr(torch.Tensor, f"{name}_"), x)
    check(lambda x: getattr(x.t()[1:3], f"{name}_")(), x)
    check(lambda x, out: getattr(torch, name)(x, out=out), x, torch.empty(0))
    check(lambda x, out: getattr(torch, name)(x, out=out), x, torch.empty(5, 4).t())
    check(getattr(torch, f"_foreach_{name}"), [x, x[0]])


@pytest.mark.parametrize("name", "sqrt acos acosh asin asinh atan atanh".split())
def test_branch_cuts(name):
    parts = [-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 3.0]
    x = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=torch.complex128)
    inside = (x != 1j) & (x != -1j) & (x != 1) & (x != -1)  # poles of atan and atanh
    check(getattr(torch, name), x[inside])


def test_large_exponentials():
    x = torch.tensor([-125.5, -80.0, -1.5, 0.3, 20.7, 64.0, 88.9, 89.2, 127.0, 128.0, INF, -INF])
    for name in ("exp2", "cosh", "sinh"):
        result = getattr(torch, name)(x.to("jax")).cpu()
        torch.testing.assert_close(result, getattr(torch, name)(x), rtol=5e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_integers_that_wrap_around_are_negative(dtype):
    """XLA takes squares and absolute values of integers for positive."""
    least = torch.iinfo(dtype).min
    wraps = math.isqrt(-least) + 1  # its square is beyond the greatest number
    x = torch.tensor([least, wraps, -wraps, 7, -7, 0], dtype=dtype)
    for f in (torch.abs, torch.sign, lambda x: x < 0, torch.Tensor.abs_):
        check(lambda x, f=f: f(x * x), x, executor="jit")
        check(lambda x, f=f: f(x.abs()), x, executor="jit")
