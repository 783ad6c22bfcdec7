"""Checks that need many devices: run as a program on eight virtual ones, whatever the tests use.

``python -m tests.support.on_mesh quick`` prints, as JSON, what went wrong in each check.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CHECKS: dict[str, dict[str, Callable[[], None]]] = {"quick": {}, "slow": {}}
FLAG = "--xla_force_host_platform_device_count=8"
RULES = {
    "emb.weight": ("model", None),
    "up.weight": ("model", "data"),
    "down.weight": ("data", "model"),
    "*": (),
}


def quick(function: Callable[[], None]) -> Callable[[], None]:
    """One of the checks that take about a second."""
    CHECKS["quick"][function.__name__] = function
    return function


def slow(function: Callable[[], None]) -> Callable[[], None]:
    """One of the others."""
    CHECKS["slow"][function.__name__] = function
    return function


def main(kind: str) -> None:
    """Run checks, and print what each raised."""
    faults = {}
    for name, check in CHECKS[kind].items():
        start = time.perf_counter()
        try:
            check()
        except Exception:
            faults[name] = traceback.format_exc()
        print(f"{time.perf_counter() - start:5.1f} s  {name}")
    print(json.dumps({"checks": list(CHECKS[kind]), "faults": faults}))


# --- what the checks share ------------------------------------------------------------------------


def grid() -> Any:
    """The mesh of most checks."""
    import torch_jax

    return torch_jax.mesh(data=4, model=2)


def shard(x: Any, *spec: Any) -> Any:
    """A tensor over that mesh."""
    import torch_jax

    return torch_jax.shard(x, grid(), spec)


def spec(tensor: torch.Tensor) -> Any:
    """How the memory of a tensor is split; None where it lies on one device."""
    from torch_jax.memory import storage

    sharding: Any = storage.memory_of(tensor).sharding
    if not hasattr(sharding, "spec"):
        return None
    parts = tuple(sharding.spec)
    while parts and parts[-1] is None:
        parts = parts[:-1]
    return parts


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within the reordering of sums."""
    torch.testing.assert_close(actual.detach().cpu(), expected.detach().cpu(), rtol=1e-5, atol=1e-6)


def says(kind: type[Exception], message: str, function: Callable[[], Any]) -> None:
    """``function`` raises this."""
    try:
        function()
    except kind as error:
        assert re.search(message, str(error)), str(error)
        return
    raise AssertionError(f"nothing was raised where {message!r} was expected")


class Net(nn.Module):
    """A small model with a tie."""

    def __init__(self, device: Any = None):
        super().__init__()
        self.emb = nn.Embedding(16, 8, device=device)
        self.norm = nn.LayerNorm(8, device=device)
        self.up, self.down = nn.Linear(8, 16, device=device), nn.Linear(16, 8, device=device)
        self.head = nn.Linear(8, 16, bias=False, device=device)
        self.head.weight = self.emb.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of tokens."""
        h = self.emb(x)
        return self.head(h + self.down(torch.relu(self.up(self.norm(h)))))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and targets."""
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(16, (2, 8, 6), generator=generator)) for _ in range(count)]


def train(
    net: nn.Module, optimizer: Any, place: Callable, runs: Callable = lambda f: f, count: int = 4
) -> list[float]:
    """The losses of some steps."""

    @runs
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step(place(x), place(y)).item() for x, y in batches(count)]


def adamw(net: nn.Module, foreach: bool = False) -> Any:
    """The optimizer of the checks."""
    return torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=foreach)


def expected_losses(count: int = 4) -> tuple[nn.Module, list[float]]:
    """A model as it was before training, and the losses on the CPU."""
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    return net, train(other, adamw(other), lambda x: x, count=count)


def check_training(net: nn.Module, losses: list[float], expected: list[float], opt: Any) -> None:
    """The losses are right, and parameters and states lie where they lay."""
    same(torch.tensor(losses), torch.tensor(expected))
    assert net.head.weight is net.emb.weight
    for name, parameter in net.named_parameters():
        wanted = RULES.get(name, ())
        wanted = wanted[:1] if wanted[1:] == (None,) else wanted
        assert spec(parameter) == wanted, (name, spec(parameter))
        for key in ("exp_avg", "exp_avg_sq"):
            found = spec(opt.state[parameter][key])
            assert found == wanted, (name, key, found)


@contextlib.contextmanager
def traced_at_once() -> Iterator[None]:
    """Functions under ``torch_jax.jit`` are traced at their second call."""
    import torch_jax

    before = torch_jax.config.get("jit_recorded_calls")
    torch_jax.config.set("jit_recorded_calls", 0)
    try:
        yield
    finally:
        torch_jax.config.set("jit_recorded_calls", before)


