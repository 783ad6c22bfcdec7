"""A model of flax, nnx or linen, trained by a loop of PyTorch's: its data, loss, optimizer."""

from __future__ import annotations

import sys

import torch
from flax import linen, nnx
from torch import nn

import torch_jax
from examples.interop.digits import batches, digits


class LinenNet(linen.Module):
    """Convolutions, batch norm and dropout in linen."""

    @linen.compact
    def __call__(self, images, train: bool):
        x = linen.Conv(16, (3, 3))(images)
        x = linen.relu(linen.BatchNorm(use_running_average=not train)(x))
        x = linen.max_pool(x, (2, 2), strides=(2, 2))
        x = linen.relu(linen.Conv(32, (3, 3))(x)).reshape(len(images), -1)
        return linen.Dense(10)(linen.Dropout(0.2, deterministic=not train)(x))


class NnxNet(nnx.Module):
    """The same in nnx."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(32 * 16, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.norm(self.first(images)))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = nnx.relu(self.second(x)).reshape(len(images), -1)
        return self.head(self.drop(x))


def model(kind: str) -> nn.Module:
    """One of the two as a module of PyTorch."""
    if kind == "nnx":
        return torch_jax.nn_from_flax(NnxNet(nnx.Rngs(0)))
    return torch_jax.nn_from_flax(LinenNet(), torch.zeros(1, 8, 8, 1))


def main(kind: str = "nnx", epochs: int = 10) -> float:
    """Train; returns the accuracy in the test."""
    torch.manual_seed(0)
    learned, tested = digits()
    net = model(kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    steps = epochs * len(batches(learned))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)

    @torch_jax.jit(pure=True)  # the scheduler steps on the host at each call
    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    for epoch in range(epochs):
        for images, labels in batches(learned, epoch):
            loss = step(images.to("jax"), labels.to("jax"))
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    images, labels = (tensor.to("jax") for tensor in tested.tensors)
    with torch.no_grad():
        right = net.eval()(images).argmax(1) == labels
    accuracy = right.float().mean().item()
    print(f"{kind}: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ["nnx", "linen"]:
        main(chosen)
