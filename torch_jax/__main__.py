"""``python -m torch_jax``."""

from torch_jax.observe.cli import main

raise SystemExit(main())
