"""The promise of ``jit(pure=True)``, audited: a recorded call compared with an earlier one.

Now and then a call runs its Python all the same. What it did is held against what the program was
made of: the same operators over the same tensors, with the same numbers where the program has
constants, and the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from torch_jax.capture.cpu_tensors import OfHost
from torch_jax.capture.observer import Graph
from torch_jax.capture.replay import Replay
from torch_jax.capture.storages import Fixed, OfStorage
from torch_jax.core.numbers import GivenNumber
from torch_jax.recorded.path import Constant, Given, Moving, Number, Step, numbers_of

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of functions, in the texts of jaxprs


class VerificationError(AssertionError):
    """A function under ``jit(pure=True, audit="error")`` has done another thing than before."""


def difference(old: Replay, new: Replay) -> str | None:
    """Return how a call differs from one before, in words; None where it does not."""
    names = old.memories.names(), new.memories.names()
    before, after = (
        {(named[at], node) for at, node in replay.left.written}
        for replay, named in zip((old, new), names, strict=True)
    )
    return (
        _other_operator(old.graph, new.graph)
        or _other_array(old.graph, new.graph, names)
        or ("it wrote into other tensors than before" if before != after else None)
        or old.left.result.difference(new.left.result)
    )


def _other_operator(old: Graph, new: Graph) -> str | None:
    before, after = list(_operators(old)), list(_operators(new))
    for (was, operands), (now, others) in zip(before, after, strict=False):
        place = f"{now.name} at {now.line}"
        if not _do_the_same(was, now):
            if (was.name, was.line) == (now.name, now.line):
                return f"{place} computes something else than before"
            return f"it called {place}, where it had called {was.name} at {was.line}"
        for one, other in zip(operands, others, strict=True):
            if type(one) is not type(other) or one != other:  # tuples of two types may be equal
                if isinstance(one, str) and isinstance(other, str):
                    return f"{place} was given {other}, where it had been given {one}"
                return f"{place} was given another tensor than before"
    if len(before) != len(after):
        return f"it called {len(after)} operators, where it had called {len(before)}"
    return None


def _operators(graph: Graph) -> Iterator[tuple[Step, list[Any]]]:
    """Yield each operator with its operands: values as texts, or which results and arrays."""
    numbers = iter(graph.numbers)
    for step in graph.state.steps():
        yield step, [_shown(source, numbers_of(source, numbers)) for source in step.sources]


def _do_the_same(was: Step, now: Step) -> bool:
    """Return whether two steps compute the same; a body that was forgotten is made again."""
    if was.body is now.body:
        return True
    if was.name != now.name:
        return False
    texts = [_ADDRESS.sub("", str(step.body.jaxpr)) for step in (was, now)]
    constants = [[np.asarray(c).tobytes() for c in step.body.jaxpr.consts] for step in (was, now)]
    return texts[0] == texts[1] and constants[0] == constants[1]


def _shown(source: Any, numbers: tuple[Any, ...]) -> Any:
    if isinstance(source, Number):
        (number,) = numbers
        return f"number {number.slot}" if isinstance(number, GivenNumber) else repr(number)
    if isinstance(source, Moving):
        return str(list(numbers))
    if isinstance(source, Constant):
        return str(np.asarray(source.value).ravel().tolist())
    return source  # words are others at each call


def _other_array(old: Graph, new: Graph, names: tuple[list, list]) -> str | None:
    before, after = names  # of memories, which were met in any order
    for at, (was, now) in enumerate(zip(old.sources, new.sources, strict=False)):
        if isinstance(was, OfStorage) and isinstance(now, OfStorage):
            was, now = before[was.at], after[now.at]
        of_values = isinstance(was, Fixed | OfHost)
        if type(was) is not type(now) or not (was.is_same(now) if of_values else was == now):
            read = ((step, one) for step in new.state.steps() for one in step.sources)
            readers = (step for step, one in read if isinstance(one, Given) and one.at == at)
            reader = next((f"{step.name} at {step.line}" for step in readers), "no operator")
            return f"{reader} read another tensor than before, or other values"
    return "it read other tensors than before" if set(before) != set(after) else None
