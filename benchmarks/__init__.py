"""Benchmarks: ``python -m benchmarks`` (``make bench``). They print medians and ratios."""

import os

# What is timed of torch_jax.jit is the compiled call, not the calls that are recorded before.
os.environ.setdefault("TORCH_JAX_JIT_RECORDED_CALLS", "0")
