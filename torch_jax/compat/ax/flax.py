"""``torchax.flax``: modules of flax as modules of PyTorch."""

from __future__ import annotations

from typing import Any

from torch import nn

from torch_jax.interop.flax_module import nn_from_flax


class FlaxNNModule(nn.Module):
    """A module of flax, whose variables are made by a first call with sample arguments.

    They are those of ``flax_module.init(env.prng_key, …)``. The module is made by
    ``torch_jax.nn_from_flax``: gradients flow through it.
    """

    def __init__(self, env: Any, flax_module: Any, sample_args: tuple, sample_kwargs: Any = None):
        super().__init__()
        args, kwargs = env.t2j_copy((tuple(sample_args), dict(sample_kwargs or {})))
        variables = flax_module.init(env.prng_key, *args, **kwargs)
        self.module = nn_from_flax(flax_module, variables=variables)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module of flax."""
        return self.module(*args, **kwargs)
