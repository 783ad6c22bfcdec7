"""A model of transformers, trained by a program of JAX's: ``jax.jit``, ``jax.grad`` and optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import torch
from transformers import ViTConfig, ViTForImageClassification

import torch_jax
from examples.interop.digits import batches, digits


def model() -> torch.nn.Module:
    """A small vision transformer for images of 8x8."""
    return ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=64, num_labels=10,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def main(epochs: int = 20) -> float:
    """Train; returns the accuracy in the test."""
    torch.manual_seed(0)
    learned, tested = digits()
    net = model().to("jax")
    forward, params, buffers = torch_jax.functional(net)
    tx = optax.adamw(optax.cosine_decay_schedule(5e-3, epochs * len(batches(learned))))
    state = tx.init(params)

    def loss_of(params, images, labels):
        output, _ = forward(params, buffers, images)
        return optax.softmax_cross_entropy_with_integer_labels(output.logits, labels).mean()

    @jax.jit
    def step(params, state, images, labels):
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    for epoch in range(epochs):
        for images, labels in batches(learned, epoch):
            arrays = arrays_of(images, labels)
            params, state, loss = step(params, state, *arrays)
        print(f"epoch {epoch}: loss {loss:.3f}")
    torch_jax.load_functional(net, params)
    images, labels = tested.tensors
    with torch.no_grad():
        right = net.eval()(images.permute(0, 3, 1, 2).to("jax")).logits.argmax(1).cpu() == labels
    accuracy = right.float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    return accuracy


def arrays_of(images: torch.Tensor, labels: torch.Tensor) -> tuple[jax.Array, jax.Array]:
    """A batch as arrays, images as PyTorch's models take them."""
    return jnp.asarray(images.permute(0, 3, 1, 2).numpy()), jnp.asarray(labels.numpy())


if __name__ == "__main__":
    main()
