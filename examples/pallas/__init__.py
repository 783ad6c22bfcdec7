"""Kernels of Pallas as PyTorch operators: a fused RMSNorm, and flash attention."""
