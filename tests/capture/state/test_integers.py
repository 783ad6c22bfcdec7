"""Whole numbers that change: their arithmetic is done anew, and what it decides is guarded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import torch_jax


class Trainer:
    """Counts its steps, and looks at the count."""

    def __init__(self) -> None:
        self.step, self.kept, self.table = 0, None, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]


def _every_other(trainer, x, i):
    trainer.step += 1
    return x * 2 if trainer.step % 2 == 0 else x


def _decays(trainer, x, i):
    trainer.step += 1
    return x * min(0.9, (1 + trainer.step) / (10 + trainer.step))


def _warms_up(trainer, x, i):
    return x * (i / 4) if i < 4 else x


def _mixes(trainer, x, i):
    trainer.step += 2
    return x * float(-trainer.step // 3 + i**2 - abs(trainer.step - i) % 5)


def _computes(trainer, x, i):
    trainer.step += 2
    return x * (-trainer.step // 3 + i**2 - abs(trainer.step - i) % 5 + 0.5)


def _keeps(trainer, x, i):
    trainer.kept = trainer.step + i
    trainer.step = i
    return x, trainer.kept, {"i": i}


def _multiplies(trainer, x, i):
    return x * i


def _adds_in_place(trainer, x, i):
    y = x + 0
    z = y
    y += i
    return z


def _compares_with_a_tensor(trainer, x, i):
    return (x == i).float() + (i != x) + (x < i)


def _is_a_size(trainer, x, i):
    return x.new_ones(i + 1).sum() + torch.arange(i).sum()


def _is_an_index(trainer, x, i):
    return x[i % 3] * trainer.table[i] + x[: i + 1].sum()


def _is_a_dim(trainer, x, i):
    return x.reshape(1, 3).expand(2, 3).sum(i % 2)


def _loops(trainer, x, i):
    for k in range(i):
        x = x + k
    return x


def _is_a_key(trainer, x, i):
    return x * {0: 3.0, 1: 4.0}.get(i, 5.0) * (2.0 if i in (1, 4) else 1.0)


def _is_a_text(trainer, x, i):
    return x * len(f"{i:03d}" + str(i) + repr(i)) + hash(i)


def _is_rounded(trainer, x, i):
    return x * (round(i / 3, 2) + math.sqrt(i) + divmod(i, 2)[0] if i % 2 else i.bit_length())


def _meets_numpy(trainer, x, i):
    return x * float(np.float64(2.0) * i) + float(np.arange(9)[i])


def _tells_ints(trainer, x, i):
    return x * 2 if isinstance(i, int) else x


def _is_true_or_false(trainer, x, i):
    return x * 2 if i else x - 1


def _is_in_a_tensor(trainer, x, i):
    return x * torch.tensor([i, i + 1, 2], device=x.device) + torch.full_like(x, i)


def _seeds(trainer, x, i):
    torch.manual_seed(100 + i)
    return x + torch.rand(3)[0].item() if x.device.type == "cpu" else x + _first_of_cpu(i)


def _first_of_cpu(i):
    return torch.rand(3)[0].to("jax")


FUNCTIONS = (
    _every_other, _decays, _warms_up, _mixes, _computes, _keeps, _multiplies, _adds_in_place,
    _compares_with_a_tensor, _is_a_size, _is_an_index, _is_a_dim, _loops, _is_a_key, _is_a_text,
    _is_rounded, _meets_numpy, _tells_ints, _is_true_or_false, _is_in_a_tensor, _seeds,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_are_never_stale(function):
    plain, trainer = Trainer(), Trainer()
    compiled = torch_jax.jit(lambda x, i: function(trainer, x, i))
    for i in (0, 1, 2, 5, 3, 1, 4):
        expected = _leaves(function(plain, torch.arange(3.0), i))
        actual = _leaves(compiled(torch.arange(3.0, device="jax"), i))
        torch.testing.assert_close([_to_cpu(leaf) for leaf in actual], expected)
        assert list(map(type, actual)) == list(map(type, expected))
        assert (trainer.step, trainer.kept) == (plain.step, plain.kept)
        assert type(trainer.step) is int


def _leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def _to_cpu(value):
    return value.cpu() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    ("function", "traces"), [(_every_other, 3), (_decays, 3), (_computes, 2), (_keeps, 3)]
)
def test_few_traces_are_made(function, traces):
    trainer = Trainer()
    compiled = torch_jax.jit(lambda x, i: function(trainer, x, i))
    for i in range(1, 12):
        compiled(torch.ones(3, device="jax"), i)
    assert compiled.explain().traces <= traces


def test_gradients_are_accumulated_as_the_count_says():
    def train(device, wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        trainer = Trainer()

        def step(x):
            (model(x) ** 2).mean().backward()
            trainer.step += 1
            if trainer.step % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()

        step = wrap(step)
        for index in range(12):
            step(torch.full((4, 3), 1.0 + index).to(device))
        return [p.detach().cpu() for p in model.parameters()], step

    expected, _ = train("cpu", lambda f: f)
    actual, step = train("jax", torch_jax.jit)
    torch.testing.assert_close(actual, expected)
    assert step.explain().traces <= 5


def test_a_scheduler_that_is_told_its_epoch():
    def rates(device, wrap):
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)

        def step(x, i):
            model(x).sum().backward()
            optimizer.step()
            scheduler.step(i / 2)

        step, found = wrap(step), []
        for i in range(1, 6):
            step(torch.ones(4, 3, device=device), i)
            found.append(optimizer.param_groups[0]["lr"])
        return found

    assert rates("jax", torch_jax.jit) == rates("cpu", lambda f: f)
