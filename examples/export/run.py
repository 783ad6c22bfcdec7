"""Runs an exported model where there is no PyTorch: JAX, NumPy, and one file of this project.

``python examples/export/run.py model.zip`` after ``python -m examples.export.write model.zip``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np

# Copied beside a program of your own, it is just `import exported_file`.
READER = Path(__file__).parents[2] / "torch_jax" / "exporting" / "exported_file.py"
spec = importlib.util.spec_from_file_location("exported_file", READER)
assert spec is not None and spec.loader is not None
exported_file = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exported_file)


def main(path: str) -> None:
    """Load, call, differentiate."""
    model = exported_file.load(path)
    expected = np.load(f"{path}.npz")
    logits = model.call(expected["points"])
    print(f"largest difference from PyTorch: {np.abs(logits - expected['logits']).max():.1e}")
    assert np.allclose(logits, expected["logits"], atol=1e-5)
    slope = jax.grad(lambda points: model.call(points)[:, 1].sum())(expected["points"])
    print(f"gradients of shape {slope.shape}; torch imported: {'torch' in sys.modules}")


if __name__ == "__main__":
    main(sys.argv[1])
