"""Show type checkers a user's program: ``make lint`` has mypy read it, and nothing runs it.

An error that mypy does not find is one, too: it is an unused ``type: ignore``.
"""

from typing import assert_type

from torch import Tensor, nn

import torch_jax


@torch_jax.jit
def step(x: Tensor, scale: float) -> Tensor:
    """Multiply."""
    return x * scale


assert_type(step(Tensor(), 2.0), Tensor)
assert_type(torch_jax.jit(nn.Linear(2, 2)), nn.Linear)
assert_type(torch_jax.jit(pure=True)(step)(Tensor(), 2.0), Tensor)
step("no tensor", 2.0)  # type: ignore[arg-type]
step(Tensor())  # type: ignore[call-arg]
torch_jax.jit(step, pure="yes")  # type: ignore[call-overload]
