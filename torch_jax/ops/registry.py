"""The table of operators: ATen overload → pure JAX function.

A function here takes and returns ``jax.Array`` and Python values only, in the order and with the
names of the ATen schema. Its arguments arrive so:

- ``Tensor`` as an array, ``Tensor[]`` as a list of arrays, an absent optional as ``None``;
- ``Scalar`` and ``float`` as a traced number (weakly typed, so that another learning rate does not
  compile again) – name it in ``static`` to get the Python number, see :func:`known`;
- ``int``, ``int[]``, ``bool``, ``str`` as Python values (lists as tuples; see ``integers=``);
  ``ScalarType`` as a NumPy dtype; ``layout``, ``device``, ``pin_memory``, ``memory_format`` are
  not passed at all;
- ``Generator`` as ``key``, a JAX PRNG key (see ``random=``).

Its results are cast to the dtypes of PyTorch's own meta function, and must have its shapes.
In-place, ``out=`` and ``_foreach_`` variants are derived from the functional overload.

>>> from torch_jax.ops import registry
>>> @registry.op("my_namespace.double")
... def double(self):
...     return self * 2
>>> registry.TABLE.pop("my_namespace.double").function is double
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np


class Lowering(NamedTuple):
    """The JAX function of one ATen overload, with its options.

    Attributes:
      function: the pure JAX function.
      static: names of ``Scalar``/``float`` arguments that are compile-time constants, each with
        None, or with a predicate that says for which numbers it is one: others are traced.
      concrete: the output's shape depends on values, so the function runs outside ``jit`` on
        concrete arrays; or a predicate over the arguments (arrays may be tracers) that says when.
      instead: advice for a trace, where one meets a ``concrete`` operator: "use …".
      random: the function takes ``key=``, a fresh JAX PRNG key; or the name of that keyword, where
        the operator has an argument called key.
      drawn_if: of a random one: name of the argument, a probability, that is 0 where nothing is
        drawn; the function then takes no key.
      drawn_like: of a random one: name of the argument, a tensor or a size, whose shape the results
        have, where element n of these depends on n, the key and elements n of the tensors only; or
        the length of a permutation.
      unit: of a random one: ``row`` where a row of the argument makes a row of the results, and
        ``weights`` where it is drawn by; further rows, or zeros in a row, change nothing then.
      host: names of tensor arguments that may live on the CPU (indices).
      writes: names of arguments that the operator writes though its schema does not say so
        (``running_mean`` of ``native_batch_norm``); the function returns their new values last.
      meta: whether PyTorch's meta function gives output shapes and dtypes, and checks the inputs;
        or a predicate over the arguments, as for ``concrete``; or the name of another overload of
        the same arguments, whose meta function knows the strides better.
      check: a function of some of the arguments, by name (``from_`` for one called ``from``, which
        is a keyword of Python), that returns ``(ok, message)`` or
        ``(ok, message, type)``: a traced bool, and text and type (IndexError) of the error
        where it is false (setting ``check_indices``); or None where the dtypes already decide.
      strided: names of tensor arguments by whose strides outputs, and theirs, are chosen; the
        function takes ``<name>_strides`` for each.
      channels_last: names of tensor arguments of which one in channels_last strides makes the new
        outputs so too, where these have four or five dims.
      uniform: writes one value everywhere, so that elements it writes may share memory.
      integers: names of ``int`` and ``int[]`` arguments that arrive as traced integers and vectors
        in eager mode, so that ``x.roll(i)`` compiles once for all ``i`` (as Python values within a
        trace). Neither the results' shapes nor the meta function's checks may depend on them.
      rows: name of a matrix argument whose rows come in as many dims as its memory has them in,
        where TPUs are compiled for; the result then has these dims in place of its first.
      products: the function asks for the precision of products (:mod:`~torch_jax.ops.precision`),
        by which its programs are kept apart.
    """

    name: str
    function: Callable[..., Any]
    static: Mapping[str, Callable[[Any], bool] | None] = MappingProxyType({})
    concrete: bool | Callable[..., bool] = False
    instead: str = ""
    random: bool | str = False
    drawn_if: str = ""
    drawn_like: str = ""
    unit: str = "element"
    host: frozenset[str] = frozenset()
    writes: tuple[str, ...] = ()
    meta: bool | str | Callable[..., bool] = True
    check: Callable[..., Any] | None = None
    strided: tuple[str, ...] = ()
    channels_last: tuple[str, ...] = ()
    uniform: bool = False
    integers: frozenset[str] = frozenset()
    rows: str = ""
    products: bool = False


TABLE: dict[str, Lowering] = {}


class InOrder(NamedTuple):
    """A result whose strides on the CPU are not those of PyTorch's meta function."""

    value: jax.Array | np.ndarray
    order: tuple[int, ...]  # its dimensions from the one with the largest stride to the smallest


class Leading(NamedTuple):
    """A result that is the first elements of a longer array, its memory."""

    value: jax.Array
    size: tuple[int, ...]  # of the result
    stride: tuple[int, ...] | None = None  # of the result, if not row-major


def among(*numbers: float) -> Callable[[Any], bool]:
    """Return the predicate of an argument of which these numbers alone are constants."""
    return frozenset(numbers).__contains__


def known(number: Any) -> Any:
    """Return a number that is a compile-time constant; None where it is traced."""
    return None if isinstance(number, jax.Array) else number


def column_major(x: jax.Array | np.ndarray) -> InOrder:
    """Return a stack of matrices laid out as LAPACK does."""
    last = x.ndim - 1
    return InOrder(x, (*range(last - 1), last, last - 1))


def lowering(
    name: str,
    function: Callable[..., Any],
    *,
    static: Iterable[str] | Mapping[str, Any] = (),
    host: tuple[str, ...] = (),
    integers: tuple[str, ...] = (),
    **options: Any,
) -> Lowering:
    """Return a lowering of ``aten.<name>``, outside the table; for the options see :func:`op`."""
    sets: dict[str, Any] = {"host": frozenset(host), "integers": frozenset(integers)}
    only = static if isinstance(static, Mapping) else dict.fromkeys(static)
    return Lowering(name, function, only, **sets, **options)


def op(*names: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function in the table under ATen names such as ``"add.Tensor"`` or ``"relu"``.

    The options are the attributes of :class:`Lowering`.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in TABLE:
                raise ValueError(f"the table has two lowerings for aten.{name}")
            TABLE[name] = lowering(name, function, **options)
        return function

    return enter
