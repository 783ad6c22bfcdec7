"""Programs that are lowered and not run: to look at, or for chips that are elsewhere."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch_jax import config, target
from torch_jax._private import jax_core
from torch_jax.compiler import disk_cache, options


class Lowered:
    """A program that was lowered but not run; XLA compiles it when it is first asked about.

    With the setting ``target`` it is compiled for chips that are elsewhere.

    Attributes:
      kept_in: the folder in which the executable is kept for those chips; None: nowhere.
    """

    kept_in: Path | None = None

    def __init__(self, program: Any):
        """Take what JAX has lowered, a ``jax.stages.Lowered``."""
        self._lowered, self._target = program, config.get("target")

    @functools.cached_property
    def compiled(self) -> Any:
        """Return the executable, as ``jax.stages.Compiled``."""
        with config.temporarily("target", self._target):  # also where its block has ended
            is_here = target.chosen() is None
            with nullcontext() if is_here else disk_cache.elsewhere(self.kept_in):
                return self._lowered.compile(options.of_lowered(self._lowered))

    def as_text(self, dialect: str = "stablehlo") -> str:
        """Return the program as text: ``stablehlo``, or ``hlo`` as XLA optimized it."""
        if dialect == "stablehlo":
            return self._lowered.as_text()
        if dialect == "hlo":
            return self.compiled.as_text()
        raise ValueError(f"dialect must be 'stablehlo' or 'hlo', not {dialect!r}")

    def cost_analysis(self) -> Any:
        """Return XLA's estimates: ``flops``, ``bytes accessed`` …"""
        return jax_core.costs_of(self.compiled)

    def memory_analysis(self) -> Any:
        """Return the executable's memory: ``argument_size_in_bytes``, ``temp_size_in_bytes`` …"""
        return self.compiled.memory_analysis()
