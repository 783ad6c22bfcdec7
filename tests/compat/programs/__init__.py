"""Programs as PyTorch/XLA's users write them: nothing in them speaks of this package."""
