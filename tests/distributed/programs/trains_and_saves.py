"""Training that saves every few steps, starts from the last checkpoint, and may lose a rank.

``python -m tests.distributed.programs.trains_and_saves FOLDER KIND STEPS SEED``: KIND is ``ddp`` or
``fsdp``. With a SEED some rank is killed at some moment; the others print what they are told. What
is found is looked at by :mod:`tests.distributed.chaos`.
"""

from __future__ import annotations

import datetime
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_jax

warnings.simplefilter("ignore")
SAVES_EVERY = 3


def layers() -> nn.Module:
    """What is trained."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))


def batch(step: int, rank: int) -> torch.Tensor:
    """What a rank is given at a step."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def spread(kind: str) -> nn.Module:
    """The model over all processes."""
    model = layers().to("jax")
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("jax", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def restore(model: nn.Module, optimizer: Any, folder: Path) -> int:
    """Take over the last checkpoint, if there is one; how many steps were done."""
    last = torch_jax.last_checkpoint(folder)
    if last is None:
        return 0
    weights, state = get_state_dict(model, optimizer)
    found = {"model": weights, "optim": state, "step": 0}
    dcp.load(found, checkpoint_id=last)
    set_state_dict(
        model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optim"]
    )
    return found["step"]


def save(model: nn.Module, optimizer: Any, folder: Path, done: int) -> None:
    """Write a checkpoint over the last one."""
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state, "step": done}, checkpoint_id=folder)


def end_somewhere(seed: int) -> None:
    """Kill one rank a moment later."""
    chance = random.Random(seed)
    victim, delay = chance.randrange(dist.get_world_size()), chance.random() * 2

    def end() -> None:
        time.sleep(delay)
        print("killed", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    if dist.get_rank() == victim:
        threading.Thread(target=end, daemon=True).start()


def train(folder: Path, kind: str, steps: int, seed: int | None) -> None:
    """Train up to so many steps."""
    model = spread(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = restore(model, optimizer, folder)
    print("begins", done, flush=True)
    for step in range(done, steps):
        loss = model(batch(step, dist.get_rank()).to("jax")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", step, loss.item(), flush=True)
        if step == done and seed is not None:
            end_somewhere(seed)
        if (step + 1) % SAVES_EVERY == 0:
            save(model, optimizer, folder, step + 1)


if __name__ == "__main__":
    name, kind, steps, *seed = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("jax", timeout=datetime.timedelta(seconds=60))
    try:
        train(Path(name), kind, int(steps), int(seed[0]) if seed else None)
    except (RuntimeError, dcp.CheckpointException) as error:
        print("told", time.time(), str(error).replace("\n", " "), flush=True)
        os._exit(3)
    dist.destroy_process_group()
