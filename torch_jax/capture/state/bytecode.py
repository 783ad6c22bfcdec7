"""Which names a piece of Python code reads and writes, read off its bytecode."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import jax
import jaxlib
import ml_dtypes
import numpy
import torch

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_LOADED = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_SUPER_ATTR"}  # with NULL: to be called
_STORE = {"STORE_ATTR", "DELETE_ATTR"}
_CELL = {"LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF"}
_COUNTED = {"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"}
_MENTIONS = _GLOBAL | _ATTRIBUTE | _STORE | _CELL | {"STORE_GLOBAL", "DELETE_GLOBAL"}
_BY_TEXT = {"getattr", "hasattr", "setattr", "delattr"}  # attributes named by strings
HOOK = "__getattr__"
_ALL = {"__dict__", "vars", "attrgetter", "__getattribute__"}  # attributes of whatever name


class Names(NamedTuple):
    """What code mentions, the functions inside it included.

    Attributes:
      cells: variables of closures.
      probes: attributes that are asked for by a text, and may be missing.
      counts: globals, attributes and cells that the code does nothing with but ``+=`` and ``-=``;
        they are not among the others.
      tells: names of classes that it tests values for, by ``isinstance``, ``type`` or ``match``.
      values: globals and attributes that it does more with than to call them at once.
      everything: whether the code may look at attributes of any name.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    cells: frozenset[str]
    probes: frozenset[str]
    stores: frozenset[str]
    global_stores: frozenset[str]
    counts: frozenset[str]
    tells: frozenset[str]
    values: frozenset[str]
    everything: bool

    @property
    def followed(self) -> frozenset[str]:
        """Attributes to note: those it reads, and those it writes."""
        return self.attributes | self.stores | self.counts


