"""A training step over a mesh of eight devices beside hand-written JAX over the same mesh.

``python -m benchmarks.sharded`` prints, in seconds, the samples of one process. The step computes
next to nothing, so that what it costs is its calls and collectives. The devices are eight of the
host's CPU unless the environment says otherwise; on few cores most of the time is theirs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks import modes
from benchmarks.timing import Samples, Timed, compare, in_fresh_process, sample

FLAG = "--xla_force_host_platform_device_count=8"
LAYERS, WIDTH, BATCH = 4, 16, 16
CALLS, ROUNDS = 5, 60
RULES: dict[str, tuple] = {"data parallel": (), "FSDP": ("data",)}
OURS, BARE = "torch_jax.jit", "hand-written JAX"
TARGET = 1.5


def run() -> None:
    """Compare steps, and the time until a call returns, in a fresh process."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    found = in_fresh_process("benchmarks.sharded", XLA_FLAGS=flags)
    for title, runs in found.items():
        samples = {name: Timed(*run) for name, run in runs.items()}
        compare(f"Eight devices, {title}", samples, {BARE: TARGET}, "us", 1e6)


def measured() -> dict[str, Samples]:
    """Samples of all cases by their titles."""
    import torch_jax

    mesh = torch_jax.mesh(data=8)
    found = {}
    for name, spec in RULES.items():
        calls = {OURS: _ours(mesh, spec), BARE: _bare(mesh, spec)}
        found[f"{name}: a step"] = sample({n: _done(c) for n, c in calls.items()}, CALLS, ROUNDS)
        found[f"{name}: until the call returns"] = _returning(calls)
    one = {OURS: _ours(None, ()), BARE: _bare(None, ())}
    found["and one device: until the call returns"] = _returning(one)
    return found


def _done(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, and what it computes: XLA's CPU devices can hang with many steps under way."""
    return lambda: call().block_until_ready()


def _returning(calls: dict[str, Callable[[], Any]]) -> Samples:
    """Seconds until a call returns, when all that was computed before is there."""
    ran = {name: modes.settle(_done(call)) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call().block_until_ready()
            start = time.perf_counter()
            result = call()
            found[name].append(time.perf_counter() - start)
            result.block_until_ready()
    return {name: Timed(times, ran[name]) for name, times in found.items()}


def _ours(mesh: Any, spec: tuple) -> Callable[[], Any]:
    """AdamW on a chain of linear layers; a call gives the loss as an array."""
    import torch

    import torch_jax
    from torch_jax.memory.storage import memory_of

    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    x, y = torch.ones(BATCH, WIDTH), torch.ones(BATCH, WIDTH)
    if mesh is None:
        model, x, y = model.to("jax"), x.to("jax"), y.to("jax")
    else:
        torch_jax.shard(model, mesh, spec)
        x, y = (torch_jax.shard(t, mesh, ("data",)) for t in (x, y))
    optimizer = torch.optim.AdamW(model.parameters())

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return lambda: memory_of(step(x, y))


def _bare(mesh: Any, spec: tuple) -> Callable[[], Any]:
    """The same with the same arrays going in and coming out."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from torch_jax.compiler import options

    def put(array: Any, parts: tuple) -> Any:
        return array if mesh is None else jax.device_put(array, _named(parts))

    def _named(parts: tuple) -> Any:
        return NamedSharding(mesh, PartitionSpec(*parts))

    params = [put(jnp.full(shape, 0.01), spec) for shape in ((WIDTH, WIDTH), (WIDTH,))] * LAYERS
    params = [jnp.array(p, copy=True) for p in params]
    state: Any = [params, [p * 0 for p in params], [p * 0 for p in params]]
    state += [[put(jnp.zeros(()), ()) for _ in params]]
    x, y = (put(jnp.ones((BATCH, WIDTH)), ("data",)) for _ in range(2))

    def loss_of(params: list, x: Any, y: Any) -> Any:
        for weight, bias in zip(params[::2], params[1::2], strict=True):
            x = x @ weight.T + bias
        return jnp.square(x - y).mean()

    def update(params: list, m: list, v: list, count: list, rate: float, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        count = [t + 1 for t in count]
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gradients, strict=True)]
        v = [0.999 * a + 0.001 * g * g for a, g in zip(v, gradients, strict=True)]
        moved = [
            p * (1 - 0.01 * rate)
            - rate * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8)
            for p, a, b, t in zip(params, m, v, count, strict=True)
        ]
        return [moved, m, v, count], loss

    kept = None if mesh is None else ([[a.sharding for a in arrays] for arrays in state], None)
    compiled = jax.jit(
        update,
        donate_argnums=(0, 1, 2, 3),
        out_shardings=kept,
        compiler_options=options.whole(),  # both by the same scheduler
    )

    def step() -> Any:
        nonlocal state
        state, loss = compiled(*state, 1e-3, x, y)
        return loss

    return step


if __name__ == "__main__":
    print(json.dumps(measured()))
