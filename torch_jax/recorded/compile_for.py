"""``torch_jax.compile_for``: code that runs without a chip, and its programs, compiled for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_jax import config, target
from torch_jax.core import absent, waking
from torch_jax.recorded import elsewhere, lazy
from torch_jax.recorded.elsewhere import Programs
from torch_jax.recorded.recorder import Recorder


@contextmanager
def compile_for(name: str) -> Iterator[Programs]:
    """Compile for chips that need not be here; nothing is computed inside the block.

    Python runs as usual. Tensors of device ``jax`` have a form and no elements, so a model may be
    larger than this machine. Each program that would run is lowered for the target, and compiled
    by the target's compiler when it is asked about. A single number that Python looks at is 0;
    tensors that were made inside are of no use afterwards. The compilers come with ``jax[tpu]`` and
    ``jax[cuda13]``.

    Args:
      name: the chips, such as ``"tpu-v5e-4x4"``, ``"tpu-v5p-64"``, ``"gpu-h200"`` and
        ``"gpu-h100-8"``. TPUs are counted as in the names of Google Cloud.

    Returns:
      The programs, as :class:`torch_jax.recorded.elsewhere.Programs`.

    Raises:
      ValueError: there are no such chips.
      NoCompiler: their compiler is not installed.
      DataDependentError: inside the block, where more than a number is looked at.

    >>> import torch
    >>> from torch_jax.target import NoCompiler
    >>> try:
    ...     with compile_for("tpu-v5e-4x4") as found:
    ...         x = torch.ones(1 << 20, 1 << 14, device="jax") * 2
    ...     size = found.programs[0].memory_analysis().output_size_in_bytes
    ... except NoCompiler:
    ...     size = 1 << 36
    >>> size
    68719476736
    """
    chips = target.parse(name)
    waking.wake()
    with config.temporarily("target", name):
        target.devices()  # raises where the compiler is missing
        absent.LOOKS.clear()
        programs = Programs(chips)
        elsewhere.OPEN.append(programs)
        try:
            with lazy.outside(Recorder(yields=True)):
                yield programs
        finally:
            elsewhere.OPEN.remove(programs)
