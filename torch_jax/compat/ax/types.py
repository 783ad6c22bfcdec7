"""``torchax.types``: names for annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

TorchValue: TypeAlias = Any
TorchCallable: TypeAlias = Callable[..., Any]
JaxValue: TypeAlias = Any
JaxCallable: TypeAlias = Callable[..., Any]
