"""``torch_jax.nnx_from_torch``: a module of PyTorch as a module of ``flax.nnx``."""