def on_data(x: torch.Tensor) -> torch.Tensor:
    """A batch over the axis of data."""
    return shard(x, "data")


# --- quick checks ---------------------------------------------------------------------------------


@quick
def meshes_say_how_many_devices_there_are() -> None:
    import torch_jax

    assert dict(torch_jax.mesh(data=-1, model=2).shape) == {"data": 4, "model": 2}
    says(ValueError, "data=16.*needs 16 devices, and there are 8", lambda: torch_jax.mesh(data=16))
    says(ValueError, "a multiple of 3 devices", lambda: torch_jax.mesh(data=3, model=-1))
    says(ValueError, "a mesh needs an axis", lambda: torch_jax.mesh())
    says(ValueError, "a positive int or -1, not 0", lambda: torch_jax.mesh(data=0))
    says(ValueError, "one axis at most", lambda: torch_jax.mesh(data=-1, model=-1))


@quick
def plain_tensors_mix_with_sharded_ones() -> None:
    a, b, index = torch.randn(8, 4), torch.randn(8, 4), torch.tensor([5, 0, 3])
    x, y, at = shard(a, "data", "model"), b.to("jax"), index.to("jax")
    assert x.device.type == "jax" and spec(x) == ("data", "model") and spec(y) is None
    for _ in range(3):  # numbers become arrays when they come again
        same(x * 2.5 + y, a * 2.5 + b)
    same(x[at] @ y.t(), a[index] @ b.t())
    same(torch.where(x > 0, x, torch.arange(4.0, device="jax")), a.where(a > 0, torch.arange(4.0)))
    same(
        x.view(2, 4, 4).transpose(0, 1).reshape(-1)[3:],
        a.view(2, 4, 4).transpose(0, 1).reshape(-1)[3:],
    )
    same(torch.cat([x[1:], y]).sort(0).values, torch.cat([a[1:], b]).sort(0).values)
    assert spec(x + y) == ("data", "model") and spec(torch.zeros_like(x)) == ("data", "model")
    same(x.sum(), a.sum())


@quick
def writes_keep_the_sharding() -> None:
    import torch_jax

    def write(t: torch.Tensor) -> None:
        t[2:4] = 1
        t.t()[0].copy_(torch.arange(8.0, device=t.device))
        t[:, 3].mul_(t[:, 1])
        t.copy_(t + torch.ones(8, 4, device=t.device))
        t.view(-1)[5:7].zero_()
        t.add_(torch.arange(4.0, device=t.device))

    def run_lazily(t: torch.Tensor) -> None:
        with torch_jax.lazy():
            write(t)

    def run_fused(t: torch.Tensor) -> None:
        with torch_jax.fused():
            write(t)

    for run in (write, run_lazily, run_fused, torch_jax.jit(write)):
        expected = torch.randn(8, 4)
        x = shard(expected, "data", "model")
        part = x[1:3]
        run(x)
        write(expected)
        same(x, expected)
        same(part, expected[1:3])
        assert spec(x) == ("data", "model"), run
    y = shard(torch.ones(8, 4), "model")
    with torch_jax.lazy():  # two storages of one recorded value
        y.mul_(3)
        x.copy_(y)
    assert spec(y) == ("model",) and spec(x) == ("data", "model") and x.sum().item() == 96
    x.copy_(torch.zeros(8, 4))
    x.data.fill_(3)
    assert spec(x) == ("data", "model") and x.sum().item() == 96


@quick
def random_numbers_are_those_of_one_device() -> None:
    import torch_jax

    a = torch.randn(8, 4)
    draws = (
        torch.randn_like,
        torch.rand_like,
        lambda t: F.dropout(t, 0.5),
        lambda t: torch.bernoulli(t.sigmoid()),
        lambda t: torch.zeros_like(t).normal_(),
        lambda t: torch.randperm(8, device=t.device)[t.argmax(0)],
    )
    for draw in draws:
        torch.manual_seed(3)
        sharded = draw(shard(a, "data", "model"))
        torch.manual_seed(3)
        same(sharded, draw(a.to("jax")))
    x = shard(a, "data", "model")
    with traced_at_once():
        alike = torch_jax.jit(lambda t: torch.zeros_like(t).add_(1))
        for made in (torch.randn_like(x), alike(x), alike(x)):
            assert spec(made) == ("data", "model")


