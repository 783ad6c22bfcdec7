"""Randomness: generators whose state is a seed and a counter, as a PRNG on an accelerator wants.

Each random operator takes one *draw*, ``(seed, offset)``, and steps the offset; its numbers are a
pure function of that draw through JAX's counter-based threefry generator
(https://docs.jax.dev/en/latest/jep/263-prng.html). The same seed gives the same numbers on any
platform and in any executor. The default generator follows ``torch.manual_seed``.

``generator=`` takes a CPU ``torch.Generator`` too: each operator then takes its seed from it.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref
from typing import Any, NoReturn

import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.core import errors
from torch_jax.core.active import ACTIVE

_MASK = (1 << 64) - 1


class JaxGenerator(pytorch.CpuGenerator):
    """The class of ``torch.Generator(device="jax")``: a seed and an offset.

    To C++ it is a CPU generator (PyTorch has no hook in Python for other kinds); kernels find it by
    its address. Its own Mersenne state is used by operators on the CPU only.
    """

    _seed: int
    _offset: int

    def __new__(cls, device: Any = None) -> JaxGenerator:
        """Make a generator with PyTorch's default seed."""
        if device is not None:
            errors.check_ordinal(torch.device(device))
        self = super().__new__(cls, "cpu")
        self._lock = threading.Lock()
        self._seed, self._offset = 67280421310721, 0
        _known[self._cdata] = self
        for watcher in _watchers():
            watcher.seeded(self)
        return self

    @property
    def device(self) -> torch.device:
        """Return ``device(type='jax', index=0)``."""
        return torch.device(pytorch.DEVICE_TYPE, 0)

    def manual_seed(self, seed: int) -> JaxGenerator:
        """Start over from ``seed``, an int in [-2^63, 2^64)."""
        try:
            seed = operator.index(seed)
        except TypeError:
            kind = type(seed).__name__
            raise RuntimeError(f"manual_seed expected a long, but got {kind}") from None
        if not -(1 << 63) <= seed <= _MASK:
            raise ValueError(f"Overflow when unpacking long long: seed {seed} needs 64 bits")
        for watcher in _watchers():
            watcher.seeded(self)
        super().manual_seed(seed)  # an operator on the CPU draws from this state
        return self.put(seed & _MASK, 0)

    def seed(self) -> int:
        """Start over from a seed that the system draws, and return it."""
        if _watchers():
            refuse_seed("Generator.seed()")
        seed = torch.Generator().seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """Return the seed last set."""
        for watcher in _watchers():
            watcher.looked_at_seed(self)
        return self._seed

    def fold_in(self, data: int) -> JaxGenerator:
        """Mix an int in [0, 2^32) into the seed, as ``jax.random.fold_in`` does, and start over.

        Processes (or workers, or layers) that fold in their number draw different numbers, each
        the same again for the same seed.

        >>> draws = [torch.Generator("jax").manual_seed(0).fold_in(rank) for rank in (0, 1, 1)]
        >>> first, second, again = [torch.rand(2, device="jax", generator=g).sum() for g in draws]
        >>> (first == second).item(), (second == again).item()
        (False, True)
        """
        data = operator.index(data)
        if not 0 <= data < 1 << 32:
            raise ValueError(f"fold_in takes an int in [0, 2^32), not {data}")
        return self.manual_seed(_folded(self.initial_seed(), data))

    def draw(self) -> np.ndarray:
        """Return a key: uint32 ``[seed high, seed low, offset high, low]``, or one of before."""
        if (made := ACTIVE.words) is not None:
            return made() if callable(made) else made
        if ACTIVE.tracer is not None:
            return ACTIVE.tracer.draw(self)
        drawn = words(*self.advance(1))
        if ACTIVE.observer is not None:
            ACTIVE.observer.draws.drew(self, drawn)
        return drawn

    def where(self) -> tuple[int, int]:
        return self.advance(0)

    def advance(self, steps: int) -> tuple[int, int]:
        """Return seed and offset of the next draw, and move the generator ``steps`` on."""
        with self._lock:
            seed, offset = self._seed, self._offset
            self._offset = offset + steps & _MASK
        return seed, offset

    def put(self, seed: int, offset: int) -> JaxGenerator:
        """Go to an offset from a seed."""
        with self._lock:
            self._seed, self._offset = seed, offset & _MASK
        return self

    def get_state(self) -> torch.Tensor:
        """Return the seed and the offset as 16 bytes, a CPU uint8 tensor."""
        if ACTIVE.tracer is not None:
            return ACTIVE.tracer.state_of(self)
        state = as_state(*self.where())
        if ACTIVE.observer is not None:
            ACTIVE.observer.draws.gives_state(self, state)
        return state

    def set_state(self, state: torch.Tensor) -> JaxGenerator:
        """Take over a state that :meth:`get_state` returned."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() != 16:
            raise RuntimeError(f"RNG state is wrong size: {state.numel()} bytes instead of 16")
        state = state.cpu()
        for watcher in _watchers():
            watcher.put_to(self, state)
        words = state.contiguous().numpy().view(np.uint32).tolist()
        return self.put(words[0] << 32 | words[1], words[2] << 32 | words[3])

    def clone_state(self) -> JaxGenerator:
        """Return a new generator in the same state."""
        return JaxGenerator().set_state(self.get_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, other: JaxGenerator) -> JaxGenerator:
        return self.set_state(other.get_state())

    def __reduce__(self) -> tuple:
        return _rebuild, (self.get_state(),)


def _watchers() -> list[Any]:
    """Return those that hear of generators: this thread's tracer, and a pure function's draws."""
    observer = ACTIVE.observer
    return [one for one in (ACTIVE.tracer, observer and observer.draws) if one is not None]


_known: weakref.WeakValueDictionary[int, JaxGenerator] = weakref.WeakValueDictionary()
default_generator = JaxGenerator()


def _rebuild(state: torch.Tensor) -> JaxGenerator:
    return JaxGenerator().set_state(state)


torch.serialization.add_safe_globals([_rebuild])  # a generator is loaded with weights_only=True


def refuse_seed(name: str) -> NoReturn:
    """Raise for a seed drawn by the system, which a program would make a constant."""
    from torch_jax.core.tracers import NotTraceableError

    raise NotTraceableError(
        f"{name} asks the system, and all calls of a program would have its answer: seed outside "
        "of the function, or with manual_seed(); or drop pure=True of torch_jax.jit"
    )


def _fresh_locks() -> None:
    """Replace the locks in a forked child: a thread of the parent may have held one."""
    for generator in list(_known.values()):
        generator._lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_locks)


def as_state(seed: int, offset: int) -> torch.Tensor:
    """Return the state of a generator at ``offset`` from ``seed``: 16 bytes."""
    return torch.from_numpy(words(seed, offset).view(np.uint8))


def words(seed: int, offset: int) -> np.ndarray:
    """Return the key of the draw at ``offset`` from ``seed``, as four uint32 words."""
    low = 0xFFFFFFFF
    return np.array([seed >> 32, seed & low, offset >> 32, offset & low], np.uint32)


def draw(generator: Any) -> np.ndarray:
    """Return the key words of the next operator from ``generator`` (None: the default one).

    A generator of the CPU draws a seed of them.
    """
    known = default_generator if generator is None else _known.get(generator._cdata)
    if known is not None:
        return known.draw()
    if ACTIVE.tracer is not None:
        return ACTIVE.tracer.draw(generator)
    if ACTIVE.observer is not None:
        ACTIVE.observer.draws_on_host()
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return words(int(seed), 0)


def words_later(words: Any, steps: int) -> Any:
    """Return key words ``steps`` draws later, in a trace that may have no 64-bit types."""
    import jax.numpy as jnp

    if steps == 0:
        return words
    high, low = divmod(steps & _MASK, 1 << 32)
    later = words[3] + np.uint32(low)
    carry = (later < words[3]).astype(np.uint32)
    return jnp.stack([words[0], words[1], words[2] + np.uint32(high) + carry, later])


def of_piece(words: Any, number: int) -> np.ndarray:
    """Return the key words of one piece of a draw: an odd number, as a whole draw has an even."""
    return np.append(words, np.uint32(number))


def key(words: Any) -> Any:
    """Return the JAX key of a draw, or of a piece of it; called inside a trace."""
    import jax

    base = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
    is_piece = len(words) % 2
    for more in words[2:-1] if is_piece else words[2:]:
        base = jax.random.fold_in(base, more)
    if not is_piece:
        return base
    from torch_jax.memory.pieces import key_of

    return key_of(base, words[-1])


class drawn:  # one of contextlib takes twice as long
    """Give the random operator of a block the key words of a draw, or a function that makes it."""

    def __init__(self, words: Any):
        self._words = words

    def __enter__(self) -> None:
        self._before, ACTIVE.words = ACTIVE.words, self._words

    def __exit__(self, *_error: object) -> None:
        ACTIVE.words = self._before


def _folded(seed: int, data: int) -> int:
    """Return the seed that ``jax.random.fold_in`` makes of a seed and an int."""
    import jax
    import jax.numpy as jnp

    from torch_jax.core.x64 import x64

    with x64(), jax.ensure_compile_time_eval():
        base = jax.random.wrap_key_data(jnp.asarray(words(seed, 0)[:2]), impl="threefry2x32")
        high, low = jax.random.key_data(jax.random.fold_in(base, data)).tolist()
    return high << 32 | low


def names_jax(device: Any = None) -> bool:
    """Return whether an argument names this device, unseen by any ``TorchFunctionMode``."""
    kind = device if isinstance(device, str) else getattr(device, "type", "")
    return isinstance(kind, str) and kind.partition(":")[0] == pytorch.DEVICE_TYPE
