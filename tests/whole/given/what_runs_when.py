"""Given in docs/what-runs-when.md: the setting as users have it, not as the tests do."""

import torch_jax

torch_jax.config.set("compiled_from_run", 3)
