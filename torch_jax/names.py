"""Which names a piece of Python code reads and writes, read off its bytecode."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import jax
import numpy
import torch

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_STORE = {"STORE_ATTR", "DELETE_ATTR"}
_BY_TEXT = {"getattr", "hasattr", "setattr", "attrgetter"}  # attributes named by strings
_ALL = {"__dict__", "vars"}  # every attribute, whatever its name


class Names(NamedTuple):
    """What code mentions, the functions inside it included."""

    globals: frozenset[str]
    attributes: frozenset[str]
    stores: frozenset[str]
    global_stores: frozenset[str]
    free: tuple[str, ...]
    everything: bool  # it looks at all attributes of an object


@functools.cache
def names_of(code: CodeType) -> Names:
    """The names that ``code`` mentions.

    >>> def f(x): return scale * x.weight
    >>> names = names_of(f.__code__)
    >>> sorted(names.globals), sorted(names.attributes)
    (['scale'], ['weight'])
    """
    found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "stores": set()}
    found["global_stores"] = set()
    texts: set[str] = set()
    for instruction in dis.get_instructions(code):
        _sort(instruction, found, texts)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names = names_of(inner)
            for kind, values in found.items():
                values |= getattr(names, kind)
    mentioned = found["globals"] | found["attributes"]
    if mentioned & _BY_TEXT:
        found["attributes"] |= texts
        found["stores"] |= texts if "setattr" in mentioned else set()
    everything = bool(mentioned & _ALL)
    sets = {kind: frozenset(values) for kind, values in found.items()}
    return Names(**sets, free=code.co_freevars, everything=everything)


def _sort(instruction: dis.Instruction, found: dict[str, set[str]], texts: set[str]) -> None:
    name, value = instruction.opname, instruction.argval
    if name in _GLOBAL:
        found["globals"].add(value)
    elif name in _ATTRIBUTE:
        found["attributes"].add(value)
    elif name in _STORE:
        found["stores"].add(value)
    elif name == "STORE_GLOBAL":
        found["global_stores"].add(value)
    elif isinstance(value, str) and name in ("LOAD_CONST", "RETURN_CONST"):
        texts.add(value)


def _folder(module: object) -> str:
    return str(Path(str(getattr(module, "__file__", ""))).parent) + "/"


_TORCH, _STDLIB = _folder(torch), sysconfig.get_paths()["stdlib"] + "/"
_OTHERS = (_folder(jax), _folder(numpy), _folder(sys.modules["torch_jax"]))
# The parts of PyTorch whose objects are a user's: their attributes count as the user's do.
_WATCHED_IN_TORCH = tuple(
    _TORCH + part
    for part in (
        "nn/modules/",
        "nn/utils/",
        "distributions/",
        "amp/",
        "optim/lr_scheduler",
        "optim/swa_utils",
    )
)
_UNWATCHED_IN_TORCH = tuple(_TORCH + part for part in ("nn/modules/module.py", "amp/autocast_mode"))


@functools.cache
def is_watched_file(filename: str) -> bool:
    """Whether the Python of a file may read what changes from call to call: a user's, mostly.

    Not that of PyTorch's inner parts, JAX, NumPy and the standard library.
    """
    if filename.startswith(_TORCH):
        watched = filename.startswith(_WATCHED_IN_TORCH)
        return watched and not filename.startswith(_UNWATCHED_IN_TORCH)
    if filename.startswith(_OTHERS):
        return False
    return not filename.startswith(_STDLIB) or "site-packages" in filename


@functools.cache
def watched_names(code: CodeType) -> Names | None:
    """The names of code that is watched, None for other code."""
    return names_of(code) if is_watched_file(code.co_filename) else None
