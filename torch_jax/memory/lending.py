"""Memories lent to a program that writes its results over them.

An array that is donated to an executable is gone then. So it is taken out of its storage first, and
its reference count shows other holders (:func:`torch_jax.compiler.donation.copy_shared`); later
readers meet a placeholder, and wait. Handlers of signals are called when the program's results have
replaced the arrays: one that raised before would leave storages with arrays that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from torch_jax.core import signals
from torch_jax.core.node import Lent
from torch_jax.core.tracers import TracedElsewhere
from torch_jax.memory.storage import PUTTING, give_back

_array = attrgetter("array")
_programs_at_work: set[object] = set()


def run(
    program: Callable[..., list],
    arguments: Callable[[], tuple],
    inputs: list[Any],
    read: Sequence[Any],
    lent: Sequence[int],
    placeholders: Sequence[Lent],
    results: Sequence[int],
) -> list[Any]:
    """Run a program over the memories of storages, and store its results there; return its outputs.

    The empty list ``inputs`` is filled with the memories of the storages ``read``, and is the only
    holder of those that are ``lent``, by their places among these. ``arguments`` is called then.
    Each storage that lends holds one of the ``placeholders`` meanwhile, and then one of the
    ``results``: places among the outputs and the inputs.

    Raises:
      TracedElsewhere: another thread has the memory of one of the storages; nothing was done.
    """
    storages = [read[at] for at in lent]

    def launch() -> list[Any]:
        me = object()
        with PUTTING:
            inputs.extend(map(_array, read))
            if _programs_at_work and Lent in map(type, inputs):
                raise TracedElsewhere
            _programs_at_work.add(me)
            give_back(storages, placeholders)
        memories = None
        try:
            outputs = program(*arguments())
            known = outputs + inputs
            memories = [known[at] for at in results]
            return outputs
        finally:
            give_back(storages, memories or [inputs[at] for at in lent])
            _programs_at_work.discard(me)

    return signals.undisturbed(launch)
