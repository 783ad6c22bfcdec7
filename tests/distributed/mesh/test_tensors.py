"""Tensors and models over eight devices."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from tests.distributed.mesh.on_mesh import (
    RULES,
    Net,
    adamw,
    check_eager_training,
    check_training,
    expected_losses,
    grid,
    on_data,
    purely,
    same,
    says,
    shard,
    spec,
    train,
)
from torch_jax.memory import sharding


def test_meshes_say_how_many_devices_there_are():
    assert dict(torch_jax.mesh(data=-1, model=2).shape) == {"data": 4, "model": 2}
    says(ValueError, "data=16.*needs 16 devices, and there are 8", lambda: torch_jax.mesh(data=16))
    says(ValueError, "a multiple of 3 devices", lambda: torch_jax.mesh(data=3, model=-1))
    says(ValueError, "a mesh needs an axis", lambda: torch_jax.mesh())
    says(ValueError, "a positive int or -1, not 0", lambda: torch_jax.mesh(data=0))
    says(ValueError, "one axis at most", lambda: torch_jax.mesh(data=-1, model=-1))


def test_plain_tensors_mix_with_sharded_ones():
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


@pytest.mark.slow
def test_writes_keep_the_sharding():
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


@pytest.mark.slow
def test_random_numbers_are_those_of_one_device():
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
    for runs in (torch_jax.jit, purely):
        alike = runs(lambda t: torch.zeros_like(t).add_(1))
        for made in (torch.randn_like(x), alike(x), alike(x), alike(x)):
            assert spec(made) == ("data", "model")


@pytest.mark.slow
def test_models_train_eagerly():
    net, expected = expected_losses()
    check_eager_training(net, expected, on_cpu=True, optimizer_first=True, foreach=True)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [torch_jax.jit, purely])
def test_models_train_compiled(runs):
    net, expected = expected_losses(4)
    one = copy.deepcopy(net).to("jax")
    optimizer = adamw(one, foreach=True)
    torch_jax.shard(one, grid(), RULES)
    losses = train(one, optimizer, on_data, runs, 4)
    check_training(one, losses, expected, optimizer)


@pytest.mark.slow
def test_a_constraint_holds_for_values_and_gradients():
    mesh = grid()

    def double(t: torch.Tensor) -> torch.Tensor:
        return torch_jax.with_sharding_constraint(t * 2, (None, "model"), mesh)

    def lazily(t: torch.Tensor) -> torch.Tensor:
        with torch_jax.lazy():
            return double(t)

    for run in (double, torch_jax.jit(double), purely(double), lazily):
        for _ in range(4):
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


def test_what_cannot_be_sharded_is_named():
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


def test_two_meshes_do_not_mix():
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


def test_arrays_bound_to_a_device_are_copied():
    a, bound = torch.randn(8, 4), torch.randn(8, 4)
    x, y = shard(a, "data"), bound.to("jax")
    held: Any = y.untyped_storage()
    held.array = jax.device_put(held.array, jax.devices()[0])
    for _ in range(3):
        same(x + y, a + bound)
        with torch_jax.lazy():
            z = x * y
        same(z, a * bound)
    for runs in (torch_jax.jit, purely):
        add = runs(lambda t: t + y)
        for _ in range(4):
            same(add(x), a + bound)


def test_batches_are_sharded_as_they_are_loaded():
    data = torch.utils.data.TensorDataset(torch.randn(18, 4), torch.arange(18))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    got = list(torch_jax.DeviceLoader(loader, mesh=grid(), spec=("data",)))
    for (x, y), (a, b) in zip(got, loader, strict=True):
        assert torch.equal(x.cpu(), a) and torch.equal(y.cpu(), b)
    assert [spec(x) for x, _ in got] == [("data",), ("data",), ()]
    says(ValueError, "go together", lambda: torch_jax.DeviceLoader(loader, mesh=grid()))
    wrong = ("no", "such")
    says(ValueError, "no axis", lambda: torch_jax.DeviceLoader(loader, mesh=grid(), spec=wrong))


def test_what_is_where_is_told():
    net = torch_jax.shard(nn.Linear(4, 8), grid(), {"weight": ("data", "model"), "*": ()})
    told = torch_jax.where_is(net)
    assert [one.bytes for one in told.shardings] == [16, 32]
    assert "weight  [8, 4]  ('data', 'model')  16 B" in str(told)
    assert torch_jax.where_is(net.weight.t()).shardings[0].spec == ("model", "data")
    assert torch_jax.where_is(torch.zeros(2, device="jax")).shardings == ()
    with pytest.warns(match=r"needs the rules \['wieght'\]"):
        torch_jax.shard(net, grid(), {"wieght": ("data",), "*": ()})


def test_sharded_models_are_saved_and_copied():
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


@pytest.mark.slow
def test_modules_on_meta_are_made_sharded():
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


@pytest.mark.slow
def test_what_numpy_computes_is_read_beside_a_mesh():
    shard(torch.randn(8, 4), "data")
    x, mask = torch.arange(7.0), torch.arange(7) % 3 == 1
    assert x.to("jax")[mask.to("jax")].tolist() == x[mask].tolist() == [1.0, 4.0]
    assert x.to("jax").max(0).indices.item() == 6
