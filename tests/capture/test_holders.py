"""``torch_jax.jit(pure=True)``: tensors that are kept, and those that the result holds."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.compare import assert_same
from tests.support.values import ones
from torch_jax.core import trees

pure = torch_jax.jit(pure=True)


class _Keeps(nn.Module):
    """A module that keeps a tensor which its result, or the graph behind that, holds as well."""

    def __init__(self, kept, returned):
        super().__init__()
        self.weight = nn.Parameter(ones())
        self.how, self.returned, self.kept = kept, returned, None

    def forward(self, x):
        hidden = (x * self.weight).exp()
        self.kept = self.how(hidden)
        return self.returned(hidden)


@pytest.mark.parametrize("wants_gradients", [True, False])
@pytest.mark.parametrize("returned", [lambda h: h, lambda h: {"a": [h]}, lambda h: (h * h).sum()])
@pytest.mark.parametrize("kept", [lambda h: h, lambda h: h.detach(), lambda h: [h[:1]]])
def test_a_kept_tensor_is_found_out_though_the_result_holds_it(kept, returned, wants_gradients):
    """Though the result has the same memory: the kept one is there when the result is gone."""
    module = _Keeps(kept, returned).requires_grad_(wants_gradients)
    jitted = pure(module.forward)
    with pytest.warns(UserWarning, match="is kept somewhere"):
        for _ in range(2):
            jitted(ones())
    jitted(ones() * 2)
    found, expected = (
        trees.flatten(tree)[0] for tree in (module.kept, kept(torch.full((3,), 2.0).exp()))
    )
    assert_same(found[0], expected[0])


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + 0 * ctx.x


def _spent_in_part(x, w):
    """Return a loss, and what shares a part of its graph that has saved more."""
    scale = (x * w).exp()
    loss = scale.square().sum()
    loss.backward()
    return loss, scale.log()


def _penalty(x, w):
    """Return a loss through whose graph a leaf lives that the call has made."""
    between = (x * 2).requires_grad_()
    (gradient,) = torch.autograd.grad((between * w).tanh().sum(), between, create_graph=True)
    loss = gradient.square().sum()
    loss.backward()
    return loss


def _saved_by_hooks(x, w):
    # detached, as PyTorch asks: a hook that gives back what it is given makes a cycle that stays
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (t.detach(),), lambda packed: packed[0]
    ):
        return (x * w).exp().square()


@pytest.mark.parametrize(
    "function",
    [
        _spent_in_part,
        _penalty,
        _saved_by_hooks,
        lambda x, w: _Doubled.apply(x * w),
        lambda x, w: checkpoint(lambda h: (h * h).tanh(), x * w, use_reentrant=False),
        lambda x, w: torch.view_as_complex((x * w)[:, None].repeat(1, 2)).conj(),
        lambda x, w: ((x * w).relu_().fill_(1), x),
    ],
)
def test_what_the_result_and_its_graph_hold_is_not_kept(function):
    """A GAN's penalty and a VAE's entropy are skipped, as is what hooks and functions save."""
    weight = ones().requires_grad_()
    jitted = pure(function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            jitted(ones(), weight)
            weight.grad = None
    assert jitted.explain().recorded <= 2 and not jitted.explain().notes
