"""``torch.compile(backend="jax")``: each of Dynamo's graphs is one executable.

Dynamo turns Python into graphs, AOTAutograd turns these into functional ones of ATen operators,
forward and backward (https://docs.pytorch.org/docs/stable/torch.compiler_dynamo_overview.html). The
entry point of the group ``torch_dynamo_backends`` names :func:`backend`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torch_jax._private import dynamo
from torch_jax.core import waking
from torch_jax.core.log import LOGGER

_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_OPTIONS = ("donate", "xla")
_numbers = itertools.count()


def backend(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one of Dynamo's graphs; ``torch.compile`` calls this.

    Args:
      graph: a graph of PyTorch's functions.
      inputs: fake tensors and numbers, like those it will be called with.
      mode: as of ``torch.compile``; XLA has no modes, so that all of them mean the same.
      options: ``donate``: by default the memory of tensors that are written is given to the
        result; True also gives tensors saved for the backward pass, which then cannot run twice
        (``retain_graph``), and False gives nothing. ``xla``: a dict of XLA's compiler options.

    Raises:
      ValueError: an unknown mode or option, or an option of another type.

    >>> model = torch.nn.Linear(3, 2).to("jax")
    >>> compiled = torch.compile(model, backend="jax")
    >>> compiled(torch.ones(4, 3, device="jax")).shape
    torch.Size([4, 2])
    """
    options = dict(options or {})
    donate, xla = options.get("donate"), options.get("xla") or {}
    if mode not in _MODES:
        raise ValueError(f"torch.compile(backend='jax') knows modes {_MODES}, not {mode!r}")
    if unknown := options.keys() - set(_OPTIONS):
        raise ValueError(
            f"torch.compile(backend='jax') knows options {_OPTIONS}, not {sorted(unknown)}"
        )
    if donate not in (None, True, False) or not isinstance(xla, Mapping):
        raise ValueError(
            f"torch.compile(backend='jax') takes donate= True or False, xla= a dict: {options}"
        )
    waking.wake()
    dynamo.guard_graph("torch_jax.environment.overrides", "state")
    return _compile(graph, inputs, donate, dict(xla))


def _compile(graph: Any, inputs: Any, donate: bool | None, xla: dict[str, Any]) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    number = next(_numbers)

    def compiler(what: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, _examples: Any) -> Any:
            from torch_jax.graphs.executable import Executable

            dead = () if what == "inference" else _dead(bool(donate))
            saved, name = dead if what == "backward" else (), f"graph {number} ({what})"
            aliases = ({}, {}) if what == "backward" else dynamo.inputs_of_results(graph)
            return _boxed(Executable(graph, name, saved, donate is not False, xla, aliases))

        return compile_graph

    make = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with config.patch(donated_buffer=donate is True):
        return make(graph, inputs)


def _boxed(executable: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """Wrap a function that takes a list and empties it, which an attribute shows AOTAutograd."""

    def run(args: list[Any]) -> list[Any]:
        return executable(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return dynamo.unseen(run)


def _dead(donate: bool) -> Sequence[int]:
    """Return the inputs of a backward graph that have no later use, by AOTAutograd.

    Without ``donate`` there are none: AOTAutograd takes None for some, and lets none run twice.
    """
    metadata = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    if metadata is not None and not donate:
        metadata.bw_donated_idxs = []
    return getattr(metadata, "bw_donated_idxs", None) or ()


def in_place_of_inductor(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph on device jax for which no backend was named."""
    LOGGER.info("torch.compile was given no backend for device 'jax': it uses backend=\"jax\"")
    return backend(graph, inputs)
