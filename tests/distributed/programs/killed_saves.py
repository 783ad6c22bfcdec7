"""A process that saves over one name again and again is killed; each time a whole file is left.

No device is used: children are forked, which costs no time, and marked as if it were.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import torch_jax
from torch_jax.patches import checkpoint

warnings.simplefilter("ignore")
SIZES = 1000, 200_000, 3


def save_for_ever(folder: Path, first: int) -> None:
    """Save numbers that grow with each checkpoint."""
    for step in itertools.count(first):
        writer: Any = dcp.FileSystemWriter(folder, sync_files=False)
        tensors = {str(at): torch.full((size,), float(step)) for at, size in enumerate(SIZES)}
        dcp.save(tensors | {"step": step}, storage_writer=writer)


def loaded(folder: Path) -> int:
    """The step of the checkpoint; all that is in it must be of this step."""
    assert torch_jax.last_checkpoint(folder) == folder
    found: dict[str, Any] = {str(at): torch.zeros(size) for at, size in enumerate(SIZES)}
    found["step"] = -1
    dcp.load(found, checkpoint_id=folder)
    for at in range(len(SIZES)):
        assert (found[str(at)] == found["step"]).all(), found
    return found["step"]


def main() -> None:
    """Kill one child after the other; prints how many, and how many checkpoints there were."""
    torch.set_num_threads(1)
    if "unused" not in sys.argv:
        checkpoint.waking = SimpleNamespace(is_awake=lambda: True)
        of = checkpoint._of
        pieces = SimpleNamespace(write_items=lambda *_: [], piece_of=lambda *_: None)
        checkpoint._of = lambda what: pieces if what == "pieces" else of(what)  # of no mesh
    chance, step, kills = random.Random(0), 0, 30
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(kills):
            child = os.fork()
            if child == 0:
                save_for_ever(folder, step + 1)
            while not (folder / ".metadata").exists():
                time.sleep(0.001)
            time.sleep(chance.random() * 0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            before, step = step, loaded(folder)
            assert step >= before
    print(kills, step)


main()
