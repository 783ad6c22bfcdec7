"""No test may run on the CPU unasked, nor write to the user's directory of compiled programs."""

import os

os.environ.setdefault("TORCH_JAX_CPU_FALLBACK", "error")
os.environ.setdefault("TORCH_JAX_CACHE", "0")

pytest_plugins = ["tests.support.ledger"]
