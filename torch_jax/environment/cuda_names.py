"""Each public name of ``torch.cuda`` does one of three things where ``"cuda"`` means jax.

It is answered (:data:`.cuda_answers.ANSWERS`), kept since it is plain Python (:data:`KEPT`), or
refused with the name of a replacement. All names of the installed PyTorch are covered, so that a
new one is refused, too, and never asks CUDA for a missing part.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from torch_jax.environment import callables, cuda_answers
from torch_jax.environment.callables import wrap
from torch_jax.environment.regions import mapped, redirects_cuda

# Plain Python, which calls names that are answered.
KEPT = frozenset(
    "CudaError DeferredCudaCallError amp.GradScaler amp.amp_definitely_not_available amp.autocast "
    "amp.custom_bwd amp.custom_fwd cudaStatus nvtx.range profiler.profile".split()
)
_PRIVATE = (
    "_lazy_init _sleep jiterator._create_jit_fn "
    "jiterator._create_multi_output_jit_fn memory._dump_snapshot memory._record_memory_history "
    "memory._snapshot memory._set_allocator_settings"
)


class Name(NamedTuple):
    """A public name: its path below ``torch.cuda``, and its value."""

    name: str
    value: Any

    @property
    def fate(self) -> str:
        """Return ``"answered"``, ``"kept"`` or ``"refused"``."""
        if self.name in KEPT:
            return "kept"
        return "answered" if self.name in cuda_answers.ANSWERS else "refused"


def names() -> list[Name]:
    """Return the functions and classes of ``torch.cuda`` and its public modules.

    >>> {one.name: one.fate for one in names()}["synchronize"]
    'answered'
    """
    found: dict[int, Name] = {}
    for module in modules():
        for attribute, value in list(vars(module).items()):
            if _is_its_own(attribute, value):
                name = f"{module.__name__}.{attribute}".removeprefix("torch.cuda.")
                found.setdefault(id(value), Name(name, value))  # the shortest comes first
    for name in _PRIVATE.split():
        value = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), _ROOT)
        if value is not None:
            found.setdefault(id(value), Name(name, value))
    return list(found.values())


_ROOT: Any = torch.cuda


def modules() -> Iterator[types.ModuleType]:
    """Yield ``torch.cuda`` and its public modules."""
    yield torch.cuda
    for module in pkgutil.iter_modules(torch.cuda.__path__):
        if not module.name.startswith("_"):
            yield importlib.import_module(f"torch.cuda.{module.name}")


def _is_its_own(attribute: str, value: Any) -> bool:
    if attribute.startswith("_") or not callable(value) or attribute == "classproperty":
        return False
    if type(value).__name__ == "tensortype":  # of :mod:`.cuda_tensors`
        return False
    return str(getattr(value, "__module__", "")).startswith(("torch.cuda", "torch._C"))


def install() -> None:
    """Let all of them ask, at each call, whether ``"cuda"`` means jax."""
    functions: dict[Any, Callable[[Any], Any]] = {}
    for one in names():
        if one.fate == "kept":
            continue
        if isinstance(one.value, type):
            wrap(one.value, "__new__", functools.partial(_instance, one.value, answer(one.name)))
        else:
            functions[one.value] = functools.partial(query, answer(one.name))
    callables.replace_all(functions)
    for name, found in cuda_answers.ANSWERS.items():
        module, _, attribute = name.rpartition(".")
        if module.startswith("backends."):
            wrap(sys.modules[f"torch.{module}"], attribute, functools.partial(query, found))
    _install_attributes()


def _install_attributes() -> None:
    """Replace values that are no functions: a version, generators, the cache of plans."""
    torch.cuda.default_generators = cuda_answers.DefaultGenerators(  # type: ignore[assignment]
        torch.cuda.default_generators, redirects_cuda
    )
    torch.cuda.has_half = True
    torch.version.__class__ = _Version
    # attributes of the manager are those of a device's cache, which it finds by this method
    cache: Any = type(torch.backends.cuda.cufft_plan_cache)
    wrap(cache, "__getitem__", functools.partial(query, lambda _self, _device: _Plans()))


class _Plans:
    """``torch.backends.cuda.cufft_plan_cache[0]``: XLA plans by itself, so nothing can be set."""

    clear = staticmethod(cuda_answers.nothing)

    def __getattr__(self, name: str) -> Any:
        if name in ("size", "max_size"):
            raise cuda_answers.refusal(f"backends.cuda.cufft_plan_cache.{name}")
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise cuda_answers.refusal(f"backends.cuda.cufft_plan_cache.{name}")


class _Version(types.ModuleType):
    """``torch.version``, whose ``cuda`` passes checks where ``"cuda"`` means jax."""

    @property
    def cuda(self) -> str | None:
        """Return the version of CUDA: of this build, or one that passes checks."""
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("torch.") or not redirects_cuda():  # PyTorch asks for CUDA's kernels
            return self.__dict__["cuda"]
        return cuda_answers.CUDA_VERSION


def answer(name: str) -> Callable[..., Any]:
    """Return the answer for a name, or a function that raises."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise cuda_answers.refusal(name)

    return cuda_answers.ANSWERS.get(name, refuse)


def query(answer: Any, original: Any) -> Callable[..., Any]:
    """Return ``original``, or where ``"cuda"`` means jax, ``answer`` with devices that are jax."""

    def query(*args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            return answer(*map(mapped, args), **{name: mapped(v) for name, v in kwargs.items()})
        return original(*args, **kwargs)

    return query


def _instance(kind: Any, answer: Any, original: Any) -> Callable[..., Any]:
    """Return ``__new__`` for a class of ``torch.cuda``, whose instances ``answer`` makes."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        if redirects_cuda() and cls is kind:
            return query(answer, None)(*args, **kwargs)
        return original(cls) if original is object.__new__ else original(cls, *args, **kwargs)

    return __new__
