"""``torch_xla.stablehlo``: exported programs as StableHLO, which ``torch_jax.export`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from torch_jax.exporting.export import export, load

_FILE = "model.tjax"


class StableHLOGraphModule:
    """A program with its weights, called with tensors of the device."""

    def __init__(self, exported: Any):
        self.exported = exported

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the program's result, tensors on the device of the arguments."""
        return self.exported.call(*args, **kwargs)

    def get_stablehlo_text(self, method_name: str = "forward") -> str:
        """Return the program as text."""
        return self.exported.mlir()

    def get_stablehlo_bytecode(self, method_name: str = "forward") -> bytes:
        """Return the program as ``jax.export`` writes it."""
        return self.exported.serialize()

    def save(self, directory_path: Any) -> None:
        """Write program and weights to a folder."""
        Path(directory_path).mkdir(parents=True, exist_ok=True)
        self.exported.save(Path(directory_path) / _FILE)

    @classmethod
    def load(cls, directory_path: Any) -> StableHLOGraphModule:
        """Return the program of a folder of :meth:`save`."""
        return cls(load(Path(directory_path) / _FILE))


def exported_program_to_stablehlo(
    exported_model: torch.export.ExportedProgram, options: Any = None
) -> StableHLOGraphModule:
    """Return a program of ``torch.export`` as StableHLO."""
    return StableHLOGraphModule(export(exported_model))


def save_as_stablehlo(
    exported_model: torch.export.ExportedProgram, stablehlo_dir: Any, options: Any = None
) -> None:
    """Write a program of ``torch.export`` to a folder."""
    exported_program_to_stablehlo(exported_model).save(stablehlo_dir)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module, args: tuple, path: Any, options: Any = None
) -> None:
    """Write a model to a folder."""
    StableHLOGraphModule(export(torchmodel, args)).save(path)