@quick
def models_train_eagerly() -> None:
    import torch_jax

    net, expected = expected_losses()
    for on_cpu, optimizer_first, foreach in ((True, True, False), (False, False, True)):
        one = copy.deepcopy(net)
        one = one if on_cpu else one.to("jax")
        known = list(one.parameters())
        optimizer = adamw(one, foreach) if optimizer_first else None
        assert torch_jax.shard(one, grid(), RULES) is one
        assert all(a is b for a, b in zip(known, one.parameters(), strict=True))
        optimizer = optimizer or adamw(one, foreach)
        check_training(one, train(one, optimizer, on_data), expected, optimizer)


@quick
def models_train_recorded_and_compiled() -> None:
    import torch_jax

    net, expected = expected_losses(8)

    def lazily(step: Callable) -> Callable:
        def run(*args: Any) -> Any:
            with torch_jax.lazy():
                return step(*args)

        return run

    for runs in (torch_jax.jit, lazily):
        one = copy.deepcopy(net).to("jax")
        optimizer = adamw(one, foreach=True)
        torch_jax.shard(one, grid(), RULES)
        with traced_at_once():
            losses = train(one, optimizer, on_data, runs, 8)
        check_training(one, losses, expected, optimizer)


@quick
def a_constraint_holds_for_values_and_gradients() -> None:
    import torch_jax

    mesh = grid()

    def double(t: torch.Tensor) -> torch.Tensor:
        return torch_jax.with_sharding_constraint(t * 2, (None, "model"), mesh)

    def lazily(t: torch.Tensor) -> torch.Tensor:
        with torch_jax.lazy():
            return double(t)

    with traced_at_once():
        for run in (double, torch_jax.jit(double), lazily):
            for _ in range(3):
                x = torch.randn(8, 4, device="jax", requires_grad=True)
                y = run(x)
                (gradient,) = torch.autograd.grad(y.sum(), x)
                same(y, x * 2)
                same(gradient, torch.full((8, 4), 2.0))
                assert spec(y) == (None, "model"), run
    x = torch.randn(8, 4, requires_grad=True)
    leaf = x.to("jax").detach().requires_grad_()
    (torch_jax.shard(leaf * 3, mesh, ("data",)) ** 2).sum().backward()
    same(leaf.grad, 18 * x)


@quick
def what_cannot_be_sharded_is_named() -> None:
    import torch_jax

    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 6)).to("jax")
    mesh = grid()
    before = {name: spec(tensor) for name, tensor in net.named_parameters()}

    def by(rules: Any) -> Callable[[], Any]:
        return lambda: torch_jax.shard(net, mesh, rules)

    says(ValueError, r"0\.bias: no rule fits", by({"*.weight": ("model",)}))
    says(ValueError, r"1\.weight.*6 elements, which 'data' \(4 parts\)", by({"*": ("data",)}))
    says(ValueError, "no axis 'modle'.*data=4, model=2", by({"*": ("modle",)}))
    says(ValueError, "axis 'model' shards two dimensions", by({"*t": ("model",) * 2, "*": ()}))
    says(ValueError, "names 2 dimensions, and the tensor has 1", by({"*": (None, "model")}))
    says(TypeError, "a tuple with an axis name", by(3))
    says(TypeError, "a tensor or an nn.Module", lambda: torch_jax.shard([1], mesh, ()))
    says(TypeError, "a mesh of torch_jax.mesh", lambda: torch_jax.shard(net, None, ()))
    view = nn.Parameter(torch.zeros(8, 4, device="jax")[:, 1])
    says(ValueError, "a view of a memory", lambda: torch_jax.shard(view, mesh, ("data",)))
    assert before == {name: spec(tensor) for name, tensor in net.named_parameters()}


@quick
def two_meshes_do_not_mix() -> None:
    import torch_jax

    a = torch.randn(8, 4)
    x, y = shard(a, "data"), torch_jax.shard(a, torch_jax.mesh(part=2), ("part",))
    both = r"mesh\(data=4, model=2\) of devices 0 to 7 and mesh\(part=2\) of devices 0 to 1"

    def lazily() -> float:
        with torch_jax.lazy():
            return (x + y).sum().item()

    for run in (lambda: x + y, lambda: x.add_(y), lazily, lambda: torch_jax.jit(torch.add)(x, y)):
        says(RuntimeError, both, run)
    same(x, a)
    says(ValueError, "which mesh is meant", lambda: torch_jax.with_sharding_constraint(x, ()))
    same(x + torch_jax.shard(y.cpu(), grid(), ()), a + a)


