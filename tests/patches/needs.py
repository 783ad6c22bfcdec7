"""The table of rows of needs, and their common functions."""

from collections.abc import Callable
from typing import Any

import torch

Works = Callable[[], bool]
NEEDS: dict[str, Works] = {}  # by target: whether what users see is right; a fault may raise


def need(*targets: str) -> Callable[[Works], Works]:
    """Enter what shows that these targets have to be replaced."""

    def enter(works: Works) -> Works:
        NEEDS.update(dict.fromkeys(targets, works))
        return works

    return enter


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="jax")


def on_jax(value: Any) -> bool:
    return value.device.type == "jax"
