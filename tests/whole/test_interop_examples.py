"""The programs of examples/interop learn, and their losses are those of PyTorch on the CPU."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import optax
import pytest
import torch
from torch import nn

from examples.interop import flax_in_torch, optax_in_torch
from examples.interop.digits import batches, digits


def last_loss(printed: str) -> float:
    return float(re.findall(r"loss (\d+\.\d+)", printed)[-1])


@pytest.mark.slow
def test_optax_in_torch(capsys):
    accuracy = optax_in_torch.main(epochs=2)
    printed = last_loss(capsys.readouterr().out)
    assert accuracy > 0.8
    assert printed == pytest.approx(loss_of_optax_alone(epochs=2), abs=2e-3)


def loss_of_optax_alone(epochs: int) -> float:
    """PyTorch's gradients on the CPU, and optax by itself."""
    torch.manual_seed(0)
    net, (learned, _) = optax_in_torch.model(), digits()
    tx = optax_in_torch.transformation(epochs * len(batches(learned)))
    update = jax.jit(tx.update)
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}
    state = tx.init(params)
    for epoch in range(epochs):
        for images, labels in batches(learned, epoch):
            net.zero_grad()
            loss = nn.functional.cross_entropy(net(images.permute(0, 3, 1, 2)), labels)
            loss.backward()
            grads = {name: jnp.asarray(p.grad.numpy()) for name, p in net.named_parameters()}
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
            with torch.no_grad():
                for name, parameter in net.named_parameters():
                    parameter.copy_(torch.from_dlpack(params[name]))
    return loss.item()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nnx", pytest.param("linen", marks=pytest.mark.slow)])
def test_flax_in_torch(kind, capsys):
    assert flax_in_torch.main(kind, epochs=2) > 0.7
    assert f"{kind}: accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_torch_in_jax(capsys):
    from examples.interop import torch_in_jax

    torch_in_jax.main(epochs=2)
    printed = last_loss(capsys.readouterr().out)
    torch.manual_seed(0)
    net, (learned, _) = torch_in_jax.model(), digits()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-4)
    steps = 2 * len(batches(learned))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(2):
        for images, labels in batches(learned, epoch):
            optimizer.zero_grad()
            logits = net(images.permute(0, 3, 1, 2)).logits
            loss = nn.functional.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
    assert printed == pytest.approx(loss.item(), abs=5e-3)
