"""The modules of libraries that are patched, and the files with their patches."""

from __future__ import annotations

from torch_jax.patches import imports

_LIGHTNING = {
    ("lightning.pytorch", "pytorch_lightning"): (
        "accelerators strategies strategies.ddp trainer.connectors.accelerator_connector"
    ),
    ("lightning.fabric", "lightning_fabric"): (
        "accelerators connector strategies strategies.ddp utilities.seed"
    ),
}
FILES = {
    "accelerate.accelerator": "accelerate",
    "accelerate.state": "accelerate",
    "accelerate.utils.dataclasses": "accelerate",
    "transformers.trainer": "trainer",
    "transformers.training_args": "trainer",
} | {
    f"{root}.{module}": "lightning"
    for roots, modules in _LIGHTNING.items()
    for root in roots
    for module in modules.split()
}


def install() -> None:
    """Let each library be patched when it is imported; called once, at ``import torch``."""
    imports.also({name: f"torch_jax.integrations.adapt.{file}" for name, file in FILES.items()})
