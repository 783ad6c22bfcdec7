"""One table of everything that is replaced in PyTorch and in other libraries.

A row is a function that is given the original and returns its replacement; its docstring says why
the original does not do. :func:`apply` puts replacements in place, :func:`without` takes one away
for a block, which is how tests show that it is still needed.

>>> from torch_jax.core.patching import PATCHES
>>> PATCHES["torch.nn.Module._apply"].when
'import torch'
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

AT_IMPORT = "import torch"
AT_FIRST_USE = "the first use of the device"
AT_FIRST_JIT = "the first use of torch_jax.jit"
_MISSING = object()


class Patch(NamedTuple):
    """A row: what is replaced, by what, why, and when.

    Attributes:
      target: the dotted name of what is replaced or, if ``is_registration``, added to.
      make: takes the original and returns the replacement; a registration takes what ``target``
        names and returns a function that takes it back, None where only a new process does.
      why: what PyTorch, or the library, does not do by itself.
      when: ``AT_IMPORT``, ``AT_FIRST_USE``, ``AT_FIRST_JIT``, or the module after whose import.
      since: the first release that needs it, of those that torch_jax supports.
    """

    target: str
    make: Callable[[Any], Any]
    why: str
    when: str
    since: str
    is_registration: bool


PATCHES: dict[str, Patch] = {}
_undo: dict[str, Callable[[], None] | None] = {}  # of the patches that are in place


def patch(
    target: str, when: str, since: str = "torch 2.11", is_registration: bool = False, why: str = ""
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Enter the decorated function in the table, as the ``make`` of a :class:`Patch`.

    Its docstring is the row's ``why``, unless that is given.
    """

    def enter(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        text = why or inspect.cleandoc(make.__doc__ or "").partition("\n\n")[0]
        PATCHES[target] = Patch(target, make, text, when, since, is_registration)
        return make

    return enter


def apply(when: str) -> None:
    """Put in place what belongs to this moment and is not in place yet.

    A target that the installed release lacks has nobody who calls it, and is left out.
    """
    for row in list(PATCHES.values()):
        if row.when == when and row.target not in _undo:
            _put(row)


def _put(row: Patch) -> None:
    owner, name = _owner(row.target)
    original = getattr(owner, name, _MISSING)
    if original is _MISSING and isinstance(owner, type(sys)):
        original = getattr(builtins, name, _MISSING)  # a module that uses max, say
    if owner is None or original is _MISSING:
        return
    if row.is_registration:
        _undo[row.target] = row.make(original)
        return
    own = vars(owner).get(name, _MISSING)
    setattr(owner, name, row.make(original))

    def restore() -> None:
        if own is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    _undo[row.target] = restore


def _owner(target: str) -> tuple[Any, str]:
    """What holds the last part of a dotted name; None where a part is not there.

    A module comes before an attribute of its name: ``torch._higher_order_ops.cond`` is both.
    """
    *path, name = target.split(".")
    owner: Any = None
    for end, part in enumerate(path, start=1):
        owner = sys.modules.get(".".join(path[:end]), getattr(owner, part, None))
    return owner, name


def in_place() -> set[str]:
    """The targets that are replaced at present."""
    return set(_undo)


@contextlib.contextmanager
def without(target: str) -> Iterator[None]:
    """Put the original of a target in its place for a block; for tests, on one thread.

    Afterwards the target is what it was before: the replacement, or what has wrapped it since.
    Raises ``KeyError`` where the target is not replaced, ``ValueError`` where a registration cannot
    be taken back.
    """
    undo, row, (owner, name) = _undo[target], PATCHES[target], _owner(target)
    if undo is None:
        raise ValueError(f"what was registered with {target} cannot be taken back")
    before = None if row.is_registration else vars(owner)[name]
    undo()
    del _undo[target]
    try:
        yield
    finally:
        if row.is_registration:
            _put(row)
        else:
            setattr(owner, name, before)
            _undo[target] = undo
