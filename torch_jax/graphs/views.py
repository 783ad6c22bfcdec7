"""Results of a graph that are views of its inputs, which are made of the inputs themselves.

AOTAutograd reads their place in memory. The device has copies of CPU tensors, and what a graph
writes is another tensor until it is copied to the input: these have strides of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

# Which results are views of which inputs, and which are the new values of inputs.
Aliases = tuple[dict[int, int], dict[int, int]]


def take_out(
    graph: fx.GraphModule, on_host: Collection[Any], aliases: Aliases
) -> tuple[list[int], Callable]:
    """Take views of inputs out of a graph's results; return which, and a function that makes them.

    It takes the graph's inputs, and the numbers that the graph now gives after its results.
    """
    given: Any = graph.graph.output_node().args[0]
    results = list(given)
    inputs = graph.graph.find_nodes(op="placeholder")
    values = {one: {one} for one in inputs}  # what an input is when the graph has run
    for one in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        values.setdefault(one.args[0], set()).add(one.args[1])
    bases, written = aliases
    for at, of in written.items():
        values[inputs[of]].add(results[at])
    views, made = fx.Graph(), {}
    known: dict[Any, Any] = {node: views.placeholder(node.name) for node in inputs}
    for at, result in enumerate(given):
        base = inputs[bases[at]] if at in bases else None
        start, *path = _path(result, on_host if base is None else values[base]) or [None]
        if start is None:
            continue
        before = {start: known[base or start]}
        for node in path:
            for number in node.all_input_nodes[1:]:
                if number not in known:
                    known[number] = views.placeholder(number.name)
                    results.append(number)
            before[node] = views.node_copy(node, (known | before).__getitem__)
        made[at], results[at] = before[result], None
    views.output(list(made.values()))
    graph.graph.output_node().args = (results,)
    return list(made), fx.GraphModule({}, views)


def _path(node: Any, ends: Collection[Any]) -> list[Any]:
    """Return one of ``ends`` and the views that lead from there to a node, or nothing."""
    if node in ends:
        return [node]
    target = getattr(node, "target", None)
    is_view = target is operator.getitem or getattr(target, "is_view", False)
    before = _path(node.args[0], ends) if is_view else []
    return before and [*before, node]
