"""Environments of torchax: the random numbers of regions of code, and replacements of operators.

Tensors of device ``jax`` need none: they compute on any thread, inside of a block and outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import torch

from torch_jax import config
from torch_jax._private import jax_core, pytorch
from torch_jax.compat.ax import draws
from torch_jax.core import trees
from torch_jax.core.errors import OperatorNotFound as OperatorNotFound
from torch_jax.environment import environment as own
from torch_jax.graphs.interpreter import prepare
from torch_jax.interop import crossing
from torch_jax.memory import border
from torch_jax.memory.storage import is_jax, is_jax_tensor

_UNSET: Any = object()


@dataclasses.dataclass
class Configuration:
    """Settings by torchax's names, of which only ``treat_cuda_as_jax_device`` has an effect.

    The others ask for behaviour that is always on here: dtypes are PyTorch's, views are views,
    CPU scalars mix with tensors of the device. ``torch_jax.trace_ops`` shows operators as they run.
    """

    debug_print_each_op: bool = False
    debug_accuracy_for_each_op: bool = False
    debug_mixed_tensor: bool = False
    debug_print_each_op_operands: bool = False
    use_int32_for_index: bool = False
    allow_mixed_math_with_scalar_tensor: bool = True
    force_materialize_views: bool = False
    use_dlpack_for_data_conversion: bool = False
    treat_cuda_as_jax_device: bool = True
    internal_respect_torch_return_dtypes: bool = False
    use_tpu_flash_attention: bool = False
    shmap_flash_attention: bool = False


class _Properties(threading.local):
    """Properties that :meth:`Environment.override_property` has set on this thread."""

    mesh: Any = None
    autocast_dtype: Any = None

    def __init__(self) -> None:
        self.blocks: list[contextlib.AbstractContextManager[None]] = []  # that are open

    @property
    def prng(self) -> Any:
        """Return the ``jax.random.key`` of the next draw; reading it draws nothing.

        Raises:
          RuntimeError: JAX traces a function without a key.
        """
        return _known(draws.key_now())

    @prng.setter
    def prng(self, key: Any) -> None:
        draws.put_key(key)


class Environment(contextlib.ContextDecorator):
    """A block in which torchax's programs run; all environments are alike.

    The setting ``treat_cuda_as_jax_device`` decides whether ``"cuda"`` means ``"jax"``
    while a block is open, or after ``torchax.enable_globally()``.

    Attributes:
      param: the properties of this thread, ``mesh``, ``prng`` and ``autocast_dtype``.
      prng_key: the ``jax.random.key`` of the next draw; it stays until one is drawn.
    """

    def __init__(self, configuration: Configuration | None = None):
        prepare()
        self.config = configuration or Configuration()
        self.enabled = False
        self.param = _Properties()

    # --- blocks -----------------------------------------------------------------------------------

    def enable_torch_modes(self) -> None:
        """Enable the environment everywhere."""
        self._ask()
        own.default_env().enable_globally()
        self.enabled = True

    def disable_torch_modes(self, *exception: object) -> None:
        """Undo :meth:`enable_torch_modes`; tensors on the device do not change."""
        own.default_env().disable_globally()
        self.enabled = False

    def __enter__(self) -> Environment:
        self._ask()
        own.default_env().__enter__()
        block = draws.program() if draws.is_raw() else contextlib.nullcontext()
        block.__enter__()
        self.param.blocks.append(block)
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self.param.blocks.pop().__exit__(*exception or (None, None, None))
        finally:
            own.default_env().__exit__(*exception)

    def _ask(self) -> None:
        """Set the own environment as torchax sets its own: factories keep their device.

        A setting is changed only if it differs, since a change drops compiled programs.
        """
        cuda = self.config.treat_cuda_as_jax_device
        for name, value in (("redirect_default", False), ("redirect_cuda", cuda)):
            if config.get(name) != value:
                config.set(name, value)

    # --- values -----------------------------------------------------------------------------------

    def to_xla(self, values: Any) -> Any:
        """Return tensors, in trees too, and modules on the device."""
        kinds = torch.Tensor | torch.nn.Module
        return trees.map(lambda x: x.to(pytorch.DEVICE_TYPE) if isinstance(x, kinds) else x, values)

    def t2j_iso(self, tensors: Any) -> Any:
        """Return tensors of the device as arrays, in trees too, uncopied."""
        return trees.map(array_of, tensors)

    def j2t_iso(self, arrays: Any) -> Any:
        """Return arrays as tensors of the device, in trees too, uncopied."""
        return trees.map(tensor_of, arrays)

    def v2t_iso(self, views: Any) -> Any:
        """Return the argument: a view is a tensor."""
        return views

    def t2j_copy(self, tensors: Any) -> Any:
        """Return tensors on any device as arrays, in trees too."""
        return self.t2j_iso(self.to_xla(tensors))

    def j2t_copy(self, arrays: Any) -> Any:
        """Return arrays as tensors on the CPU, in trees too."""
        return trees.map(
            lambda x: border.tensor_of(x).cpu() if isinstance(x, jax.Array) else x, arrays
        )

    # --- randomness and other properties ----------------------------------------------------------

    prng_key = property(
        lambda self: self.param.prng, lambda self, key: setattr(self.param, "prng", key)
    )

    def get_and_rotate_prng_key(self, generator: torch.Generator | None = None) -> Any:
        """Return a ``jax.random.key``, another at each call; inside of a program, one of its own.

        Raises:
          RuntimeError: JAX traces a function without a key.
        """
        if generator is not None:
            return jax.random.key(generator.initial_seed() % (1 << 63))
        return _known(draws.key_of(draws.next_words()))

    def manual_seed(self, key: Any) -> None:
        """Seed the device's random numbers, by an integer or a tensor of one."""
        torch.jax.manual_seed(int(key))  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def override_property(
        self, *, mesh: Any = _UNSET, prng: Any = None, autocast_dtype: Any = _UNSET
    ) -> Iterator[None]:
        """Set in a block another mesh, a key that random operators draw from, or autocast."""
        named = (("mesh", mesh), ("autocast_dtype", autocast_dtype))
        given = {name: value for name, value in named if value is not _UNSET}
        before = {name: getattr(self.param, name) for name in given}
        with contextlib.ExitStack() as stack:
            if prng is not None:
                stack.enter_context(draws.drawing_from(prng))
            if autocast_dtype is not _UNSET:
                on = autocast_dtype is not None
                stack.enter_context(torch.autocast(pytorch.DEVICE_TYPE, autocast_dtype, enabled=on))
            vars(self.param).update(given)
            try:
                yield
            finally:
                vars(self.param).update(before)

    # --- operators --------------------------------------------------------------------------------

    def override_op_definition(self, op: Any, function: Any, is_view_op: bool = False) -> None:
        """Replace an operator or function of PyTorch's, permanently, by a function of tensors."""
        own.default_env().override(op, takes="torch")(function)


