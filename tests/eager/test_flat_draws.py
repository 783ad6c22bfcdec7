"""Draws of eager code on the CPU: a few programs for all sizes, and the numbers of one each."""

import pytest
import torch

import torch_jax
from torch_jax import config
from torch_jax.core import compilations
from torch_jax.eager import flat_draws

DRAWS = {
    "uniform_": lambda x: x.uniform_(-1, 2),
    "normal_": lambda x: x.normal_(1, 2),
    "exponential_": lambda x: x.exponential_(2.0),
    "cauchy_": lambda x: x.cauchy_(),
    "log_normal_": lambda x: x.log_normal_(),
    "geometric_": lambda x: x.geometric_(0.3),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "random_": lambda x: x.random_(),
    "random_to": lambda x: x.random_(7),
    "rand": lambda x: torch.rand(x.shape, dtype=x.dtype, device=x.device),
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype, device=x.device),
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, memory_format=torch.preserve_format),
    "randint": lambda x: torch.randint(1, 7, x.shape, device=x.device),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "normal": lambda x: torch.normal(1.0, 2.0, x.shape, device=x.device),
    "dropout": lambda x: torch.nn.functional.dropout(x.fill_(1.5), 0.4),
    "transposed": lambda x: x.transpose(0, -1).uniform_(),
    "like_transposed": lambda x: torch.rand_like(x.transpose(0, -1)),
    "bernoulli_transposed": lambda x: torch.bernoulli(x.fill_(0.4).transpose(0, -1)),
    "dropout_transposed": lambda x: torch.nn.functional.dropout(x.fill_(1.5).transpose(0, -1), 0.4),
    "dropout_spread": lambda x: torch.nn.functional.dropout(
        x[:1].fill_(2).expand(3, *x.shape), 0.4
    ),
    "contiguous": lambda x: torch.rand_like(
        x.transpose(0, -1), memory_format=torch.contiguous_format
    ),
    "poisson": lambda x: torch.poisson(x.fill_(4)),
    "gamma": lambda x: torch._standard_gamma(x.fill_(0.7)),
    "permutation": lambda x: torch.randperm(x.numel(), device=x.device),
    "normal of tensors": lambda x: torch.normal(x.fill_(2), torch.ones_like(x)),
    "normal of means": lambda x: torch.normal(x.fill_(2), 0.5),
    "normal of deviations": lambda x: torch.normal(1.0, x.fill_(2)),
    "binomial": lambda x: torch.binomial(x.fill_(5), torch.full_like(x, 0.3)),
    "dirichlet": lambda x: torch._sample_dirichlet(_weights(x)),
    "dirichlet of a vector": lambda x: torch._sample_dirichlet(_weights(x).reshape(-1)),
    "one": lambda x: torch.multinomial(_weights(x), 1),
    "few": lambda x: torch.multinomial(_weights(x), 3),
    "many": lambda x: torch.multinomial(_weights(x), 9, replacement=True),
    "one of a vector": lambda x: torch.multinomial(_weights(x).reshape(-1), 1),
    "few of a vector": lambda x: torch.multinomial(_weights(x).reshape(-1), 3),
    "many of a vector": lambda x: torch.multinomial(_weights(x).reshape(-1), 99, replacement=True),
    "complex normal": lambda x: torch.randn(x.shape, dtype=torch.complex64, device=x.device),
    "complex": lambda x: torch.rand(x.shape, dtype=torch.complex64, device=x.device),
}


def _weights(x):
    return torch.arange(x.numel() + 99, device=x.device).remainder(7).view(-1, 11) + 0.1


SHAPES = [(5, 11), (2, 3, 33), (0, 4), (33,)]
CASES = [(name, torch.float32) for name in DRAWS]
CASES += [(name, torch.bfloat16) for name in ("uniform_", "rand_like", "dropout")]


@pytest.fixture(autouse=True)
def by_torch(_as_on_accelerators):
    """Users' own default, which the other tests of this folder leave."""
    with config.temporarily("eager_on_cpu", "torch"):
        yield


def drawn(name, dtype):
    torch.manual_seed(3)
    return [DRAWS[name](torch.empty(shape, dtype=dtype, device="jax")).cpu() for shape in SHAPES]


@pytest.mark.parametrize("name, dtype", CASES, ids=str)
def test_the_beginning_of_a_longer_draw_is_the_draw(name, dtype, monkeypatch):
    found = drawn(name, dtype)
    with torch_jax.lazy():  # each at its own size
        recorded = drawn(name, dtype)
    monkeypatch.setattr(flat_draws, "length_for", lambda count, *_least: count)
    alone = drawn(name, dtype)
    for one, other, third in zip(found, alone, recorded, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(one, third, rtol=0, atol=0)


def test_ever_new_sizes_compile_few_programs():
    before = compilations.here()
    for size in range(2000, 2200):
        torch.randperm(size, device="jax")
    assert 1 <= compilations.here().minus(before).made <= 4


def test_draws_in_place_are_one_program_and_those_of_one_piece():
    def drawn(size, dtype):
        torch.manual_seed(3)
        x = torch.zeros(2, size, device="jax", dtype=dtype).t()
        return [x.normal_(1, 2).cpu(), x.uniform_(0.5, 1).cpu()]

    forms = [(size, dtype) for size in (3, 20_000, 30_001) for dtype in (torch.half, torch.cfloat)]
    found = [drawn(*form) for form in forms[:2]]
    before = compilations.here()
    found += [drawn(*form) for form in forms[2:]]
    assert not compilations.here().minus(before).made
    with torch_jax.lazy():
        recorded = [drawn(*form) for form in forms]
    for one, other in zip(found, recorded, strict=True):
        assert all(map(torch.equal, one, other))


def test_permutations_are_those_of_their_own_length(monkeypatch):
    def drawn():
        torch.manual_seed(3)
        return [torch.randperm(n, device="jax").tolist() for n in (1, 2, 8, 9, 17, 100, 129)]

    found = drawn()
    monkeypatch.setattr(flat_draws, "length_for", lambda count, *_least: count)
    assert found == drawn()


def test_an_error_is_that_of_the_call():
    with pytest.raises(RuntimeError, match=r"(?s)uniform_ expects.*float32\[5\]"):
        torch.empty(5, device="jax").uniform_(2, 1)
    x = torch.ones(5, device="jax")
    with pytest.raises(RuntimeError, match="Expected p_in"):
        torch.bernoulli(x * 2)
    generator = torch.Generator("jax").manual_seed(5)
    before = generator.get_state()
    with pytest.raises(RuntimeError, match="normal expects std"):
        x.normal_(0, -1, generator=generator)
    assert torch.equal(generator.get_state(), before)  # what is refused draws nothing
    first = torch.rand(5, generator=generator, device="jax")
    generator.manual_seed(5)
    assert torch.equal(torch.rand(7, generator=generator, device="jax")[:5], first)


def test_a_transformer_of_many_lengths_compiles_for_few():
    """In training, with dropout in attention, too: only numbers are drawn by programs."""
    layer, made = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to("jax"), []
    step = torch_jax.jit(lambda x: layer(x).sum())
    with config.temporarily("compiled_from_run", 3):
        for length in range(33, 63):
            before = compilations.here().made
            for run in (step, step.function):
                run(torch.ones(1, length, 8, device="jax")).backward()
            made.append(compilations.here().made - before)
    assert 0 < sum(made) <= len(made)
