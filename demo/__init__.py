"""The main job on real input: search and train on JAX, held against CPU PyTorch.

Everything here is plain PyTorch that knows only a ``torch.device``. One line imports ``torch_jax``:
the one that makes the training step, as it stands, one executable.
"""
