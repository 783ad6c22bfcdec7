"""A PyTorch model and training loop; the optimizer is one of optax, whose schedule it follows."""

from __future__ import annotations

import optax
import torch
from torch import nn

import torch_jax
from examples.interop.digits import batches, digits


def model() -> nn.Module:
    """A small convolutional classifier."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def transformation(steps: int) -> optax.GradientTransformation:
    """Clipping, AdamW with a warm-up, and no decay of biases: as a program of optax has it."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, steps // 10 + 1, steps)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            schedule,
            mask=lambda params: {name: name.endswith("weight") for name in params},
        ),
    )


def main(epochs: int = 10) -> float:
    """Train; returns the accuracy in the test."""
    torch.manual_seed(0)
    learned, tested = digits()
    net = model().to("jax")
    steps = epochs * len(batches(learned))
    optimizer = torch_jax.optim.Optax(net.named_parameters(), transformation(steps))

    @torch_jax.jit(pure=True)  # optax counts its steps in a tensor
    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images.permute(0, 3, 1, 2)), labels)
        loss.backward()
        optimizer.step()
        return loss

    for epoch in range(epochs):
        for images, labels in batches(learned, epoch):
            loss = step(images.to("jax"), labels.to("jax"))
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    images, labels = (tensor.to("jax") for tensor in tested.tensors)
    with torch.no_grad():
        right = net(images.permute(0, 3, 1, 2)).argmax(1) == labels
    accuracy = right.float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
