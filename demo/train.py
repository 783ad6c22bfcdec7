"""Train two models with one ordinary loop, on the CPU and on another device, and compare."""

import copy
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from demo import corpus
from demo.models import CharGPT, DigitsCNN
from demo.report import Row, Timing, progress

Batch = tuple[Tensor, Tensor]
Batches = Sequence[Batch]

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


@dataclass
class Run:
    """What one training run leaves: the loss and time of each step, and the final accuracy."""

    losses: list[float] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    accuracy: float = math.nan


def train(model: nn.Module, optimizer, scheduler, batches: Batches, device: torch.device) -> Run:
    """The loop that every PyTorch user writes."""
    run = Run()
    model.train()
    for inputs, targets in progress(batches, len(batches), f"steps on {device}"):
        start = time.perf_counter()
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.losses.append(loss.item())
        step = run.timing.steady if run.timing.first else run.timing.first
        step.append(time.perf_counter() - start)
    return run


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, device: torch.device) -> float:
    """The share of targets that the model guesses right."""
    model.eval()
    return (model(inputs.to(device)).argmax(-1) == targets.to(device)).float().mean().item()


def fit(
    model: nn.Module, optimizer_of: Callable, batches: Batches, test: Batch, device: torch.device
) -> Run:
    """Train a copy of the model on the device, then measure it on the test batch."""
    torch.manual_seed(0)
    model = copy.deepcopy(model).to(device)
    optimizer = optimizer_of(model.parameters())
    scheduler = CosineAnnealingLR(optimizer, T_max=len(batches))
    run = train(model, optimizer, scheduler, batches, device)
    run.accuracy = accuracy(model, *test, device)
    return run


def on_both(
    model: nn.Module, optimizer_of: Callable, batches: Batches, test: Batch, device: torch.device
) -> tuple[Run, Run]:
    """The same training on the CPU and on the device, from the same weights and batches."""
    cpu, ours = (fit(model, optimizer_of, batches, test, d) for d in (torch.device("cpu"), device))
    return cpu, ours


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


def compare_losses(task: str, cpu: Run, ours: Run, limit: float) -> Row:
    """Hold each step's loss against the CPU's."""
    pairs = list(zip(ours.losses, cpu.losses, strict=True))
    apart = [abs(a - b) for a, b in pairs]
    relative = max(abs(a - b) / b for a, b in pairs)
    worst = max(apart[:HELD_STEPS])
    print(f"  loss {cpu.losses[0]:.3f} -> {cpu.losses[-1]:.3f} on CPU, {ours.losses[-1]:.3f} here")
    print(f"  first loss differs by {apart[0]:.1e} (limit {FIRST_LIMIT:.0e}), any by at most")
    print(f"  {max(apart):.1e} absolute (limit {limit:.0e}) and {relative:.1e} relative")
    failures = []
    # `not <=` instead of `>`, so that a NaN fails.
    if not apart[0] <= FIRST_LIMIT:
        failures.append(f"{task}: the first loss differs by {apart[0]:.1e} > {FIRST_LIMIT:.0e}")
    if not worst <= limit:
        failures.append(f"{task}: losses differ by {worst:.1e} > {limit:.0e}")
    return row(task, f"{max(apart):.1e} in loss", cpu, ours, failures)


def compare_accuracy(task: str, cpu: Run, ours: Run, samples: int) -> Row:
    """Hold the final accuracy against the CPU's, where dropout's random numbers differ.

    The two are as two independent trainings: they may differ by three standard errors of the
    difference of two shares counted over ``samples``.
    """
    apart = abs(ours.accuracy - cpu.accuracy)
    share = (ours.accuracy + cpu.accuracy) / 2
    limit = 3 * math.sqrt(2 * share * (1 - share) / samples)
    print(f"  test accuracy {cpu.accuracy:.1%} on CPU, {ours.accuracy:.1%} here;", end=" ")
    print(f"may differ by {limit:.1%}")
    failures = [] if apart <= limit else [f"{task}: accuracy differs by {apart:.1%} > {limit:.1%}"]
    return row(task, f"{apart:.1%} in accuracy", cpu, ours, failures)


def row(task: str, difference: str, cpu: Run, ours: Run, failures: list[str]) -> Row:
    """The table's line for two training runs."""
    quality = f"accuracy {ours.accuracy:.1%} (CPU {cpu.accuracy:.1%})"
    return Row(task, quality, difference, cpu.timing, ours.timing, failures)


def run_gpt(device: torch.device, steps: int) -> tuple[Row, tuple[Run, Run]]:
    """A character-level GPT with AdamW: the losses agree step by step."""
    batches, test, vocabulary = characters(steps, size=16, context=128)
    torch.manual_seed(0)
    model = CharGPT(vocabulary, context=128)
    weights = sum(weight.numel() for weight in model.parameters())
    print(f"  {weights} weights, {steps} steps of 16 x 128 characters")
    runs = on_both(model, functools.partial(AdamW, lr=1e-3), batches, test, device)
    return compare_losses("char GPT, AdamW", *runs, GPT_LIMIT), runs


def run_cnn(device: torch.device, steps: int, dropout: float) -> tuple[Row, tuple[Run, Run]]:
    """A digits CNN with SGD: without dropout the losses agree, with it the accuracies do."""
    batches, test = digits(steps, size=64)
    torch.manual_seed(0)
    model = DigitsCNN(dropout)
    print(f"  dropout {dropout}, {steps} steps of 64 images, {len(test[1])} test images")
    sgd = functools.partial(SGD, lr=0.05, momentum=0.9, weight_decay=5e-4)
    runs = on_both(model, sgd, batches, test, device)
    if dropout:
        return compare_accuracy("digits CNN, dropout", *runs, len(test[1])), runs
    return compare_losses("digits CNN, SGD", *runs, CNN_LIMIT), runs
