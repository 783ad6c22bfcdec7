"""Training in which processes are killed: ``python -m tests.distributed.chaos 20`` kills twenty.

Four processes train, save every few steps over one name, and one of them is killed at a random
moment. The others must be told who it was. The checkpoint must be whole and hold the weights of its
step, and the next four go on from it with the losses of one process on the CPU. DDP and FSDP2 take
turns, so each goes on from what the other has saved.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp

import torch_jax
from tests.distributed.programs.trains_and_saves import SAVES_EVERY, batch, layers
from tests.support import ranks

PROGRAM = "tests.distributed.programs.trains_and_saves"
RANKS = 4
WITHIN = 60.0  # the time-out of the group, in seconds


class Found(NamedTuple):
    """What became of one run.

    Attributes:
      began: how many steps had been done before.
      done: how many the last rank has done when it ended.
      saved: how many steps the checkpoint holds, None where there is none.
      told_after: how many seconds after the end of one rank the last of the others was told.
    """

    began: int
    done: int
    saved: int | None
    told_after: float


class Reference:
    """The same training in one process on the CPU."""

    def __init__(self) -> None:
        self.model = layers()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses: list[list[float]] = []
        self.weights = [self._copy()]

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def go_to(self, step: int) -> None:
        """Train until so many steps are done."""
        while len(self.losses) < step:
            at = len(self.losses)
            losses = [self.model(batch(at, rank)).pow(2).mean() for rank in range(RANKS)]
            self.optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            self.optimizer.step()
            self.losses.append([loss.item() for loss in losses])
            self.weights.append(self._copy())


def close(actual: Any, expected: Any) -> None:
    """Equal within what sums in another order do to some hundred steps."""
    torch.testing.assert_close(
        torch.as_tensor(actual), torch.as_tensor(expected), rtol=1e-3, atol=1e-4
    )


def saved_steps(folder: Path, reference: Reference) -> int | None:
    """How many steps the checkpoint holds, whose weights are compared."""
    last = torch_jax.last_checkpoint(folder)
    if last is None:
        return None
    weights = {name: torch.zeros_like(tensor) for name, tensor in reference.weights[0].items()}
    found: dict[str, Any] = {"model": weights, "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(found, checkpoint_id=last, no_dist=True)
    reference.go_to(found["step"])
    for name, tensor in reference.weights[found["step"]].items():
        close(weights[name], tensor)
    return found["step"]


def run(folder: Path, kind: str, seed: int, reference: Reference) -> Found:
    """One start of four processes that loses one of them."""
    before = saved_steps(folder, reference)
    ended = ranks.run("-m", PROGRAM, str(folder), kind, "1000000", str(seed), size=RANKS)
    killed = [rank for rank, (status, _) in enumerate(ended) if status == -9]
    assert len(killed) == 1 and all(status in (-9, 3) for status, _ in ended), ended
    told, when, done = [], 0.0, 0
    for rank, (status, text) in enumerate(ended):
        lines = [line.split(maxsplit=2) for line in text.splitlines()]
        assert ["begins", str(before or 0)] in lines, (before, text)
        losses = {int(line[1]): float(line[2]) for line in lines if line[:1] == ["loss"]}
        reference.go_to(max(losses) + 1)
        close(list(losses.values()), [reference.losses[step][rank] for step in losses])
        done = max(done, max(losses) + 1)
        if status == -9:
            when = next(float(line[1]) for line in lines if line[:1] == ["killed"])
            continue
        (said,) = (line for line in lines if line[:1] == ["told"])
        who = re.search(r"rank (\d) has ended", said[2])
        assert who and int(who.group(1)) == killed[0], said
        told.append(float(said[1]))
    assert max(told) - when < WITHIN, (told, when)
    saved = saved_steps(folder, reference)
    assert saved is None or (saved % SAVES_EVERY == 0 and done - SAVES_EVERY <= saved <= done)
    return Found(before or 0, done, saved, max(told) - when)


def chaos(folder: Path, kills: int, seed: int = 0) -> list[Found]:
    """So many runs, each from what the one before has left."""
    reference, chance = Reference(), random.Random(seed)
    return [
        run(folder / "x", ("ddp", "fsdp")[at % 2], chance.randrange(1 << 30), reference)
        for at in range(kills)
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    reference, first = Reference(), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as name:
        for at in range(int(sys.argv[1])):
            start = time.monotonic()
            kind = ("ddp", "fsdp")[at % 2]
            found = run(Path(name, "x"), kind, first + at, reference)
            print(f"{at:3} {kind:5} {found} {time.monotonic() - start:.0f} s", flush=True)
