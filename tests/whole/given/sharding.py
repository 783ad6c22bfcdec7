"""Given in docs/sharding.md: eight devices."""

from types import SimpleNamespace

import jax
import torch
import torch.nn.functional as F  # noqa: F401

jax.config.update("jax_num_cpu_devices", 8)


class Llama(torch.nn.Module):
    """The names of one, much smaller."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.attention = torch.nn.ModuleDict(
            {"qkv": torch.nn.Linear(8, 8, bias=False), "out": torch.nn.Linear(8, 8)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Products."""
        return self.attention["out"](self.attention["qkv"](x))


config = SimpleNamespace()
model = Llama(config)
loader = [(torch.randn(8, 8), torch.arange(8)) for _ in range(2)]
rules = {"*.weight": ("model", None), "*": ()}
