"""``torch.distributions`` on the device: densities as on the CPU, samples of the right moments."""

import pytest
import torch
from torch import distributions as D

pytestmark = pytest.mark.slow

T = torch.tensor

CASES = {
    "bernoulli": lambda d: D.Bernoulli(T([0.3, 0.6], device=d)),
    "beta": lambda d: D.Beta(T([2.0, 3.0], device=d), T([1.5, 2.0], device=d)),
    "binomial": lambda d: D.Binomial(T([5.0, 9.0], device=d), T([0.3, 0.6], device=d)),
    "categorical": lambda d: D.Categorical(T([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]], device=d)),
    "cauchy": lambda d: D.Cauchy(T([0.0, 1.0], device=d), T([1.0, 2.0], device=d)),
    "chi2": lambda d: D.Chi2(T([3.0, 5.0], device=d)),
    "continuous bernoulli": lambda d: D.ContinuousBernoulli(T([0.3, 0.6], device=d)),
    "dirichlet": lambda d: D.Dirichlet(T([2.0, 3.0, 1.0], device=d)),
    "exponential": lambda d: D.Exponential(T([0.5, 2.0], device=d)),
    "fisher snedecor": lambda d: D.FisherSnedecor(T([6.0], device=d), T([12.0], device=d)),
    "gamma": lambda d: D.Gamma(T([2.0, 3.0], device=d), T([1.0, 0.5], device=d)),
    "geometric": lambda d: D.Geometric(T([0.3, 0.6], device=d)),
    "gumbel": lambda d: D.Gumbel(T([0.0, 1.0], device=d), T([1.0, 2.0], device=d)),
    "half cauchy": lambda d: D.HalfCauchy(T([1.0, 2.0], device=d)),
    "half normal": lambda d: D.HalfNormal(T([1.0, 2.0], device=d)),
    "independent": lambda d: D.Independent(D.Normal(T([0.0, 1.0], device=d), 1.0), 1),
    "inverse gamma": lambda d: D.InverseGamma(T([4.0], device=d), T([2.0], device=d)),
    "kumaraswamy": lambda d: D.Kumaraswamy(T([2.0], device=d), T([3.0], device=d)),
    "laplace": lambda d: D.Laplace(T([0.0, 1.0], device=d), T([1.0, 2.0], device=d)),
    "lkj": lambda d: D.LKJCholesky(3, T(1.5, device=d)),
    "log normal": lambda d: D.LogNormal(T([0.0], device=d), T([0.5], device=d)),
    "logistic normal": lambda d: D.LogisticNormal(T([0.0, 1.0], device=d), T([1.0, 0.5], device=d)),
    "low rank normal": lambda d: D.LowRankMultivariateNormal(
        torch.zeros(2, device=d), T([[1.0], [0.5]], device=d), torch.ones(2, device=d)
    ),
    "mixture": lambda d: D.MixtureSameFamily(
        D.Categorical(T([0.4, 0.6], device=d)), D.Normal(T([0.0, 3.0], device=d), 1.0)
    ),
    "multinomial": lambda d: D.Multinomial(8, T([0.2, 0.3, 0.5], device=d)),
    "multivariate normal": lambda d: D.MultivariateNormal(
        torch.zeros(2, device=d), T([[2.0, 0.5], [0.5, 1.0]], device=d)
    ),
    "negative binomial": lambda d: D.NegativeBinomial(T([5.0], device=d), T([0.4], device=d)),
    "normal": lambda d: D.Normal(T([0.0, 1.0], device=d), T([1.0, 2.0], device=d)),
    "one hot": lambda d: D.OneHotCategorical(T([0.2, 0.3, 0.5], device=d)),
    "pareto": lambda d: D.Pareto(T([1.0], device=d), T([4.0], device=d)),
    "poisson": lambda d: D.Poisson(T([2.0, 6.0], device=d)),
    "relaxed bernoulli": lambda d: D.RelaxedBernoulli(T([1.5], device=d), T([0.4], device=d)),
    "student t": lambda d: D.StudentT(T([6.0], device=d)),
    "transformed": lambda d: D.TransformedDistribution(
        D.Normal(T([0.0], device=d), 1.0), [D.AffineTransform(1.0, 0.2), D.TanhTransform()]
    ),
    "uniform": lambda d: D.Uniform(T([0.0, 1.0], device=d), T([1.0, 3.0], device=d)),
    "von mises": lambda d: D.VonMises(T([0.5], device=d), T([3.0], device=d)),
    "weibull": lambda d: D.Weibull(T([1.0], device=d), T([2.0], device=d)),
    "wishart": lambda d: D.Wishart(T(4.0, device=d), torch.eye(2, device=d)),
}

NO_MEAN = (
    "categorical",
    "cauchy",
    "half cauchy",
    "lkj",
    "logistic normal",
    "relaxed bernoulli",
    "transformed",
)


@pytest.mark.parametrize("name", CASES)
def test_densities_and_samples(name):
    torch.manual_seed(0)
    on_cpu, on_jax = CASES[name]("cpu"), CASES[name]("jax")
    draws = on_jax.sample((2000,))
    assert draws.device.type == "jax"
    value = draws[:7].cpu()
    assert bool(on_cpu.support.check(value).all())
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(
        on_jax.log_prob(value.to("jax")).cpu(), on_cpu.log_prob(value), **close
    )
    if name in NO_MEAN:
        return
    torch.testing.assert_close(on_jax.mean.cpu(), on_cpu.mean, **close)
    spread = on_cpu.variance.sqrt()
    error = (draws.float().cpu().mean(0) - on_cpu.mean).abs()
    assert bool((error <= 5 * spread / 2000**0.5 + 1e-6).all()), error / spread


# The gradient of Dirichlet's draws (and so of Beta's) runs on the CPU: docs/differences.md.
ON_CPU = ("dirichlet", "lkj")


@pytest.mark.parametrize(
    "name", [n for n in CASES if CASES[n]("cpu").has_rsample and n not in ON_CPU]
)
def test_samples_have_gradients(name):
    torch.manual_seed(0)
    base = CASES[name]("jax")
    parameters = {
        n: getattr(base, n) for n in base.arg_constraints if n in ("loc", "concentration", "rate")
    }
    for parameter in parameters.values():
        if parameter.is_leaf:
            parameter.requires_grad_()
    draw = base.rsample((3,))
    if draw.requires_grad:
        draw.sum().backward()
        for n, parameter in parameters.items():
            if parameter.is_leaf:
                assert bool(parameter.grad.isfinite().all()), n


PAIRS = ["normal", "gamma", "beta", "dirichlet", "bernoulli", "categorical", "exponential"]
PAIRS += ["laplace", "poisson", "multivariate normal", "uniform"]


@pytest.mark.parametrize("name", PAIRS)
def test_divergences_and_entropies(name):
    on_cpu, on_jax = CASES[name]("cpu"), CASES[name]("jax")
    torch.testing.assert_close(
        D.kl_divergence(on_jax, on_jax).cpu(), D.kl_divergence(on_cpu, on_cpu)
    )
    if name != "poisson":
        torch.testing.assert_close(on_jax.entropy().cpu(), on_cpu.entropy())
