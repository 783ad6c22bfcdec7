"""The three models under ``torch_jax.jit``; the only file here that knows ``torch_jax``."""

import torch_jax
from examples.video_pipeline.models import Models
from torch_jax.capture.history import Explanation


def compile_models(models: Models) -> None:
    """Compile what the graph calls, in place; every caller keeps calling the models as before."""
    torch_jax.jit(models.text_encoder)
    torch_jax.jit(models.transformer)
    models.vae.decode = torch_jax.jit(models.vae.decode)  # the VAE's call would encode, too


def explanations(models: Models) -> dict[str, Explanation]:
    """What was recorded and compiled, by model."""
    return {
        "text encoder": torch_jax.explain(models.text_encoder),
        "transformer": torch_jax.explain(models.transformer),
        "vae": torch_jax.explain(models.vae.decode),
    }
