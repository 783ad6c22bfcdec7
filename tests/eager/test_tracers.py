"""Values are unknown under a trace: operators without them work, errors name line and remedy."""

import jax
import jax.numpy as jnp
import pytest
import torch

from torch_jax.core.tracers import DataDependentError
from torch_jax.memory import transfer
from torch_jax.memory.storage import wrap


def trace(function):
    """The jaxpr of a function of one 3x3 float32 tensor."""

    def program(memory):
        return transfer.value_of(function(wrap(memory, torch.float32)))

    with jax.enable_x64(True):
        return jax.make_jaxpr(program)(jnp.ones((3, 3), jnp.float32))


NEEDS_VALUES = {
    "nonzero": (lambda x: x.nonzero(), "torch.nonzero_static"),
    "mask": (lambda x: x[x > 0], "torch.where"),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), "torch.where"),
    "unique": (lambda x: torch.unique(x), "torch.sort"),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x), "torch.sort"),
    "repeat_interleave": (lambda x: x.repeat_interleave(x[0].long(), dim=0), "output_size="),
    "bincount": (lambda x: torch.bincount(x.long().view(-1)), "index_add"),
    "equal": (lambda x: torch.zeros(1) if torch.equal(x, x) else x, "(a == b).all()"),
    "allclose": (lambda x: torch.zeros(1) if torch.allclose(x, x) else x, "return it"),
    "item": (lambda x: x * x.sum().item(), "torch.cond"),
    "if": (lambda x: x if x.sum() > 0 else -x, "torch.cond"),
    "tolist": (lambda x: torch.tensor(x.tolist()), "return it"),
    "cpu": (lambda x: x.cpu(), "return it"),
    "print": (lambda x: torch.zeros(len(str(x))), "while a program is traced"),
}


@pytest.mark.parametrize("function, advice", NEEDS_VALUES.values(), ids=NEEDS_VALUES)
def test_the_error_names_the_users_line_and_the_static_alternative(function, advice):
    with pytest.raises(DataDependentError) as caught:
        trace(function)
    message = str(caught.value)
    assert advice in message
    assert f"{__file__}:{function.__code__.co_firstlineno}" in message


def test_the_line_is_that_of_the_innermost_user_function():
    def helper(x):
        y = x + 1
        return y.nonzero()

    with pytest.raises(DataDependentError) as caught:
        trace(lambda x: helper(x))
    assert f"{__file__}:{helper.__code__.co_firstlineno + 2}, in helper" in str(caught.value)


STATIC = {
    "indices": lambda x: x[torch.tensor([0, 1], device="jax")],
    "one mask written": lambda x: x.index_put((x > 0,), torch.zeros((), device="jax")),
    "where": lambda x: torch.where(x > 0, x, 0),
    "nonzero_static": lambda x: torch.nonzero_static(x, size=4).float(),
    "repeat_interleave": lambda x: x.repeat_interleave(x[0].long(), dim=0, output_size=3),
    "gather": lambda x: torch.gather(x, 0, (x - 1).long()),
    "embedding": lambda x: torch.nn.functional.embedding((x[0] - 1).long(), x),
    "inv": lambda x: torch.linalg.inv(x + torch.eye(3, device="jax")),
    "cholesky": lambda x: torch.linalg.cholesky(x + 3 * torch.eye(3, device="jax")),
    "multinomial": lambda x: torch.multinomial(x, 1).float(),
}


@pytest.mark.parametrize("function", STATIC.values(), ids=STATIC)
def test_what_has_a_static_shape_is_traced(function):
    ones = torch.ones(3, 3, device="jax")
    jaxpr = trace(function)
    with jax.enable_x64(True):
        (traced,) = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, jnp.ones((3, 3), jnp.float32))
    assert traced.shape == tuple(function(ones).shape)
    if function is not STATIC["multinomial"]:
        torch.testing.assert_close(torch.tensor(traced.tolist()), function(ones).cpu())
