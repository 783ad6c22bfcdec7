"""What one trace found out: all that is left of it for the calls to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_jax.capture.capture import Input
from torch_jax.capture.host.tape import Tape
from torch_jax.capture.randomness import Draws
from torch_jax.capture.state.guards import Guards
from torch_jax.capture.state.places import Place
from torch_jax.capture.templates import Template


@dataclass(frozen=True)
class Record:
    """A trace that is over; :class:`~torch_jax.capture.replay.Replay` is built from it.

    Attributes:
      leaves: the arguments of the call that was traced.
      inputs: of the program, in order.
      draws: of each generator that the function draws from.
      tape: what the host does at each call.
      fills: slots of the tape, by the leaf that fills them.
      roots: CPU tensors that were met, each with its slot of the tape.
      guards: what has to be as it was.
      result: what the function returned.
      effects: places that it changed, and what stands there afterwards.
      gradients: those that it replaced (:class:`~torch_jax.capture.training.optimizers.Gradient`),
        and what by.
      checks: message and class of the errors for indices out of range.
      written: inputs whose storages hold something else afterwards.
      new_storages: storages made in the trace that live on; outputs of the program after these.
      strays: those of them that stand in a place which nobody watches.
      unproven: why the Python of later calls cannot be skipped, None where it can.
      raised: by how much the versions of tensors rose, by their ids.
      steps: whether optimizers have stepped, whose state stands on the device from then on.
      processes: those that run the program together, None where it has no collectives.
      originals: tensors of the result, by their number in the templates.
    """

    leaves: list[Any]
    inputs: list[Input]
    draws: list[Draws]
    tape: Tape
    fills: dict[int, int]
    roots: list[tuple[torch.Tensor, int]]
    guards: Guards
    result: Template
    effects: list[tuple[Place, Template]]
    gradients: list[tuple[Any, Template | None]]
    checks: list[tuple[str, type[Exception]]]
    written: list[Input]
    new_storages: list[Any]
    strays: list[Any]
    originals: dict[int, torch.Tensor]
    unproven: str | None
    raised: dict[int, int]
    steps: bool
    processes: Any
