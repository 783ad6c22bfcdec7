"""No test may run on the CPU unasked: a missing lowering is a failure."""

import os

os.environ.setdefault("TORCH_JAX_CPU_FALLBACK", "error")
