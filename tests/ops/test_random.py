"""Random operators: their distributions, and the same numbers again from the same state."""

import math

import pytest
import scipy.stats
import torch

from tests.support.compare import check_raises

N = 20_000
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INF = float("inf")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1234)


def empty(dtype=torch.float32, n=N):
    return torch.empty(n, dtype=dtype, device="jax")


def values(x):
    return x.cpu().double().numpy()


def follows(x, distribution):
    """A Kolmogorov-Smirnov test at a level that a fixed seed either passes or not."""
    assert scipy.stats.kstest(values(x), distribution.cdf).pvalue > 1e-3


def counts_follow(x, distribution, top):
    """A chi-squared test of integers below ``top``; the rest is one more class."""
    x = values(x)
    assert (x == x.round()).all()
    observed = [(x == k).sum() for k in range(top)] + [(x >= top).sum()]
    expected = [distribution.pmf(k) for k in range(top)] + [distribution.sf(top - 1)]
    pairs = [(o, e * len(x)) for o, e in zip(observed, expected, strict=True)]
    assert all(o == 0 for o, e in pairs if e == 0)
    statistic = sum((o - e) ** 2 / e for o, e in pairs if e > 0)
    assert scipy.stats.chi2.sf(statistic, top) > 1e-3


CONTINUOUS = {
    "rand": (lambda: torch.rand(N, device="jax"), scipy.stats.uniform()),
    "randn": (lambda: torch.randn(N, device="jax"), scipy.stats.norm()),
    "rand_like": (lambda: torch.rand_like(empty()), scipy.stats.uniform()),
    "randn_like": (lambda: torch.randn_like(empty()), scipy.stats.norm()),
    "uniform_": (lambda: empty().uniform_(-2, 3), scipy.stats.uniform(-2, 5)),
    "normal_": (lambda: empty().normal_(1, 2), scipy.stats.norm(1, 2)),
    "normal": (lambda: torch.normal(1.0, 2.0, (N,), device="jax"), scipy.stats.norm(1, 2)),
    "normal of a mean": (lambda: torch.normal(empty().fill_(1), 2.0), scipy.stats.norm(1, 2)),
    "normal of a std": (lambda: torch.normal(1.0, empty().fill_(2)), scipy.stats.norm(1, 2)),
    "normal of both": (
        lambda: torch.normal(empty().fill_(1), empty().fill_(2)),
        scipy.stats.norm(1, 2),
    ),
    "exponential_": (lambda: empty().exponential_(3), scipy.stats.expon(0, 1 / 3)),
    "cauchy_": (lambda: empty().cauchy_(1, 2), scipy.stats.cauchy(1, 2)),
    "log_normal_": (
        lambda: empty().log_normal_(0.5, 0.7),
        scipy.stats.lognorm(0.7, 0, math.e**0.5),
    ),
    "gamma": (lambda: torch._standard_gamma(empty().fill_(0.7)), scipy.stats.gamma(0.7)),
    "dirichlet": (
        lambda: torch._sample_dirichlet(empty().fill_(0.5).view(-1, 2))[:, 0],
        scipy.stats.beta(0.5, 0.5),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.slow
def test_continuous(name):
    draw, distribution = CONTINUOUS[name]
    follows(draw(), distribution)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_dtypes(dtype):
    step = torch.finfo(dtype).eps
    for x in (empty(dtype).uniform_(), torch.rand(N, dtype=dtype, device="jax")):
        assert x.dtype == dtype
        assert 0 <= x.min().item() and x.max().item() < 1
        assert abs(x.double().mean().item() - 0.5) < 0.01 + step
    assert torch.normal(empty(dtype), torch.ones(N, device="jax")).dtype == dtype
    x = empty(dtype).uniform_(-1, 1)
    assert -1 <= x.min().item() and x.max().item() < 1
    normal = empty(dtype).normal_(1, 2).double()
    assert abs(normal.mean().item() - 1) < 0.06 and abs(normal.std().item() - 2) < 0.06
    assert (empty(dtype).exponential_() > 0).all()


@pytest.mark.slow
def test_complex():
    x = torch.randn(N, dtype=torch.complex64, device="jax")
    assert abs(torch.view_as_real(x).cpu().var(0) - 0.5).max() < 0.02
    assert torch.rand(4, dtype=torch.complex64, device="jax").dtype == torch.complex64


DISCRETE = {
    "bernoulli_": (lambda: empty().bernoulli_(0.3), scipy.stats.bernoulli(0.3), 2),
    "bernoulli_ half": (lambda: empty(torch.int64).bernoulli_(), scipy.stats.bernoulli(0.5), 2),
    "bernoulli": (lambda: torch.bernoulli(empty().fill_(0.3)), scipy.stats.bernoulli(0.3), 2),
    "bernoulli_ tensor": (
        lambda: empty(torch.bool).bernoulli_(empty().fill_(0.3)),
        scipy.stats.bernoulli(0.3),
        2,
    ),
    "geometric_": (lambda: empty().geometric_(0.4), scipy.stats.geom(0.4), 8),
    "geometric_ int": (lambda: empty(torch.int32).geometric_(0.4), scipy.stats.geom(0.4), 8),
    "poisson": (lambda: torch.poisson(empty().fill_(2.5)), scipy.stats.poisson(2.5), 8),
    "binomial": (
        lambda: torch.binomial(empty().fill_(6), empty().fill_(0.3)),
        scipy.stats.binom(6, 0.3),
        6,
    ),
    "randint": (lambda: torch.randint(5, (N,), device="jax"), scipy.stats.randint(0, 5), 5),
    "randint float": (
        lambda: torch.randint(2, 7, (N,), device="jax", dtype=torch.float32),
        scipy.stats.randint(2, 7),
        7,
    ),
    "randint_like": (lambda: torch.randint_like(empty(), 1, 4), scipy.stats.randint(1, 4), 4),
    "random_ to": (lambda: empty(torch.uint8).random_(6), scipy.stats.randint(0, 6), 6),
    "random_ from": (lambda: empty(torch.int16).random_(2, 6), scipy.stats.randint(2, 6), 6),
    "random_ bool": (lambda: empty(torch.bool).random_(), scipy.stats.randint(0, 2), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name):
    draw, distribution, top = DISCRETE[name]
    counts_follow(draw(), distribution, top)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_random_covers_the_integers(dtype):
    x = values(empty(dtype).random_()) / (torch.iinfo(dtype).max + 1)
    follows(
        torch.from_numpy(x) + torch.rand(N) / (torch.iinfo(dtype).max + 1), scipy.stats.uniform()
    )


@pytest.mark.slow
def test_random_ranges():
    assert empty().random_().max() <= 2**24
    assert empty(torch.bfloat16).random_().max() <= 2**8
    wide = empty(torch.int64).random_(-(2**63), None)
    assert wide.min().item() < -(2**62) and wide.max().item() > 2**62
    assert (torch.randint(-(2**63), 2**63 - 1, (N,), device="jax") < 0).any()
    assert (torch.randint(3, 4, (N,), device="jax") == 3).all()


@pytest.mark.slow
def test_randperm():
    for n in (0, 1, 100):
        x = torch.randperm(n, device="jax")
        assert sorted(x.tolist()) == list(range(n)) and x.dtype == torch.int64
    assert torch.randperm(5, dtype=torch.float32, device="jax").dtype == torch.float32
    firsts = torch.stack([torch.randperm(4, device="jax")[0] for _ in range(400)])
    counts_follow(firsts, scipy.stats.randint(0, 4), 4)


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial(replacement):
    weights = torch.tensor([1.0, 0, 2, 5], device="jax")
    x = torch.multinomial(weights.expand(N, 4), 2, replacement).cpu()
    share = torch.bincount(x[:, 0], minlength=4) / N
    assert (share - torch.tensor([1.0, 0, 2, 5]) / 8).abs().max() < 0.015
    assert share[1] == 0
    assert (x[:, 0] == x[:, 1]).any() == replacement
    if replacement:
        long = torch.multinomial(weights, N, True).cpu()
        assert (torch.bincount(long, minlength=4) / N - share).abs().max() < 0.02
    else:  # the second of two, given the first
        after = x[x[:, 0] == 3, 1]
        assert abs((after == 2).float().mean() - 2 / 3) < 0.02


def test_multinomial_errors():
    for weights in ([1.0, -1], [1.0, INF], [float("nan"), 1], [0.0, 0]):
        with pytest.raises(RuntimeError):
            torch.multinomial(torch.tensor(weights, device="jax"), 1)
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.tensor([1.0, 0], device="jax"), 2)


@pytest.mark.slow
def test_errors():
    x = empty(n=3)
    for bad in (
        lambda: x.normal_(0, -1),
        lambda: x.bernoulli_(2),
        lambda: x.geometric_(0),
        lambda: x.exponential_(-1),
        lambda: x.random_(3, 3),
        lambda: torch.randint(3, 3, (2,), device="jax"),
        lambda: torch.randperm(-1, device="jax"),
        lambda: torch.randint(300, (2,), dtype=torch.uint8, device="jax"),
        lambda: empty(torch.int8).random_(-300, 5),
        lambda: torch.normal(x, x.fill_(-1)),
        lambda: torch.bernoulli(x.fill_(2)),
        lambda: x.bernoulli_(x.fill_(2)),
        lambda: torch.poisson(x.fill_(-1)),
        lambda: torch.rand(2, dtype=torch.int64, device="jax"),
    ):
        with pytest.raises(RuntimeError):
            bad()


@pytest.mark.parametrize("low, high", [(2, 1), (float("nan"), 1), (0, 1e5)])
def test_uniform_bounds(low, high):
    check_raises(lambda x: x.uniform_(**{"from": low, "to": high}), torch.ones(3).half())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["uniform_", "cauchy_", "exponential_", "log_normal_", "normal_"])
def test_refused_dtypes(name, dtype):
    if not (dtype.is_complex and name in ("uniform_", "normal_")):
        check_raises(lambda x: getattr(x, name)(), torch.ones(3, dtype=dtype))


DRAWS = [
    lambda g: torch.rand(4, device="jax", generator=g),
    lambda g: torch.randn(4, device="jax", generator=g),
    lambda g: torch.randint(9, (4,), device="jax", generator=g),
    lambda g: torch.randint(2, 9, (4,), device="jax", generator=g),
    lambda g: torch.randperm(7, device="jax", generator=g),
    lambda g: empty(n=4).uniform_(generator=g),
    lambda g: empty(n=4).normal_(generator=g),
    lambda g: empty(n=4).bernoulli_(generator=g),
    lambda g: empty(n=4).random_(generator=g),
    lambda g: torch.normal(empty(n=4), 1.0, generator=g),
    lambda g: torch.bernoulli(empty(n=4).fill_(0.5), generator=g),
    lambda g: torch.multinomial(torch.ones(5, device="jax"), 2, generator=g),
    lambda g: torch.poisson(torch.ones(4, device="jax"), generator=g),
]


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.slow
def test_generators(device):
    first = torch.Generator(device).manual_seed(7)
    once = [draw(first).tolist() for draw in DRAWS]
    again = torch.Generator(device).manual_seed(7)
    assert [draw(again).tolist() for draw in DRAWS] == once
    other = torch.Generator(device).manual_seed(8)
    assert [draw(other).tolist() for draw in DRAWS] != once
    state = first.get_state()
    after = DRAWS[0](first).tolist()
    first.set_state(state)
    assert DRAWS[0](first).tolist() == after
    assert DRAWS[0](first).tolist() != after


@pytest.mark.slow
def test_manual_seed_repeats():
    once = [draw(None).tolist() for draw in DRAWS]
    torch.manual_seed(1234)
    assert [draw(None).tolist() for draw in DRAWS] == once


def test_state_of_the_default_generator():
    torch.rand(3, device="jax")
    state = torch.jax.get_rng_state()
    once = [torch.rand(3, device="jax").tolist() for _ in range(2)]
    torch.jax.set_rng_state(state)
    assert [torch.rand(3, device="jax").tolist() for _ in range(2)] == once


def test_draws_are_independent():
    a, b = (torch.randn(N, device="jax").cpu().double() for _ in range(2))
    assert abs((a * b).mean()) < 0.03
    assert abs((a[1:] * a[:-1]).mean()) < 0.03
    torch.manual_seed(1235)
    c = torch.randn(N, device="jax").cpu().double()
    assert abs((a * c).mean()) < 0.03


@pytest.mark.slow
def test_in_place_through_a_view():
    x = torch.zeros(4, 5, device="jax")
    x[:, 1::2].uniform_(1, 2)
    assert (x[:, ::2] == 0).all() and (x[:, 1::2] >= 1).all()
    assert torch.rand(2, 3, out=torch.empty(2, 3, device="jax")).shape == (2, 3)
    assert empty(n=0).normal_().shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_of_a_dirichlet_draw_is_less_than_one(dtype):
    part = torch.ones(1, dtype=dtype)
    assert torch._sample_dirichlet(part.to("jax")).item() == torch._sample_dirichlet(part).item()


@pytest.mark.slow
def test_gamma_gradient():
    a = torch.tensor([0.5, 2, 9], requires_grad=True)
    b = a.detach().to("jax").requires_grad_()
    x = torch._standard_gamma(b)
    x.sum().backward()
    expected = torch._standard_gamma_grad(a.detach(), x.detach().cpu())
    torch.testing.assert_close(b.grad.cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_distributions_module():
    probs = torch.tensor([0.2, 0.8], device="jax")
    assert torch.distributions.Categorical(probs).sample((5,)).device.type == "jax"
    loc = torch.zeros(2, device="jax", requires_grad=True)
    torch.distributions.Normal(loc, 1.0).rsample((3,)).sum().backward()
    assert loc.grad.tolist() == [3, 3]


@pytest.mark.slow
def test_rrelu():
    x = torch.randn(N, device="jax", requires_grad=True)
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    negative = x.detach() < 0
    slopes = (y / x).detach()[negative]
    follows(slopes, scipy.stats.uniform(0.1, 0.2))
    torch.testing.assert_close(x.grad[negative].cpu(), slopes.cpu())
    assert (y[~negative] == x[~negative]).all()
    assert torch.nn.functional.rrelu_(x.detach().clone(), training=True).shape == x.shape


def test_bounds_that_are_refused_once_are_not_refused_for_others():
    """Remember what the CPU says of the dtypes of a call, and not of its numbers."""
    x = torch.empty(5, dtype=torch.int8, device="jax")
    for bad in ((-200, 3), (0, -5)):
        with pytest.raises(RuntimeError):
            x.random_(*bad)
    assert set(x.random_(1, 4).tolist()) <= {1, 2, 3}
