"""A model as a StableHLO program, in a file that JAX runs without PyTorch.

It needs flatbuffers: ``pip install "torch_jax[export]"``.
"""

import tempfile
from pathlib import Path

import jax
import numpy as np
import torch

import torch_jax
from torch_jax.exporting import exported_file  # copy this file to where there is only JAX

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
model = model.to("jax").eval()
points = torch.randn(4, 2, device="jax")

with torch.no_grad():
    expected = model(points).cpu().numpy()

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.zip"
    torch_jax.export(model, (points,)).save(path)
    loaded = exported_file.load(path)

print("weights:", ", ".join(f"{name} {array.shape}" for name, array in loaded.weights.items()))
result = loaded.call(points.cpu().numpy())
equal = np.allclose(result, expected, atol=1e-6)
print(f"a jax.Array: {isinstance(result, jax.Array)}, equal to the model's result: {equal}")
