"""PyTorch's own device-generic tests on device jax, from a checkout of PyTorch.

The tests are not in PyTorch's wheel; ``make upstream PYTORCH=/path/to/checkout`` runs those of the
files in :mod:`tests.upstream.files` that take a device, each file in a process of its own
(:mod:`tests.upstream.plugin`), and prints a table. `CONTRIBUTING.md` says where a checkout comes
from. What cannot pass is in :mod:`tests.upstream.exceptions`, with its reason.
"""
