"""The text encoder in training mode, where dropout is on."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Dropped:
    """What one dropout layer did to its input; all of it counted on the device that ran it."""

    p: float
    elements: int
    zeros: int
    wrong: int  # elements that are neither zero nor the input divided by 1 - p


def tokens(tokenizer, prompt: str, device: torch.device | str) -> Tensor:
    """int64 [1, length]."""
    return tokenizer(prompt, return_tensors="pt").input_ids.to(device)


def loss(text_encoder: nn.Module, ids: Tensor) -> Tensor:
    """A number to train on."""
    return text_encoder(ids).last_hidden_state.pow(4).mean()


def failures(layers: list[Dropped]) -> list[str]:
    """What cannot have been dropout: wrong values, or a number of zeros that chance does not give.

    The zeros of independent elements have a standard deviation of sqrt(n p (1 - p)); six of them
    are exceeded once in 5e8.
    """
    found = [f"dropout: {layer.wrong} wrong elements" for layer in layers if layer.wrong]
    for layer in layers:
        expected, n = layer.p * layer.elements, layer.elements
        if not abs(layer.zeros - expected) <= 6 * math.sqrt(n * layer.p * (1 - layer.p)):
            found.append(f"dropout: {layer.zeros} zeros where {expected:.0f} are expected")
    return found


@torch.no_grad()
def dropped(text_encoder: nn.Module, ids: Tensor) -> list[Dropped]:
    """Run the encoder once in training mode and look at what every dropout layer made."""
    found: list[Dropped] = []

    def look(layer: nn.Dropout, inputs: tuple, output: Tensor) -> None:
        kept, alive = output != 0, inputs[0] != 0
        wrong = kept & ~torch.isclose(output, inputs[0] / (1 - layer.p), rtol=1e-6, atol=0)
        counts = (x.sum().item() for x in (alive, alive & ~kept, wrong))
        found.append(Dropped(layer.p, *counts))

    layers = [m for m in text_encoder.modules() if isinstance(m, nn.Dropout)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    was_training = text_encoder.training
    try:
        text_encoder.train()
        text_encoder(ids)
    finally:
        text_encoder.train(was_training)
        for hook in hooks:
            hook.remove()
    return found
