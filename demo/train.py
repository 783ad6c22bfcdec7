"""Train two models with one ordinary step, on the CPU and on another device, and compare.

On device ``jax`` the very same step runs eagerly, and as one executable.
"""

import copy
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from demo import corpus
from demo.models import CharGPT, DigitsCNN
from demo.report import Row, Run, progress

Batch = tuple[Tensor, Tensor]
Batches = Sequence[Batch]
Runs = dict[str, Run]  # by way of running, CPU PyTorch first

# How far a loss may lie from CPU PyTorch's. The first loss sees one forward pass over equal
# weights, so only float32 rounding parts it (about 1e-6); TF32 products would by 1.3e-5 to 1.7e-5.
# Later losses follow weights that drifted apart. CPU PyTorch against itself, with every starting
# weight moved by about 2**-20 of its size, drifts by 3e-5 for the GPT over 200 steps, and for the
# CNN by 1e-3: there a rounding flips a ReLU or a max-pool now and then. Training in bfloat16 drifts
# by 0.8 and more, a wrong optimizer rule (Nesterov's) by 3.
FIRST_LIMIT = 1e-5
GPT_LIMIT = 2e-4
CNN_LIMIT = 5e-3
# Drift grows without end, so longer runs are held against the CPU only this far.
HELD_STEPS = 200


class Way(NamedTuple):
    """A way of running a training step: where its tensors are, and what is put around it."""

    device: torch.device
    around: Callable[[Callable], Callable]


def as_it_is(step: Callable) -> Callable:
    """Eagerly: operator after operator."""
    return step


def one_executable(step: Callable) -> Callable:
    """Forward, backward, optimizer and scheduler as one XLA program."""
    import torch_jax

    return torch_jax.jit(step)


def ways(device: torch.device) -> dict[str, Way]:
    """CPU PyTorch, the device eagerly, and, if that is JAX, the same step as one executable."""
    found = {
        "CPU": Way(torch.device("cpu"), as_it_is),
        f"{device} eager": Way(device, as_it_is),
    }
    if device.type == "jax":
        found[f"{device} jit"] = Way(device, one_executable)
    return found


def step_of(model: nn.Module, optimizer, scheduler) -> Callable[[Tensor, Tensor], Tensor]:
    """The training step that every PyTorch user writes."""

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return step


def train(step: Callable, batches: Batches, device: torch.device, label: str) -> Run:
    """Call the step with each batch, and read its loss, which waits for the device."""
    run = Run()
    for inputs, targets in progress(batches, len(batches), f"steps, {label}"):
        start = time.perf_counter()
        run.losses.append(step(inputs.to(device), targets.to(device)).item())
        kind = run.timing.steady if run.timing.first else run.timing.first
        kind.append(time.perf_counter() - start)
    return run


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, device: torch.device) -> float:
    """The share of targets that the model guesses right."""
    model.eval()
    return (model(inputs.to(device)).argmax(-1) == targets.to(device)).float().mean().item()


def fit(
    model: nn.Module, optimizer_of: Callable, batches: Batches, test: Batch, name: str, way: Way
) -> Run:
    """Train a copy of the model in this way, then measure it on the test batch."""
    torch.manual_seed(0)
    model = copy.deepcopy(model).to(way.device).train()
    optimizer = optimizer_of(model.parameters())
    scheduler = CosineAnnealingLR(optimizer, T_max=len(batches))
    step = way.around(step_of(model, optimizer, scheduler))
    run = train(step, batches, way.device, name)
    run.accuracy = accuracy(model, *test, way.device)
    return run


def in_each_way(
    ways: dict[str, Way], model: nn.Module, optimizer_of: Callable, batches: Batches, test: Batch
) -> Runs:
    """The same training in each way, from the same weights and batches."""
    return {name: fit(model, optimizer_of, batches, test, name, way) for name, way in ways.items()}


