"""What a training step would need: memory, collectives and time, by arithmetic alone.

Imports neither JAX nor PyTorch, and nothing of the package; the command line and
``torch_jax.plan`` load it.
"""
