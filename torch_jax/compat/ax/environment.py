"""Environments of torchax: what regions of code draw from, and functions in place of operators.

Tensors of device ``jax`` need none: they compute on any thread, inside of a block and outside.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import torch

from torch_jax import config
from torch_jax._private import jax_core, pytorch
from torch_jax.compat.ax import draws
from torch_jax.compat.ax.configuration import Configuration
from torch_jax.core import trees, waking
from torch_jax.environment import environment as own
from torch_jax.graphs.interpreter import keep_x64
from torch_jax.interop import crossing
from torch_jax.memory import border, transfer
from torch_jax.memory.storage import is_jax

_UNSET: Any = object()


class _Properties(threading.local):
    """What :meth:`Environment.override_property` has set on this thread."""

    mesh: Any = None
    autocast_dtype: Any = None

    @property
    def prng(self) -> Any:
        """The ``jax.random.key`` that draws stand at; reading it draws nothing.

        Raises:
          RuntimeError: JAX traces a function that was given no key.
        """
        return _known(draws.key_now())

    @prng.setter
    def prng(self, key: Any) -> None:
        draws.put_key(key)


class Environment(contextlib.ContextDecorator):
    """A block in which torchax's programs run; there may be many, which are all alike.

    Of the configuration, ``treat_cuda_as_jax_device`` says whether ``"cuda"`` means ``"jax"``
    while a block is open, or after ``torchax.enable_globally()``.
    """

    def __init__(self, configuration: Configuration | None = None):
        waking.wake()
        keep_x64()
        self.config = configuration or Configuration()
        self.enabled = False
        self._regions, self._properties = draws.Regions(), _Properties()

    # --- blocks -----------------------------------------------------------------------------------

    def enable_torch_modes(self) -> None:
        """Enable it everywhere."""
        self._ask()
        own.default_env().enable_globally()
        self.enabled = True

    def disable_torch_modes(self, *exception: object) -> None:
        """Undo :meth:`enable_torch_modes`; for tensors on the device that changes nothing."""
        own.default_env().disable_globally()
        self.enabled = False

    def __enter__(self) -> Environment:
        self._ask()
        own.default_env().__enter__()
        self._regions.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._regions.leave(*exception)
        finally:
            own.default_env().__exit__(*exception)

    def _ask(self) -> None:
        """Have the environment of this package do what torchax's does: factories stay as they are.

        A setting is changed only where it differs, since that drops what was compiled.
        """
        cuda = self.config.treat_cuda_as_jax_device
        for name, value in (("redirect_default", False), ("redirect_cuda", cuda)):
            if config.get(name) != value:
                config.set(name, value)

    # --- values -----------------------------------------------------------------------------------

    def to_xla(self, values: Any) -> Any:
        """Tensors, in trees too, and modules on the device."""
        return trees.map(_moved, values)

    def t2j_iso(self, tensors: Any) -> Any:
        """Tensors of the device as arrays, in trees too, uncopied."""
        return trees.map(array_of, tensors)

    def j2t_iso(self, arrays: Any) -> Any:
        """Arrays as tensors of the device, in trees too, uncopied."""
        return trees.map(tensor_of, arrays)

    def v2t_iso(self, views: Any) -> Any:
        """The same: a view is a tensor."""
        return views

    def t2j_copy(self, tensors: Any) -> Any:
        """Tensors on any device as arrays, in trees too."""
        return trees.map(_copied, tensors)

    def j2t_copy(self, arrays: Any) -> Any:
        """Arrays as tensors on the CPU, in trees too."""
        return trees.map(
            lambda x: border.tensor_of(x).cpu() if isinstance(x, jax.Array) else x, arrays
        )

    # --- randomness and other properties ----------------------------------------------------------

    @property
    def prng_key(self) -> Any:
        """The ``jax.random.key`` that draws stand at, the same until something is drawn."""
        return self._properties.prng

    @prng_key.setter
    def prng_key(self, key: Any) -> None:
        self._properties.prng = key

    def get_and_rotate_prng_key(self, generator: torch.Generator | None = None) -> Any:
        """A ``jax.random.key``, another at each call; inside of a program, one of its own.

        Raises:
          RuntimeError: JAX traces a function that was given no key.
        """
        if generator is not None:
            return jax.random.key(generator.initial_seed() % (1 << 63))
        return _known(draws.key_of(draws.next_words()))

    def manual_seed(self, key: Any) -> None:
        """Seed the device's random numbers, by an integer or a tensor of one."""
        torch.jax.manual_seed(int(key))  # type: ignore[attr-defined]

    @property
    def param(self) -> Any:
        """The properties of this thread, ``mesh``, ``prng`` and ``autocast_dtype``."""
        return self._properties

    @contextlib.contextmanager
    def override_property(
        self, *, mesh: Any = _UNSET, prng: Any = _UNSET, autocast_dtype: Any = _UNSET
    ) -> Iterator[None]:
        """A block with another mesh, a key that random operators draw from, or autocast."""
        given = {"mesh": mesh, "autocast_dtype": autocast_dtype}
        given = {name: value for name, value in given.items() if value is not _UNSET}
        before = {name: getattr(self._properties, name) for name in given}
        with contextlib.ExitStack() as stack:
            if prng is not _UNSET and prng is not None:
                stack.enter_context(draws.drawing_from(prng))
            if autocast_dtype is not _UNSET:
                on = autocast_dtype is not None
                stack.enter_context(torch.autocast(pytorch.DEVICE_TYPE, autocast_dtype, enabled=on))
            vars(self._properties).update(given)
            try:
                yield
            finally:
                vars(self._properties).update(before)

    # --- operators --------------------------------------------------------------------------------

    def override_op_definition(self, op: Any, function: Any, is_view_op: bool = False) -> None:
        """Have a function of tensors serve an operator, or a function of PyTorch's, for good."""
        own.default_env().override(op, takes="torch")(function)


@functools.cache
def default_env() -> Environment:
    """The environment that torchax's functions use."""
    return Environment()


# --- single values --------------------------------------------------------------------------------


def array_of(value: Any) -> Any:
    """A tensor of the device as an array, whether it requires grad or not; what is none stays.

    In programs without JAX's 64-bit types, int64 becomes int32, and float64 float32.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if not is_jax(value):
        border.array_of(value)  # which says what to do
    return crossing.out(value, is_narrow())


def tensor_of(value: Any) -> Any:
    """An array as a tensor; what is none stays, keys of JAX too."""
    if not isinstance(value, jax.Array) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    return border.tensor_of(value)


def _known(key: Any) -> Any:
    """A key.

    Raises:
      RuntimeError: there is none.
    """
    if key is None:
        raise RuntimeError(
            "JAX traces this function, and a key from outside would be the same at each call: "
            "use torchax.interop.jax_jit, which brings one along, or pass a key as an argument"
        )
    return key


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return value.to(pytorch.DEVICE_TYPE)
    return value


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return crossing.out(value if is_jax(value) else transfer.to_device(value), is_narrow())


def is_narrow() -> bool:
    """Whether the user's own programs of JAX have no 64-bit types."""
    return not jax_core.x64_setting() if draws.is_in_program() else crossing.is_narrow()