@quick
def arrays_bound_to_a_device_are_copied() -> None:
    import jax

    import torch_jax

    a, bound = torch.randn(8, 4), torch.randn(8, 4)
    x, y = shard(a, "data"), bound.to("jax")
    held: Any = y.untyped_storage()
    held.array = jax.device_put(held.array, jax.devices()[0])
    add = torch_jax.jit(lambda t: t + y)
    with traced_at_once():
        for _ in range(3):
            same(x + y, a + bound)
            with torch_jax.lazy():
                z = x * y
            same(z, a * bound)
        for _ in range(3):
            same(add(x), a + bound)


@quick
def batches_are_sharded_as_they_are_loaded() -> None:
    import torch_jax

    data = torch.utils.data.TensorDataset(torch.randn(18, 4), torch.arange(18))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    got = list(torch_jax.DeviceLoader(loader, mesh=grid(), spec=("data",)))
    for (x, y), (a, b) in zip(got, loader, strict=True):
        assert torch.equal(x.cpu(), a) and torch.equal(y.cpu(), b)
    assert [spec(x) for x, _ in got] == [("data",), ("data",), ()]
    says(ValueError, "go together", lambda: torch_jax.DeviceLoader(loader, mesh=grid()))
    wrong = ("no", "such")
    says(ValueError, "no axis", lambda: torch_jax.DeviceLoader(loader, mesh=grid(), spec=wrong))


@quick
def what_is_where_is_told() -> None:
    import torch_jax

    net = torch_jax.shard(nn.Linear(4, 8), grid(), {"weight": ("data", "model"), "*": ()})
    told = torch_jax.where_is(net)
    assert [one.bytes for one in told.shardings] == [16, 32]
    assert "weight  [8, 4]  ('data', 'model')  16 B" in str(told)
    assert torch_jax.where_is(net.weight.t()).shardings[0].spec == ("model", "data")
    assert torch_jax.where_is(torch.zeros(2, device="jax")).shardings == ()
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch_jax.shard(net, grid(), {"wieght": ("data",), "*": ()})
    assert "needs the rules ['wieght']" in str(caught[0].message)


@quick
def sharded_models_are_saved_and_copied() -> None:
    import torch_jax

    net = torch_jax.shard(Net(), grid(), RULES)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True, map_location="cpu")
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    net.load_state_dict(state)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor.cpu(), net.state_dict()[name].cpu())
        assert spec(tensor) == spec(net.state_dict()[name]), name
    assert spec(net.up.weight) == ("model", "data")


@quick
def modules_on_meta_are_made_sharded() -> None:
    import torch_jax
    from torch_jax.memory import sharding

    torch.manual_seed(0)
    expected = Net(device="jax")
    torch.manual_seed(0)
    net = Net(device="meta")
    optimizer = adamw(net)
    sizes, original = [], sharding._keeping

    def watched(*key: Any) -> Callable:
        def run(*memories: Any) -> Any:
            found = original(*key).lower(*memories).compile().memory_analysis()
            sizes.append(found.argument_size_in_bytes + found.output_size_in_bytes)
            return original(*key)(*memories)

        return run

    torch_jax.shard(net, grid(), RULES)
    for (name, a), b in zip(expected.state_dict().items(), net.state_dict().values(), strict=True):
        same(b, a)
        assert b.device.type == "jax", name
    assert net.head.weight is net.emb.weight is optimizer.param_groups[0]["params"][0]
    assert spec(net.up.weight) == ("model", "data") and net.up.weight.requires_grad
    sharding._keeping = watched
    try:
        torch_jax.shard(nn.Linear(64, 64, bias=False, device="meta"), grid(), ("data", "model"))
    finally:
        sharding._keeping = original
    assert sizes and max(sizes) < 64 * 64 * 4 / 4  # no device is given, or gives, all of it
    with torch.device("meta"):
        buffers = nn.Module()
        buffers.register_buffer("steps", torch.arange(4.0))
    says(RuntimeError, "no reset_parameters", lambda: torch_jax.shard(buffers, grid(), ()))
    state = {"steps": torch.arange(4.0)}
    torch_jax.shard(buffers, grid(), (), init=lambda module: module.load_state_dict(state))
    same(buffers.steps, torch.arange(4.0))


# --- slow checks ----------------------------------------------------------------------------------


@slow
def a_compiled_step_takes_parameters_that_are_sharded_anew() -> None:
    import torch_jax

    net, expected = expected_losses(8)
    net.to("jax")
    optimizer = adamw(net)

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    with traced_at_once():
        for at, (x, y) in enumerate(batches(8)):
            if at == 4:
                torch_jax.shard(net, grid(), RULES, optimizer)
            losses.append(step(x.to("jax"), y.to("jax")).item())
    same(torch.tensor(losses), torch.tensor(expected))
    assert (
        spec(net.up.weight) == ("model", "data") == spec(optimizer.state[net.up.weight]["exp_avg"])
    )


