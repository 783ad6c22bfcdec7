"""A GPT's forward pass, eager, beside the same model in hand-written jitted JAX.

6 layers, width 384, 6 heads, batches of 8 x 128 tokens, float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from benchmarks.models import BATCH, LAYERS, LENGTH, VOCABULARY, WIDTH, Gpt
from benchmarks.reference import gpt_forward, params_of
from benchmarks.timing import compare, sample, wait

EAGER, BARE = "torch_jax eager", "hand-written JAX"
TARGET = 1.6


def run() -> None:
    """Compare outputs once, then time forward passes."""
    torch.manual_seed(0)
    model = Gpt()
    p = params_of(model)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    jax_tokens = jnp.asarray(tokens.numpy().astype("int32"))
    model, tokens = model.to("jax"), tokens.to("jax")
    bare = jax.jit(gpt_forward)
    with torch.no_grad():
        logits = model(tokens)
        difference = abs(logits.cpu().numpy() - bare(p, jax_tokens)).max()
        print(f"\nGPT logits: max difference from hand-written JAX {difference:.1e}")
        contenders = {
            EAGER: lambda: wait(model(tokens)),
            BARE: lambda: bare(p, jax_tokens).block_until_ready(),
        }
        samples = sample(contenders, calls=1, rounds=25)
    title = f"GPT, {LAYERS} layers, width {WIDTH}, batch {BATCH}x{LENGTH}: forward, eager"
    compare(title, samples, {BARE: TARGET})
