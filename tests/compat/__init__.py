"""PyTorch/XLA's names."""
