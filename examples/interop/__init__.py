"""JAX's libraries in PyTorch, and PyTorch's models in JAX: three programs that learn digits."""
