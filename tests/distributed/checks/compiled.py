"""Functions with collectives under ``torch_jax.jit``: recorded around each collective."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import torch_jax
from tests.distributed.checks import numbers


def _compiled(function: Callable[..., Any], device: str) -> Any:
    return torch_jax.jit(function) if device == "jax" else function


def _thrice(function: Callable[..., Any], device: str, *shape: int, **form: Any) -> list[Any]:
    """What it gives for three tensors, and what it made of these."""
    run = _compiled(function, device)
    given = [numbers(device, *shape, **form) + at for at in range(3)]
    return [[run(x) for x in given], given]


def reductions_are_recorded(device: str) -> Any:
    def reduce(x: torch.Tensor) -> list[torch.Tensor]:
        kinds = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
        results = [x * 2, x + dist.get_rank(), x.t().clone()]
        for result, kind in zip(results, kinds, strict=True):
            dist.all_reduce(result, kind)
        dist.all_reduce(x[1])  # a view of what was given
        return results

    return _thrice(reduce, device, 3, 4), _thrice(reduce, device, 3, 4, dtype=torch.int64)


def values_are_moved_by_recorded_functions(device: str) -> Any:
    def move(x: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(x), torch.empty_like(x)]
        dist.all_gather(parts, x * 2)
        whole = x.new_empty(8, 3)
        dist.all_gather_into_tensor(whole, x)
        part, turned = x.new_empty(2, 3), torch.empty_like(x)
        dist.reduce_scatter_tensor(part, x + whole.sum())
        work = dist.all_to_all_single(turned, x - parts[1], async_op=True)
        first = x.clone()
        dist.broadcast(first, 1)
        work.wait()
        return [*parts, whole, part, turned, first]

    return _thrice(move, device, 4, 3), _thrice(move, device, 4, 3, dtype=torch.bool)[1:]


def functional_collectives_are_recorded(device: str) -> Any:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        summed = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        return [summed + 1, gathered.flip(0)]

    run = _compiled(run, device)
    return [run(numbers(device, 2, 3) + at) for at in range(3)]


def collectives_are_differentiated_inside(device: str) -> Any:
    weight = numbers(device, 3, 2).requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        loss = differentiable.all_reduce((x @ weight).sin()).square().sum()
        loss.backward()
        return loss.detach()

    run = _compiled(run, device)
    return [(run(numbers(device, 4, 3) / 10 + at), weight.grad.clone()) for at in range(3)]


def _net(device: str) -> nn.Module:
    torch.manual_seed(dist.get_rank())  # DDP takes the weights of the first process
    parts = (nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(*parts).to(device)


def _train(
    device: str,
    wrap: Callable[[nn.Module], Any],
    step: Callable[..., torch.Tensor] | None = None,
    calls: int = 4,
) -> list[Any]:
    net = _net(device)
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = plain(x, y) if step is None else step(model, x, y)
        optimizer.step()
        return loss.detach()

    train = _compiled(run, device)
    losses = []
    for at in range(calls):
        generator = torch.Generator().manual_seed(100 * at + dist.get_rank())
        x, y = (
            torch.randn(6, 4, generator=generator),
            torch.randint(0, 3, (6,), generator=generator),
        )
        losses.append(train(x.to(device), y.to(device)))
    return [losses, list(net.state_dict().values())]


def a_step_of_ddp_is_recorded(device: str) -> Any:
    return _train(device, DistributedDataParallel)


def ddp_with_views_of_its_buckets_is_recorded(device: str) -> Any:
    return _train(device, lambda net: DistributedDataParallel(net, gradient_as_bucket_view=True))


def ddp_with_many_buckets_is_recorded(device: str) -> Any:
    def wrap(net: nn.Module) -> Any:
        return DistributedDataParallel(net, bucket_cap_mb=0.0001, broadcast_buffers=False)

    return _train(device, wrap)


def ddp_that_accumulates_is_recorded(device: str) -> Any:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with model.no_sync():
            F.cross_entropy(model(x[:3]), y[:3]).backward()
        loss = F.cross_entropy(model(x[3:]), y[3:])
        loss.backward()
        return loss

    return _train(device, DistributedDataParallel, step)


def ddp_that_looks_for_unused_parameters_is_recorded(device: str) -> Any:
    def wrap(net: nn.Module) -> Any:
        return DistributedDataParallel(net, find_unused_parameters=True)

    return _train(device, wrap)


def ddp_with_compressed_gradients_is_recorded(device: str) -> Any:
    def wrap(net: nn.Module) -> Any:
        model = DistributedDataParallel(net)
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return model

    trained = _train(device, wrap)
    return [[value.float().round(decimals=2) for value in values] for values in trained]


def a_hook_that_looks_at_a_gradient_of_ddp(device: str) -> Any:
    """A recording ends in the middle of the backward pass."""
    seen = []

    def wrap(net: nn.Module) -> Any:
        net[0].weight.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        return DistributedDataParallel(net, bucket_cap_mb=0.0001)

    return [_train(device, wrap), len(seen)]


def a_process_may_record_what_another_runs_eagerly(device: str) -> Any:
    """Collectives are paired by their order, whether operators around them are recorded or not."""
    x = numbers(device, 5)

    def run() -> torch.Tensor:
        first, second = x * 2, x * 3
        dist.all_reduce(second)
        dist.all_reduce(first)
        return first - second

    own = _compiled(run, device) if dist.get_rank() == 0 else run
    return [own() for _ in range(3)]


def a_module_of_ddp_is_compiled(device: str) -> Any:
    """In place: its loss and its gradients are outside of the program."""
    net = _net(device)
    model = DistributedDataParallel(net)
    if device == "jax":
        torch_jax.jit(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for at in range(12):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(at)).to(device)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return [losses, list(net.state_dict().values())]


def other_collectives_are_called_by_recorded_functions(device: str) -> Any:
    """Those of some processes, of objects, of two processes, and those that the host computes."""
    x, received = numbers(device, 2) + 1, torch.zeros(2, device=device)
    some, other = dist.new_group([0]), 1 - dist.get_rank()

    def run() -> list[Any]:
        y = x * 2
        if dist.get_rank() == 0:
            dist.all_reduce(y, group=some)
            dist.send(y, other)
            dist.recv(received, other)
        else:
            dist.recv(received, other)
            dist.send(y, other)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, dist.get_rank())
        multiplied = y + 1
        dist.all_reduce(multiplied, dist.ReduceOp.PRODUCT)
        return [y, received + 1, multiplied, *objects]

    run = _compiled(run, device)
    return [run() for _ in range(3)]


def pure_functions_call_collectives_each_time(device: str) -> Any:
    """A program cannot repeat what other processes take part in: Python runs, with a warning."""

    def reduce(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x * 2

    def reduce_later(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return [_purely(function, device) for function in (reduce, reduce_later, dist.all_reduce)]


def _purely(function: Callable[..., Any], device: str) -> list[Any]:
    run = torch_jax.jit(function, pure=True) if device == "jax" else function
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        given = [numbers(device, 3) + at for at in range(4)]
        results = [run(x) for x in given]
    warned = any("cannot skip its Python" in str(one.message) for one in found)
    return [*(y for y in results if isinstance(y, torch.Tensor)), *given, warned or device == "cpu"]
