"""Each model with its batch, optimizer and loss, in PyTorch and by hand in JAX, ready to be called.

``python -m benchmarks.cases`` checks one step of each in JAX against PyTorch on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch
from torch.nn import functional as F

from benchmarks import models, reference  # no torch_jax: benchmarks.cuda runs without it

Tensors = tuple[torch.Tensor, torch.Tensor]
Call = Callable[[], Any]


class Case(NamedTuple):
    """A model and how it is trained, in PyTorch and, where somebody has written that, in JAX."""

    model: Callable[[], torch.nn.Module]
    batch: Callable[[], Tensors]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    jax_forward: Callable[..., jax.Array] | None = None
    jax_step: Callable[..., Any] | None = None
    jax_init: Callable[[reference.Params], Any] | None = None
    autocast: torch.dtype | None = None

    def made(self) -> tuple[torch.nn.Module, Tensors]:
        """A new model and a batch, the same each time."""
        torch.manual_seed(0)
        return self.model(), self.batch()


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the last dimension of ``logits``."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def adamw(params: Any) -> torch.optim.Optimizer:
    """AdamW, as in :mod:`benchmarks.reference`."""
    return torch.optim.AdamW(params, **reference.ADAMW)


def sgd(params: Any) -> torch.optim.Optimizer:
    """SGD with momentum, as in :mod:`benchmarks.reference`."""
    return torch.optim.SGD(params, **reference.SGD)


def gpt(sizes: models.GptSizes) -> Case:
    """A GPT of some sizes, trained by AdamW."""
    return Case(
        lambda: models.Gpt(sizes), lambda: models.gpt_batch(sizes), adamw, cross_entropy,
        reference.gpt_forward, reference.gpt_train_step, reference.adamw_init,
    )  # fmt: skip


def resnet(sizes: models.ResNetSizes) -> Case:
    """A ResNet of some sizes, trained by SGD with momentum."""
    return Case(
        lambda: models.ResNet(sizes), lambda: models.resnet_batch(sizes), sgd, cross_entropy,
        reference.resnet_forward, reference.resnet_train_step, reference.sgd_init,
    )  # fmt: skip


GPT, GPT2, SMALL_GPT = gpt(models.GPT), gpt(models.GPT2), gpt(models.SMALL_GPT)
RESNET, RESNET50 = resnet(models.RESNET), resnet(models.RESNET50)
SMALL_RESNET = resnet(models.SMALL_RESNET)
LINEAR = Case(
    models.small_linear, models.linear_batch, sgd, F.mse_loss,
    reference.linear_forward, reference.linear_train_step, reference.sgd_init,
)  # fmt: skip
CASES = {"gpt": GPT, "resnet": RESNET, "linear": LINEAR}
SMALL = {"gpt, small": SMALL_GPT, "resnet, small and deep": SMALL_RESNET}


def torch_step(
    case: Case, device: str, compiled: Callable[[Any], Any] = lambda model: model
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A training step of a new, compiled model as PyTorch's users write it; it returns the loss.

    It ends without gradients, as one by hand does: a program that gives them has more to write.
    """
    model, _ = case.made()
    model = compiled(model.to(device))
    optimizer = case.optimizer(model.parameters())

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, case.autocast, enabled=case.autocast is not None):
            loss = case.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def training(case: Case, device: str, compiled: bool = False, pure: bool = False) -> Call:
    """A call that makes one training step and waits for its loss."""
    step = torch_step(case, device)
    if compiled:
        step = _jit(step, pure)
    _, (inputs, targets) = case.made()
    inputs, targets = inputs.to(device), targets.to(device)
    return lambda: step(inputs, targets).item()


def bare_training(case: Case) -> Call:
    """The same step in hand-written JAX, jitted with its state donated."""
    model, batch = case.made()
    params, arrays = reference.params_of(model), reference.batch_of(batch)
    state = case.jax_init(params)
    compiled = jax.jit(case.jax_step, donate_argnums=(0, 1))

    def step() -> float:
        nonlocal params, state
        params, state, loss = compiled(params, state, arrays)
        return float(loss)

    return step


def inference(case: Case, device: str, compiled: bool = False) -> Call:
    """A call that makes one forward pass without gradients and waits for it."""
    model, (inputs, _) = case.made()
    model, inputs = model.to(device).eval(), inputs.to(device)
    if compiled:
        _jit(model)
    from benchmarks.timing import wait

    @torch.no_grad()
    def forward() -> torch.Tensor:
        logits = model(inputs)
        if device == "jax":
            wait(logits)
        return logits

    return forward


def bare_inference(case: Case) -> Call:
    """The same forward pass in hand-written JAX, jitted."""
    model, batch = case.made()
    params, (inputs, _) = reference.params_of(model), reference.batch_of(batch)
    compiled = jax.jit(case.jax_forward)
    return lambda: compiled(params, inputs).block_until_ready()


def _jit(function: Any, pure: bool = False) -> Any:
    import torch_jax

    return torch_jax.jit(function, pure=pure)


def difference(case: Case) -> float:
    """The largest difference of one step's loss, parameters and statistics from PyTorch's."""
    model, batch = case.made()
    arrays = reference.batch_of(batch)
    params = reference.params_of(model)
    step = jax.jit(case.jax_step, donate_argnums=(0, 1))
    params, _, loss = step(params, case.jax_init(params), arrays)
    optimizer = case.optimizer(model.parameters())
    expected = case.loss(model(batch[0]), batch[1])
    expected.backward()
    optimizer.step()
    pairs = [(params[name], value) for name, value in reference.params_of(model).items()]
    return max(float(abs(a - b).max()) for a, b in [*pairs, (loss, expected.item())])


if __name__ == "__main__":
    differences = {name: difference(case) for name, case in (CASES | SMALL).items()}
    print(*(f"{name}: max difference {d:.1e}" for name, d in differences.items()), sep="\n")
    assert max(differences.values()) < 1e-4, differences
