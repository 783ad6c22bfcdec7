"""The protocol of tracers, and that the implementer fulfils all of it itself."""

from __future__ import annotations

import inspect

import pytest
import torch

import torch_jax
from torch_jax.core.active import ACTIVE, Tracer, tracer
from torch_jax.core.tracers import NotTraceableError
from torch_jax.graphs.graph_run import GraphRun, running

METHODS = [name for name, value in vars(Tracer).items() if inspect.isfunction(value)]
METHODS = [name for name in METHODS if not name.startswith("_")]
ATTRIBUTES = list(inspect.get_annotations(Tracer))


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_the_protocol_says_what_each_member_is():
    assert {"draw", "host_words", "unseen", "watching_inside"} <= set(METHODS)
    assert set(ATTRIBUTES) == {"checks"}
    assert all(getattr(Tracer, name).__doc__ for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_an_implementer_has_every_method_by_itself(name):
    assert name in vars(GraphRun), "inherited from the protocol, where it does nothing"
    assert parameters(vars(GraphRun)[name]) == parameters(getattr(Tracer, name))


def test_an_implementer_has_every_attribute():
    made = GraphRun(None)
    assert set(ATTRIBUTES) <= vars(made).keys()
    assert made.checks == []


def test_who_traces_while():
    seen = []

    def function(x):
        seen.append((tracer(), ACTIVE.recorder is not None, ACTIVE.observer is not None))
        return x + 1

    x = torch.ones(2, device="jax")
    function(x)
    torch_jax.jit(function)(x)
    torch_jax.jit(function, pure=True)(x)
    run = GraphRun(None)
    with running(run):
        seen.append(tracer())
    assert seen == [(None, False, False), (None, True, False), (None, True, True), run]
    assert tracer() is None


def test_a_graph_run_refuses_what_only_a_whole_function_has():
    with pytest.raises(NotTraceableError, match="'optimizers'"):
        _ = GraphRun(None).optimizers
