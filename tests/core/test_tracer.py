"""The protocol of tracers, and that each implementer fulfils all of it itself."""

from __future__ import annotations

import inspect

import pytest
import torch

import torch_jax
from torch_jax.capture.capture import Capture
from torch_jax.core.active import ACTIVE, Tracer, in_whole_function, tracer
from torch_jax.core.tracers import NotTraceableError
from torch_jax.graphs.graph_run import GraphRun, running

METHODS = [name for name, value in vars(Tracer).items() if inspect.isfunction(value)]
METHODS = [name for name in METHODS if not name.startswith("_")]
ATTRIBUTES = list(inspect.get_annotations(Tracer))


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_the_protocol_says_what_each_member_is():
    assert {"draw", "host_words", "see", "unseen", "watching_inside"} <= set(METHODS)
    assert set(ATTRIBUTES) == {"is_whole_function", "checks", "failure", "went_back"}
    assert all(getattr(Tracer, name).__doc__ for name in METHODS)


@pytest.mark.parametrize("kind", [Capture, GraphRun])
@pytest.mark.parametrize("name", METHODS)
def test_an_implementer_has_every_method_by_itself(kind, name):
    assert name in vars(kind), "inherited from the protocol, where it does nothing"
    assert parameters(vars(kind)[name]) == parameters(getattr(Tracer, name))


@pytest.mark.parametrize("make", [Capture, lambda: GraphRun(None)], ids=["capture", "graph run"])
def test_an_implementer_has_every_attribute(make):
    torch.empty(0, device="jax")
    made = make()
    known = vars(type(made)) | vars(made)
    assert set(ATTRIBUTES) <= known.keys()
    assert (made.checks, made.failure, made.went_back) == ([], None, False)


@pytest.mark.traced_at_once
def test_who_traces_while(monkeypatch):
    assert tracer() is None and not in_whole_function()
    seen = []
    operator = Capture.operator

    def note(*args):
        seen.append((type(ACTIVE.tracer), in_whole_function()))
        return operator(*args) if args else None

    monkeypatch.setattr(Capture, "operator", note)
    torch_jax.jit(lambda x: x + 1)(torch.ones(2, device="jax"))
    with running(GraphRun(None)):
        note()
    assert seen == [(Capture, True), (GraphRun, False)]
    assert tracer() is None


def test_a_graph_run_refuses_what_only_a_whole_function_has():
    with pytest.raises(NotTraceableError, match="'optimizers'"):
        _ = GraphRun(None).optimizers
