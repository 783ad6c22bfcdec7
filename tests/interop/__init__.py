"""Tests of programs that use PyTorch and JAX together, each held against either of them alone."""
