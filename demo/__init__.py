"""The main job on real input: search and train on JAX, held against CPU PyTorch.

Everything here is plain PyTorch that knows only a ``torch.device``; nothing imports ``torch_jax``.
"""