@functools.cache
def default_env() -> Environment:
    """Return the environment that torchax's functions use."""
    return Environment()


def autocast(
    device: Any = None, dtype: torch.dtype = torch.bfloat16, env: Any = None
) -> contextlib.AbstractContextManager[Any]:
    """Return a block of ``torch.autocast`` for the device."""
    return torch.autocast(pytorch.DEVICE_TYPE, dtype=dtype)


# --- single values --------------------------------------------------------------------------------


def array_of(value: Any) -> Any:
    """Return a tensor of the device as an array, whether it requires grad or not; others stay.

    In programs without JAX's 64-bit types, int64 becomes int32, and float64 float32.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if not is_jax(value):
        border.array_of(value)  # which raises, and names the remedy
    return crossing.out(value, is_narrow())


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor; other values stay, keys of JAX too."""
    if not isinstance(value, jax.Array) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    return border.tensor_of(value)


class _OfTheDevice(type):
    """``isinstance`` holds for tensors of the device, which have no class of their own."""

    def __instancecheck__(cls, instance: object) -> bool:
        return is_jax_tensor(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, torch.Tensor)


class Tensor(metaclass=_OfTheDevice):
    """A plain ``torch.Tensor`` on device ``jax``: ``Tensor(array, env)`` makes one of an array."""

    def __new__(cls, elem: Any, env: Any = None, requires_grad: bool = False) -> Any:
        """Return a tensor with the memory of an array."""
        return crossing.tensor(elem) if requires_grad else tensor_of(elem)


def _known(key: Any) -> Any:
    if key is None:
        raise RuntimeError(
            "JAX traces this function, and a key from outside would be the same at each call: "
            "use torchax.interop.jax_jit, which brings one along, or pass a key as an argument"
        )
    return key


def is_narrow() -> bool:
    """Return whether the user's own programs of JAX have no 64-bit types."""
    return not jax_core.x64_setting() if draws.is_in_program() else crossing.is_narrow()
