"""Recurrent networks, their cells, and packed sequences."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.calls.call import Call, T, call, chance, size, some, tensor, within

DTYPES = ("float32", "float32", "float64")


def _options(r: Random, kind: str) -> dict[str, Any]:
    options = {"input_size": 2, "hidden_size": 3}
    options |= some(r, num_layers=r.choice((1, 2)), bias=False, batch_first=True)
    options |= some(r, bidirectional=True)
    if kind == "LSTM" and chance(r, 0.3):
        options["proj_size"] = 2
    if kind == "RNN" and chance(r, 0.5):
        options["nonlinearity"] = "relu"
    return options


def _state(
    r: Random, kind: str, options: dict[str, Any], batch: tuple[int, ...], dtype: str
) -> Any:
    """A first state of the very sizes, or none: packed, the CPU reads behind a shorter one."""
    if chance(r, 0.5):
        return None
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    hidden = options["hidden_size"]
    first, second = ((count, *batch, n) for n in (options.get("proj_size", hidden), hidden))
    given = tensor(r, first, dtype)._replace(shape=first)
    return (given, tensor(r, second, dtype)._replace(shape=second)) if kind == "LSTM" else given


def network(r: Random) -> Call:
    """``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``, batched and not."""
    kind, dtype = r.choice(("RNN", "GRU", "LSTM", "LSTM")), r.choice(DTYPES)
    options = _options(r, kind)
    batch = () if chance(r, 0.2) else (size(r, 3),)
    steps = size(r, 4)
    shape = (*batch, steps) if options.get("batch_first") else (steps, *batch)
    state = _state(r, kind, options, batch, dtype)
    return call("module", kind, options, tensor(r, (*shape, 2), dtype), state, within=within(r))


def packed(r: Random) -> Call:
    """The same of a packed sequence, sorted by lengths or not."""
    kind, dtype, batch = r.choice(("RNN", "GRU", "LSTM")), r.choice(DTYPES), r.randint(1, 3)
    options = _options(r, kind)
    lengths = [r.randint(1, 4) for _ in range(batch)]
    enforced = chance(r, 0.4)
    lengths = sorted(lengths, reverse=True) if enforced else lengths
    shape = (batch, 4) if options.get("batch_first") else (4, batch)
    x, state = tensor(r, (*shape, 2), dtype), _state(r, kind, options, (batch,), dtype)
    return call(
        "packed", kind, options, x, lengths, state, enforce_sorted=enforced, within=within(r)
    )


def cell(r: Random) -> Call:
    """One step, with a batch and without."""
    kind, dtype = r.choice(("RNN", "GRU", "LSTM")), r.choice(DTYPES)
    batch = () if chance(r, 0.3) else (size(r, 3),)
    options = {"input_size": 2, "hidden_size": 3, **some(r, bias=False)}
    hidden: T | tuple[T, T] = tensor(r, (*batch, 3), dtype)
    hidden = (hidden, tensor(r, (*batch, 3), dtype)) if kind == "LSTM" else hidden
    state = [] if chance(r, 0.3) else [hidden]
    x = tensor(r, (*batch, 2), dtype)
    return call("module", f"{kind}Cell", options, x, *state, within=within(r))


CALLS = (network, network, packed, cell)
