"""One table of all functions replaced in PyTorch and in other libraries.

A row is a function that is given the original and returns its replacement; its docstring says why
the original does not do. :func:`apply` puts replacements in place, :func:`without` takes one away
for a block, which is how tests show that it is still needed.

Programs copy functions by name, ``from torch import manual_seed``, often before the device is used.
So functions of modules that are replaced later are behind *doors* from ``import torch`` on
(:data:`BY_NAME`): each calls the original, and its replacement once that is there.

>>> from torch_jax.core.patching import PATCHES
>>> PATCHES["torch.nn.Module._apply"].when
'import torch'
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from torch_jax._private import pytorch

AT_IMPORT = "import torch"
AT_FIRST_USE = "the first use of the device"
AT_FIRST_JIT = "the first use of torch_jax.jit"
_MISSING = object()

# Public functions that rows replace after `import torch`, at all places from which programs take
# them. A test compares this list with the table.
BY_NAME = """
    signal.getsignal signal.signal
    torch.autograd.backward torch.autograd.grad
    torch.clear_autocast_cache
    torch.from_dlpack torch.utils.dlpack.from_dlpack
    torch.get_rng_state torch.random.get_rng_state
    torch.manual_seed torch.random.manual_seed
    torch.seed torch.random.seed
    torch.set_rng_state torch.random.set_rng_state
    torch.to_dlpack torch.utils.dlpack.to_dlpack
""".split()


class Patch(NamedTuple):
    """A row: the object replaced, its replacement, the reason, and the moment.

    ``make`` takes the original and returns the replacement. A registration's takes the object of
    ``target`` and returns a function that takes it back, None where only a new process does.
    """

    target: str  # the dotted name of the object replaced or, of a registration, added to
    make: Callable[[Any], Any]
    why: str  # the need: PyTorch, or the library, does not do this by itself
    when: str  # ``AT_IMPORT``, ``AT_FIRST_USE``, ``AT_FIRST_JIT``, or the module after whose import
    since: str  # the first release that needs it, of those that torch_jax supports
    is_registration: bool


PATCHES: dict[str, Patch] = {}
_passed: set[str] = set()  # moments
_undo: dict[str, Callable[[], None] | None] = {}  # of the patches that are in place
_behind: dict[Any, SimpleNamespace] = {}  # for each door, the function that it calls


def patch(
    target: str, when: str, since: str = "torch 2.11", is_registration: bool = False, why: str = ""
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Enter the decorated function in the table, as the ``make`` of a :class:`Patch`.

    The row is put in place at once where its moment has passed. The function's docstring is the
    row's ``why``, unless that is given.
    """

    def enter(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        text = why or inspect.cleandoc(make.__doc__ or "").partition("\n\n")[0]
        PATCHES[target] = Patch(target, make, text, when, since, is_registration)
        if when in _passed:
            apply(when)
        return make

    return enter


def around(
    target: str, when: str, since: str = "torch 2.11"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a row whose replacement calls the decorated function, with the original before all."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def replacement(*args: Any, **kwargs: Any) -> Any:
                return function(original, *args, **kwargs)

            return replacement

        make.__doc__ = function.__doc__
        patch(target, when, since)(make)
        return function

    return enter


def apply(when: str) -> None:
    """Put in place the rows of this moment; targets that the release lacks are left out."""
    _passed.add(when)
    for row in list(PATCHES.values()):
        if row.when == when and row.target not in _undo:
            _put(row)


def open_doors() -> None:
    """Put doors before the functions of :data:`BY_NAME`; called once, at ``import torch``."""
    doors: dict[Any, Any] = {}  # a function at two places has one door
    for target in BY_NAME:
        owner, name = _owner(target)
        if (original := getattr(owner, name, None)) is not None:
            doors[original] = doors.get(original) or _door(original)
            setattr(owner, name, doors[original])
    pytorch.script_as_well(doors)


def _door(original: Any) -> Any:
    behind = SimpleNamespace(now=original)

    @functools.wraps(original)
    def door(*args: Any, **kwargs: Any) -> Any:
        return behind.now(*args, **kwargs)

    _behind[door] = behind
    return door


def _put(row: Patch) -> None:
    owner, name = _owner(row.target)
    original = getattr(owner, name, _MISSING)
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
    """Return the owner of the last part of a dotted name, and that part; None if it is missing.

    A module comes before an attribute of its name: ``torch._higher_order_ops.cond`` is both. A door
    holds its function as ``now``.
    """
    *path, name = target.split(".")
    owner: Any = None
    for end, part in enumerate(path, start=1):
        owner = sys.modules.get(".".join(path[:end]), getattr(owner, part, None))
    held = vars(owner).get(name) if isinstance(owner, ModuleType) else None
    behind = _behind.get(held) if isinstance(held, FunctionType) else None  # others may not hash
    return (owner, name) if behind is None else (behind, "now")


def in_place() -> set[str]:
    """Return the targets that are replaced at present."""
    return set(_undo)


@contextlib.contextmanager
def without(target: str) -> Iterator[None]:
    """Put the original of a target in its place for a block; for tests, on one thread.

    Afterwards the target is its replacement again, or a later wrapper of that.
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
