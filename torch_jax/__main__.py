"""``python -m torch_jax``."""

from torch_jax.cli import main

raise SystemExit(main())
