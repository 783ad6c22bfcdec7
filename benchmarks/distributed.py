"""A step of ``DistributedDataParallel`` in one process and in two, each with one core.

``python -m benchmarks.distributed`` prints, in seconds, the samples of rank 0, by the number of
processes. The batch of each process is the same: with no cost for the others a step of two would
take as long as a step of one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

from benchmarks.timing import Samples, Timed, sample

WIDTH, LAYERS, BATCH = 512, 4, 256
CALLS, ROUNDS = 1, 40
GLOO, EAGER, COMPILED = "CPU, gloo", "device jax", "torch_jax.jit"
TARGET = 0.9


def run() -> None:
    """Compare how steps scale from one process to two, in fresh processes."""
    runs = [_started(count) for count in (1, 2)]
    one, two = map(_median, runs)
    print(
        "\nDistributedDataParallel, one core a process: ms for a step of one and of two processes"
    )
    for name in one:
        scaling = one[name] / two[name]
        of_gloo = scaling / (one[GLOO] / two[GLOO])
        print(
            f"  {name:34} {one[name] * 1e3:8.2f} {two[name] * 1e3:8.2f}   scaling {scaling:4.2f}, "
            f"{of_gloo:4.2f} of gloo's (target {TARGET})  {runs[1][name].mode}"
        )


def _median(samples: Samples) -> dict[str, float]:
    return {name: statistics.median(timed.values) for name, timed in samples.items()}


def _started(count: int) -> Samples:
    """What rank 0 of so many processes has measured."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, f"--nproc-per-node={count}", "-m", "benchmarks.distributed"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return {name: Timed(*timed) for name, timed in json.loads(found).items()}


def measured() -> Samples:
    """Samples of all contenders, in turn, by this rank."""
    import torch
    import torch.distributed as dist

    import torch_jax

    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,jax:jax")
    compiled = torch_jax.jit(_step("jax"))
    contenders = {GLOO: _step("cpu"), EAGER: _step("jax"), COMPILED: compiled}
    calls = {name: _done(step) for name, step in contenders.items()}
    return sample(calls, CALLS, ROUNDS, warm_up=0)  # all ranks make as many calls


def _step(device: str) -> Callable[[], object]:
    """A step of training; gives the loss."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    parts = [part for layer in layers for part in (layer, torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*parts).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(BATCH, WIDTH).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _done(step: Callable[[], object]) -> Callable[[], object]:
    return lambda: step().item()  # type: ignore[attr-defined]


def main() -> None:
    """One rank, on a core of its own."""
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    found = measured()
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
