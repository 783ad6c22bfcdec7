"""Callers for whom the environment is enabled, and those for whom ``"cuda"`` means jax."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.core import dynamo_constants, forks
from torch_jax.core.scopes import Scopes
from torch_jax.environment.callables import asking

JAX = pytorch.DEVICE_TYPE

regions = Scopes("torch_jax environment")
_everywhere = False
_is_xla_ours = False


@dynamo_constants.question
def is_enabled() -> bool:
    """Return whether the environment is enabled for the caller."""
    return _is_asked_for() and not forks.is_lost()


def _is_asked_for() -> bool:
    return _everywhere or bool(regions.values())


def everywhere(is_on: bool) -> None:
    """Enable the environment on all threads, or end that."""
    global _everywhere
    _everywhere = is_on


@dynamo_constants.question
def redirects_cuda() -> bool:
    """Return whether ``"cuda"`` means jax to the caller.

    It also does in a forked process that has lost the device: the error there names a remedy.
    """
    return _is_asked_for() and config.get("redirect_cuda")


def take_xla(is_on: bool) -> None:
    """Let ``"xla"`` mean jax on all threads, whether the environment is enabled or not."""
    global _is_xla_ours
    _is_xla_ours = is_on


@dynamo_constants.question
def redirects_xla() -> bool:
    """Return whether ``"xla"`` means jax: PyTorch has the word, and no kernels for it."""
    return _is_xla_ours


def renamed() -> tuple[str, ...]:
    """Return the types of devices that mean jax to the caller."""
    if redirects_xla():
        return ("cuda", "xla") if redirects_cuda() else ("xla",)
    return ("cuda",) if redirects_cuda() else ()


@dynamo_constants.question
def fills_in() -> bool:
    """Return whether a factory without a device makes tensors on jax."""
    return config.get("redirect_default")


def mapped(value: Any, words: tuple[str, ...] = ("cuda",)) -> Any:
    """Return ``"cuda"``, ``"cuda:0"`` and devices of the types ``words`` as jax, others unchanged.

    Each number means the one device of the process (:mod:`torch_jax.core.ordinals`); a program for
    CUDA may use a number that no device has here.

    >>> mapped("cuda:1"), mapped(torch.device("cuda")), mapped("cpu")
    ('jax', device(type='jax'), 'cpu')
    """
    if isinstance(value, torch.device):
        return torch.device(JAX) if value.type in (*words, JAX) else value
    is_name = isinstance(value, str) and value.partition(":")[0] in words
    return JAX if is_name else value


# A decorator: makes a maker of replacements out of a function that serves calls which mean jax.
where_cuda = functools.partial(asking, redirects_cuda)
