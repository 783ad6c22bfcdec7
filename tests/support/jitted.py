"""Both ways of ``torch_jax.jit``: Python that runs at each call, and Python that is skipped."""

from __future__ import annotations

from typing import Any

import pytest

import torch_jax

both = pytest.mark.parametrize("pure", [False, True], ids=["recorded", "pure"])


def assert_skipped(function: Any, kinds: int = 1) -> None:
    """Assert that a pure function's Python ran once for each of so many kinds of call.

    Audits are counted as recorded calls; what cannot skip its Python leaves a note.
    """
    told = torch_jax.explain(function)
    assert told.observed == kinds, told
    assert not told.notes, told


def assert_run(function: Any, pure: bool, kinds: int = 1) -> None:
    """Assert that Python was skipped if ``pure``, and ran at each call if not."""
    if pure:
        assert_skipped(function, kinds)
    else:
        assert torch_jax.explain(function).observed == 0