@slow
def compiled_graphs_keep_shardings() -> None:
    import torch_jax

    net, expected = expected_losses()
    net.to("jax")
    torch_jax.shard(net, grid(), RULES)
    optimizer = adamw(net)
    compiled = torch.compile(net, backend="jax")
    losses = []
    for x, y in batches(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(on_data(x)).flatten(0, 1), on_data(y).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    check_training(net, losses, expected, optimizer)

    def write(t: torch.Tensor) -> None:
        t.copy_(torch.ones(8, 4, device="jax"))

    x = shard(torch.zeros(8, 4), "data", "model")
    torch.compile(write, backend="jax")(x)
    assert spec(x) == ("data", "model") and x.sum().item() == 32


_SIZES = {"f32": 4, "s32": 4, "s64": 8, "pred": 1, "f64": 8, "u32": 4}
_COLLECTIVE = r"(?m)^ *(?:ROOT )?%\S+ = (.*?) (all-\w+|reduce-scatter|collective-\w+)(?:-start)?\("


def collectives(text: str) -> Counter:
    """How often a program runs each collective, over how many bytes."""
    found: Counter = Counter()
    for shapes, kind in re.findall(_COLLECTIVE, text):
        sizes = re.findall(r"(\w+)\[([0-9,]*)\]", shapes)
        count = (
            _SIZES[dtype] * math.prod(map(int, filter(None, dims.split(","))))
            for dtype, dims in sizes
        )
        found[kind, sum(count)] += 1
    return found


def gathered(found: Counter) -> int:
    """The bytes that all-gathers give."""
    return sum(size * count for (kind, size), count in found.items() if kind == "all-gather")


def by_hand(net: nn.Module, mesh: Any, fsdp: bool) -> Any:
    """A training step of an MLP with AdamW as one writes it in JAX."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    params = [
        jax.device_put(p.detach().numpy(), split if fsdp else whole) for p in net.parameters()
    ]
    moments = [[jax.device_put(jnp.zeros(p.shape), p.sharding) for p in params] for _ in range(2)]

    def loss(params: list, x: Any, y: Any) -> Any:
        w1, b1, w2, b2 = params
        return ((jax.nn.relu(x @ w1.T + b1) @ w2.T + b2 - y) ** 2).mean()

    def step(params: list, m: list, v: list, t: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        m = [0.9 * old + 0.1 * g for old, g in zip(m, grads, strict=True)]
        v = [0.999 * old + 0.001 * g * g for old, g in zip(v, grads, strict=True)]
        params = [
            p * (1 - 1e-4) - 1e-2 * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8)
            for p, a, b in zip(params, m, v, strict=True)
        ]
        return params, m, v, value

    kept = [p.sharding for p in params]
    run = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=(kept, kept, kept, None))
    batch = [jax.device_put(jnp.zeros((64, n)), split) for n in (64, 16)]
    return run.lower(params, *moments, 1.0, *batch).compile()


def compiled_step(net: nn.Module, mesh: Any, fsdp: bool) -> Any:
    """The same of torch_jax."""
    import torch_jax

    torch_jax.shard(net, mesh, ("data",) if fsdp else ())
    optimizer = adamw(net)

    @torch_jax.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x, y = (torch_jax.shard(torch.zeros(64, n), mesh, ("data",)) for n in (64, 16))
    step(x, y)
    return step.lower(x, y)


@slow
def collectives_and_memory_are_those_of_jax_written_by_hand() -> None:
    import torch_jax

    mesh = torch_jax.mesh(data=8)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    elements = sum(p.numel() for p in net.parameters())
    for fsdp in (False, True):
        theirs, ours = by_hand(net, mesh, fsdp), compiled_step(copy.deepcopy(net), mesh, fsdp)
        expected, found = collectives(theirs.as_text()), collectives(ours.as_text("hlo"))
        if fsdp:  # a weight may be gathered once more, for the backward pass
            assert found["all-reduce", 68] == expected["all-reduce", 68] == 1
            assert gathered(found) <= gathered(expected) + 4 * elements
        else:
            assert found == expected == {("all-reduce", 4 * elements + 4): 1}
        ideal = 3 * 4 * elements / (8 if fsdp else 1) + 4 * 8 * (64 + 16)
        memory = ours.memory_analysis()
        assert memory.argument_size_in_bytes <= 1.1 * ideal
        assert memory.output_size_in_bytes <= 1.1 * ideal


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    main(sys.argv[1])
