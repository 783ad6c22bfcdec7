"""The tracer of this thread, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import torch_jax
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import NotTraceableError
from torch_jax.graphs.graph_run import GraphRun, running


def test_who_traces_while():
    seen = []

    def function(x):
        seen.append((ACTIVE.tracer, ACTIVE.recorder is not None, ACTIVE.observer is not None))
        return x + 1

    x = torch.ones(2, device="jax")
    function(x)
    torch_jax.jit(function)(x)
    torch_jax.jit(function, pure=True)(x)
    run = GraphRun(None)
    with running(run):
        seen.append(ACTIVE.tracer)
    assert seen == [(None, False, False), (None, True, False), (None, True, True), run]
    assert ACTIVE.tracer is None


def test_a_graph_run_refuses_what_only_a_whole_function_has():
    with pytest.raises(NotTraceableError, match="'optimizers'"):
        _ = GraphRun(None).optimizers