def characters(steps: int, size: int, context: int) -> tuple[Batches, Batch, int]:
    """Random stretches of Python's documentation, [size, context] each, and their next characters.

    Returns the training batches, a test batch out of the last tenth, and the number of characters.
    """
    text, vocabulary = corpus.characters()
    parts = text.tensor_split([len(text) * 9 // 10])
    generator = torch.Generator().manual_seed(0)

    def draw(part: Tensor, count: int) -> Batch:
        starts = torch.randint(len(part) - context, (count, 1), generator=generator)
        at = starts + torch.arange(context)
        return part[at], part[at + 1]

    batches = [draw(parts[0], size) for _ in range(steps)]
    return batches, draw(parts[1], 64), vocabulary


def digits(steps: int, size: int) -> tuple[Batches, Batch]:
    """Random batches of scikit-learn's handwritten digits, and a test batch: the last quarter."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    held_out = len(images) * 3 // 4
    generator = torch.Generator().manual_seed(0)
    picks = [torch.randperm(held_out, generator=generator)[:size] for _ in range(steps)]
    return [(images[i], labels[i]) for i in picks], (images[held_out:], labels[held_out:])


def losses_apart(task: str, runs: Runs, limit: float) -> tuple[float, list[str]]:
    """How far any loss lies from the same step's in the first run, and what is too far."""
    (first, expected), *others = runs.items()
    worst, failures = 0.0, []
    for name, run in others:
        pairs = list(zip(run.losses, expected.losses, strict=True))
        apart = [abs(a - b) for a, b in pairs]
        relative = max(abs(a - b) / b for a, b in pairs)
        print(f"  {name}: loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f}; the first differs from")
        print(f"    {first}'s by {apart[0]:.1e} (limit {FIRST_LIMIT:.0e}), any by at most", end=" ")
        print(f"{max(apart):.1e} (limit {limit:.0e}), {relative:.1e} of its size")
        worst = max(worst, *apart)
        held = max(apart[:HELD_STEPS])
        # `not <=` instead of `>`, so that a NaN fails.
        if not apart[0] <= FIRST_LIMIT:
            failures.append(f"{task}, {name}: the first loss differs by {apart[0]:.1e}")
        if not held <= limit:
            failures.append(f"{task}, {name}: losses differ by {held:.1e} > {limit:.0e}")
    return worst, failures


def compare_losses(task: str, runs: Runs, limit: float) -> Row:
    """Hold each step's loss against the CPU's."""
    worst, failures = losses_apart(task, runs, limit)
    return row(task, f"{worst:.1e} in loss", runs, failures)


def compare_accuracy(task: str, runs: Runs, samples: int) -> Row:
    """Hold the final accuracies against the CPU's, where dropout's random numbers differ.

    Two of them are as two independent trainings: they may differ by three standard errors of the
    difference of two shares counted over ``samples``. The ways on the device draw the same random
    numbers from the same seed, so that their losses have to agree.
    """
    (first, expected), *others = runs.items()
    _, failures = losses_apart(task, dict(others), CNN_LIMIT)
    worst = 0.0
    for name, run in others:
        apart = abs(run.accuracy - expected.accuracy)
        share = (run.accuracy + expected.accuracy) / 2
        limit = 3 * math.sqrt(2 * share * (1 - share) / samples)
        print(
            f"  {name}: test accuracy {run.accuracy:.1%}, on {first} {expected.accuracy:.1%};",
            end=" ",
        )
        print(f"may differ by {limit:.1%}")
        worst = max(worst, apart)
        if not apart <= limit:
            failures.append(f"{task}, {name}: accuracy differs by {apart:.1%} > {limit:.1%}")
    return row(task, f"{worst:.1%} in accuracy", runs, failures)


def row(task: str, difference: str, runs: Runs, failures: list[str]) -> Row:
    """The table's line for the training runs of one task."""
    quality = "accuracy " + " / ".join(f"{run.accuracy:.1%}" for run in runs.values())
    timings = {name: run.timing for name, run in runs.items()}
    return Row(task, quality, difference, timings, failures)


def run_gpt(ways: dict[str, Way], steps: int) -> tuple[Row, Runs]:
    """A character-level GPT with AdamW: the losses agree step by step."""
    batches, test, vocabulary = characters(steps, size=16, context=128)
    torch.manual_seed(0)
    model = CharGPT(vocabulary, context=128)
    weights = sum(weight.numel() for weight in model.parameters())
    print(f"  {weights} weights, {steps} steps of 16 x 128 characters")
    runs = in_each_way(ways, model, functools.partial(AdamW, lr=1e-3), batches, test)
    return compare_losses("char GPT, AdamW", runs, GPT_LIMIT), runs


def run_cnn(ways: dict[str, Way], steps: int, dropout: float) -> tuple[Row, Runs]:
    """A digits CNN with SGD: without dropout the losses agree, with it the accuracies do."""
    batches, test = digits(steps, size=64)
    torch.manual_seed(0)
    model = DigitsCNN(dropout)
    print(f"  dropout {dropout}, {steps} steps of 64 images, {len(test[1])} test images")
    sgd = functools.partial(SGD, lr=0.05, momentum=0.9, weight_decay=5e-4)
    runs = in_each_way(ways, model, sgd, batches, test)
    if dropout:
        return compare_accuracy("digits CNN, dropout", runs, len(test[1])), runs
    return compare_losses("digits CNN, SGD", runs, CNN_LIMIT), runs