@functools.lru_cache(64)
def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions of a piece of code, without those that hold caches; not to be changed."""
    return list(dis.get_instructions(code))


@functools.cache
def names_of(code: CodeType) -> Names:
    """The names that ``code`` mentions.

    >>> def f(x): return scale * x.weight + getattr(x, "bias", 0)
    >>> names = names_of(f.__code__)
    >>> sorted(names.globals - {"getattr"}), sorted(names.attributes), names.everything
    (['scale'], ['bias', 'weight'], False)
    """
    found: dict[str, set[str]] = {kind: set() for kind in Names._fields[:-1]}
    instructions = instructions_of(code)
    found["counts"] = counts = _counts(instructions)
    everything = False
    for at, instruction in enumerate(instructions):
        if instruction.argval not in counts:
            _sort(instruction, found)
        if instruction.opname in _LOADED and "NULL" not in instruction.argrepr:
            found["values"].add(instruction.argval)
        if instruction.opname in _GLOBAL and instruction.argval in _BY_TEXT:
            text = _second_argument(instructions, at)
            if text is None:
                everything |= not _is_asked_for(code, instructions, at)
            else:
                found["probes"].add(text)
                found["stores" if instruction.argval == "setattr" else "attributes"].add(text)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = names_of(inner)
            everything |= names.everything
            for kind, values in found.items():
                values |= getattr(names, kind)
    everything |= bool((found["globals"] | found["attributes"]) & _ALL)
    found["tells"] |= _tested_classes(instructions, found["globals"], found["attributes"])
    sets = {kind: frozenset(values) for kind, values in found.items()}
    return Names(**sets, everything=everything)


def _sort(instruction: dis.Instruction, found: dict[str, set[str]]) -> None:
    name, value = instruction.opname, instruction.argval
    if name in _GLOBAL:
        found["globals"].add(value)
    elif name in _ATTRIBUTE:
        found["attributes"].add(value)
    elif name in _STORE:
        found["stores"].add(value)
    elif name in _CELL:
        found["cells"].add(value)
    elif name == "STORE_GLOBAL":
        found["global_stores"].add(value)


def _tested_classes(
    instructions: list[dis.Instruction], names: set[str], attributes: set[str]
) -> set[str]:
    """Names among which are those of all classes that the code tests values for."""
    if "type" in names or "__class__" in attributes:
        return names | attributes
    if any(instruction.opname == "MATCH_CLASS" for instruction in instructions):
        return names | attributes
    tested = attributes & {"isscalar"}
    for at, instruction in enumerate(instructions):
        if instruction.opname in _GLOBAL and instruction.argval in ("isinstance", "issubclass"):
            tested |= _named_in_call(instructions, at)
    return tested


def _named_in_call(instructions: list[dis.Instruction], at: int) -> set[str]:
    """The names in the call of the function that is loaded at ``at``."""
    inside = (instruction for instruction, *_ in _until_call(instructions, at))
    return {i.argval for i in inside if i.opname in _GLOBAL | _ATTRIBUTE}


def _until_call(
    instructions: list[dis.Instruction], at: int
) -> Iterator[tuple[dis.Instruction, int, int]]:
    """What comes before the function loaded at ``at`` is called.

    Each instruction has with it how deep the stack is above the function, before and after.
    """
    depth = 0
    for instruction in instructions[at + 1 :]:
        before = depth
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if instruction.opname.startswith("CALL") and depth < 0:
            return
        yield instruction, before, depth


def _counts(instructions: list[dis.Instruction]) -> set[str]:
    """Names that are loaded for ``+=`` and ``-=`` only, and stored by these only."""
    mentioned: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for at, instruction in enumerate(instructions):
        if instruction.opname in _MENTIONS:
            mentioned[instruction.argval] += 1
            if instruction.opname in _COUNTED and _is_counted(instructions, at):
                counted[instruction.argval] += 2  # the load and the store
    return {name for name, times in counted.items() if mentioned[name] == times}


def _is_counted(instructions: list[dis.Instruction], at: int) -> bool:
    """Whether what is stored at ``at`` is the result of ``+=`` or ``-=``."""
    before = [i for i in instructions[max(at - 4, 0) : at] if i.opname != "SWAP"]
    return bool(before) and before[-1].argrepr in ("+=", "-=")


@functools.cache
def asked_for(code: CodeType) -> str | None:
    """The variable of a ``__getattr__`` that holds nothing but the name that it is asked for.

    >>> def __getattr__(self, name): return getattr(self.inner, name)
    >>> asked_for(__getattr__.__code__)
    'name'
    """
    if code.co_name != HOOK or code.co_argcount != 2:
        return None
    name = code.co_varnames[1]
    is_set = any(
        i.argval == name and i.opname.startswith(("STORE", "DELETE", "MAKE_CELL"))
        for i in instructions_of(code)
    )
    return None if is_set else name


def _is_asked_for(code: CodeType, instructions: list[dis.Instruction], at: int) -> bool:
    """Whether the function loaded at ``at`` is called with the name that its code is asked for.

    Whoever asks names that.
    """
    name = asked_for(code)
    return name is not None and _second_argument(instructions, at, name) is not None


def _second_argument(
    instructions: list[dis.Instruction], at: int, variable: str | None = None
) -> str | None:
    """The second argument of the call of the function loaded at ``at``, if it is a literal text.

    Or, if there is one, that variable.
    """
    text = None
    for instruction, before, depth in _until_call(instructions, at):
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return None
        if before == 1 and depth == 2:
            wanted = "LOAD_CONST" if variable is None else "LOAD_FAST"
            found = instruction.opname.startswith(wanted) and isinstance(instruction.argval, str)
            text = instruction.argval if found and variable in (None, instruction.argval) else None
        elif depth <= 2 and instruction.opname not in ("PRECALL", "NOP", "CACHE"):
            text = None  # the code did something to the text
    return text


def _folder(module: object) -> str:
    return str(Path(str(getattr(module, "__file__", ""))).parent) + "/"


TORCH, STDLIB = _folder(torch), sysconfig.get_paths()["stdlib"] + "/"
LIBRARIES = (
    _folder(jax),
    _folder(jaxlib),
    _folder(ml_dtypes),
    _folder(numpy),
    _folder(sys.modules["torch_jax"]),
)
# The parts of PyTorch whose objects are a user's: their attributes count as the user's do.
_PARTS = (
    "nn/modules/", "nn/utils/", "nn/parallel/distributed.py", "distributions/", "amp/",
    "optim/lr_sch", "optim/swa_utils",
)  # fmt: skip
_WATCHED_IN_TORCH = tuple(TORCH + part for part in _PARTS)
_UNWATCHED_IN_TORCH = tuple(TORCH + part for part in ("nn/modules/module.py", "amp/autocast_mode"))


@functools.cache
def is_watched_file(filename: str) -> bool:
    """Whether the Python of a file may read what changes from call to call: a user's, mostly.

    Not that of PyTorch's inner parts, JAX, NumPy and the standard library.
    """
    if filename.startswith(TORCH):
        watched = filename.startswith(_WATCHED_IN_TORCH)
        return watched and not filename.startswith(_UNWATCHED_IN_TORCH)
    if filename.startswith((*LIBRARIES, "<frozen ")) or filename.endswith("typing_extensions.py"):
        return False
    return not filename.startswith(STDLIB) or "site-packages" in filename


@functools.cache
def watched_names(code: CodeType) -> Names | None:
    """The names of code that is watched, None for other code."""
    return names_of(code) if is_watched_file(code.co_filename) else None


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a module is neither of a library that is known nor of Python itself."""
    file = vars(module).get("__file__")  # no __getattr__ of the module's is to be asked
    if file is None:
        return str(vars(module).get("__name__")).partition(".")[0] not in sys.stdlib_module_names
    return is_watched_file(file)


def file_of(kind: type) -> str:
    """The file that a class was made in."""
    name = str(kind.__module__)  # which a metaclass may have made something else
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None and name.partition(".")[0] in sys.stdlib_module_names:
        return str(types.__file__)  # written in C: any file of the standard library
    return file or f"<{name}>"
