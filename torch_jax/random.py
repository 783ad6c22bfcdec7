"""Randomness: generators whose state is a seed and a counter, as a PRNG on an accelerator wants.

Each random operator takes one *draw*, ``(seed, offset)``, and steps the offset; its numbers are a
pure function of that draw through JAX's counter-based threefry generator
(https://docs.jax.dev/en/latest/jep/263-prng.html). The same seed gives the same numbers on any
platform and in any executor. The default generator follows ``torch.manual_seed``.

``generator=`` takes a CPU ``torch.Generator`` too: each operator then takes its seed from it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import torch

from torch_jax import _internals
from torch_jax.active import ACTIVE

_MASK = (1 << 64) - 1


class _GeneratorType(type(_internals.CpuGenerator)):  # type: ignore[misc]
    """Lets ``isinstance(g, torch.Generator)`` hold for generators that PyTorch made itself."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _internals.CpuGenerator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _internals.CpuGenerator)


class JaxGenerator(_internals.CpuGenerator):
    """What ``torch.Generator(device="jax")`` makes: a seed and an offset.

    To C++ it is a CPU generator (PyTorch has no hook in Python for other kinds), whose own
    Mersenne state is never used; kernels know it again by its address.
    """

    def __new__(cls, device: Any = "jax") -> JaxGenerator:
        """Make a generator with PyTorch's default seed."""
        self = super().__new__(cls, "cpu")
        self._seed, self._offset, self._lock = 67280421310721, 0, threading.Lock()
        _known[self._cdata] = self
        return self

    @property
    def device(self) -> torch.device:
        """``device(type='jax', index=0)``."""
        return torch.device(_internals.DEVICE_TYPE, 0)

    def manual_seed(self, seed: int) -> JaxGenerator:
        """Start over from ``seed``, an int in [-2^63, 2^64)."""
        seed = int(seed)
        if not -(1 << 63) <= seed <= _MASK:
            raise RuntimeError(f"Overflow when unpacking long long: seed {seed} needs 64 bits")
        if ACTIVE.capture is not None:
            ACTIVE.capture.seeded(self)
        self._seed, self._offset = seed & _MASK, 0
        return self

    def seed(self) -> int:
        """Start over from a seed of the system's own, and return it."""
        seed = torch.Generator().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed last set."""
        return self._seed

    def draw(self) -> np.ndarray:
        """The key of the next operator: uint32 ``[seed high, seed low, offset high, low]``."""
        if ACTIVE.capture is not None:
            return ACTIVE.capture.draw(self)
        return self.advance(1)

    def advance(self, steps: int) -> np.ndarray:
        """The key words of the next draw, after which the generator stands ``steps`` further."""
        with self._lock:
            offset = self._offset
            self._offset += steps
        return words(self._seed, offset)

    def get_state(self) -> torch.Tensor:
        """The seed and the offset as 16 bytes, a CPU uint8 tensor."""
        return (
            torch.from_numpy(words(self._seed, self._offset).astype(np.int64))
            .to(torch.uint32)
            .view(torch.uint8)
        )

    def set_state(self, state: torch.Tensor) -> JaxGenerator:
        """Take over a state that :meth:`get_state` gave."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() != 16:
            raise RuntimeError(f"RNG state is wrong size: {state.numel()} bytes instead of 16")
        words = state.cpu().contiguous().numpy().view(np.uint32).tolist()
        self._seed, self._offset = words[0] << 32 | words[1], words[2] << 32 | words[3]
        return self

    def clone_state(self) -> JaxGenerator:
        """A new generator in the same state."""
        return JaxGenerator().set_state(self.get_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, other: JaxGenerator) -> JaxGenerator:
        """Take over the state of another generator."""
        return self.set_state(other.get_state())

    def __reduce__(self) -> tuple:
        return _rebuild, (self.get_state(),)


_known: weakref.WeakValueDictionary[int, JaxGenerator] = weakref.WeakValueDictionary()
default_generator = JaxGenerator()


def _rebuild(state: torch.Tensor) -> JaxGenerator:
    return JaxGenerator().set_state(state)


def words(seed: int, offset: int) -> np.ndarray:
    """The key of the draw at ``offset`` from ``seed``, as four uint32 words."""
    low = 0xFFFFFFFF
    return np.array([seed >> 32, seed & low, offset >> 32, offset & low], np.uint32)


def draw(generator: Any) -> np.ndarray:
    """The key words of the next operator from ``generator`` (None: the default one)."""
    if generator is None:
        return default_generator.draw()
    known = _known.get(generator._cdata)
    if known is not None:
        return known.draw()
    if ACTIVE.capture is not None:
        return ACTIVE.capture.host_words(generator)
    return words_from(generator)


def words_from(generator: torch.Generator) -> np.ndarray:
    """Key words that a CPU generator seeds."""
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return words(int(seed), 0)


def key(words: Any) -> Any:
    """The JAX key of a draw; called inside a trace."""
    import jax

    base = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(base, words[2]), words[3])


class Generator(_internals.CpuGenerator, metaclass=_GeneratorType):
    """``torch.Generator`` with device ``jax`` among the devices it takes."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator for ``device``; for ``jax`` a :class:`JaxGenerator`."""
        if torch.device(device).type == _internals.DEVICE_TYPE:
            return JaxGenerator()
        return _internals.CpuGenerator(device)
