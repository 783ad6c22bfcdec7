"""Nothing goes stale under ``torch_jax.jit``: programs that change things between the calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torch_jax
from tests.support import unseen_programs  # noqa: F401, enters its programs
from tests.support.stale_programs import PROGRAMS


def _plain(value: Any, near: Any = lambda numbers, **_: numbers) -> Any:
    """What can be compared: tensors as their lists, with what else is to be equal."""

    def leaf(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            numbers = one.detach().cpu().double().flatten().tolist()
            return (
                near(numbers, rel=1e-4, nan_ok=True),
                one.shape,
                str(one.dtype),
                one.requires_grad,
            )
        return repr(one) if isinstance(one, int | float | str | torch.Size) else type(one).__name__

    leaves, form = pytree.tree_flatten(value)
    return [leaf(one) for one in leaves], str(form)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_right_at_each_call(name):
    expected = [_plain(value, pytest.approx) for value in PROGRAMS[name]("jax", lambda f: f)]

    def jit(function):
        return torch_jax.jit(function, fallback="record")

    for index, value in enumerate(PROGRAMS[name]("jax", jit)):
        assert _plain(value) == expected[index], f"value {index}"
