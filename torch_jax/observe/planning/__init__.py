"""What a training step would need: memory, collectives and time, by arithmetic alone.

May import nothing of the package, and needs neither JAX nor PyTorch. The command line and
``torch_jax.plan`` load it.
"""
