"""Libraries that train, each on device ``jax`` and on the CPU: which of them a program names."""
