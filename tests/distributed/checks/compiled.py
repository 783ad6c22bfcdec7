"""Functions with collectives under ``torch_jax.jit``: one program of all processes."""

from __future__ import annotations

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


def _compiled(function: Callable[..., Any], device: str, fallback: str = "error") -> Any:
    return torch_jax.jit(function, fallback=fallback) if device == "jax" else function


def _thrice(function: Callable[..., Any], device: str, *shape: int, **form: Any) -> list[Any]:
    """What it gives for three tensors, and what it made of these."""
    run = _compiled(function, device)
    given = [numbers(device, *shape, **form) + at for at in range(3)]
    return [[run(x) for x in given], given]


def reductions_are_compiled(device: str) -> Any:
    def reduce(x: torch.Tensor) -> list[torch.Tensor]:
        kinds = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
        results = [x * 2, x + dist.get_rank(), x.t().clone()]
        for result, kind in zip(results, kinds, strict=True):
            dist.all_reduce(result, kind)
        dist.all_reduce(x[1])  # a view of what was given
        return results

    return _thrice(reduce, device, 3, 4), _thrice(reduce, device, 3, 4, dtype=torch.int64)


def values_are_moved_by_one_program(device: str) -> Any:
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

    run = _compiled(run, device, "record")
    return [run(numbers(device, 2, 3) + at) for at in range(12)]


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
    fallback: str = "error",
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

    train = _compiled(run, device, fallback)
    losses = []
    for at in range(calls):
        generator = torch.Generator().manual_seed(100 * at + dist.get_rank())
        x, y = (
            torch.randn(6, 4, generator=generator),
            torch.randint(0, 3, (6,), generator=generator),
        )
        losses.append(train(x.to(device), y.to(device)))
    return [losses, list(net.state_dict().values())]


def a_step_of_ddp_is_one_program(device: str) -> Any:
    return _train(device, DistributedDataParallel)


def ddp_with_views_of_its_buckets_is_compiled(device: str) -> Any:
    return _train(device, lambda net: DistributedDataParallel(net, gradient_as_bucket_view=True))


def ddp_with_many_buckets_is_compiled(device: str) -> Any:
    def wrap(net: nn.Module) -> Any:
        return DistributedDataParallel(net, bucket_cap_mb=0.0001, broadcast_buffers=False)

    return _train(device, wrap)


def ddp_that_accumulates_is_compiled(device: str) -> Any:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with model.no_sync():
            F.cross_entropy(model(x[:3]), y[:3]).backward()
        loss = F.cross_entropy(model(x[3:]), y[3:])
        loss.backward()
        return loss

    return _train(device, DistributedDataParallel, step)


def ddp_that_cannot_be_compiled_is_recorded(device: str) -> Any:
    def wrap(net: nn.Module) -> Any:
        return DistributedDataParallel(net, find_unused_parameters=True)

    return _train(device, wrap, fallback="record", calls=12)


def ddp_with_compressed_gradients_is_compiled_or_recorded(device: str) -> Any:
    def wrap(net: nn.Module) -> Any:
        model = DistributedDataParallel(net)
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return model

    trained = _train(device, wrap, fallback="record", calls=12)
    return [[value.float().round(decimals=2) for value in values] for values in trained]


def a_trace_that_breaks_off_leaves_ddp_as_it_was(device: str) -> Any:
    """A hook looks at a gradient: the trace ends in the middle of the backward pass."""
    seen = []

    def wrap(net: nn.Module) -> Any:
        net[0].weight.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        return DistributedDataParallel(net, bucket_cap_mb=0.0001)

    return [_train(device, wrap, fallback="record", calls=12), len(seen)]


def a_process_may_record_what_another_has_compiled(device: str) -> Any:
    """Collectives are paired by their order, whatever program they are a part of."""
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


def what_compiled_collectives_refuse(device: str) -> Any:
    """What is not given to tensors of the device, in the default group, asks for Python."""
    if device == "cpu":
        return [True] * 4
    x = numbers(device, 2)
    some = dist.new_group([0])

    def among_some() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(x, group=some)
        else:
            dist.barrier()

    def objects() -> None:
        dist.all_gather_object([None, None], 1)

    def sent() -> None:
        dist.send(x, 1 - dist.get_rank())

    def multiplied() -> None:
        dist.all_reduce(x, dist.ReduceOp.PRODUCT)

    return [_is_refused(function) for function in (among_some, objects, sent, multiplied)]


def _is_refused(function: Callable[[], None]) -> bool:
    try:
        torch_jax.jit(function, fallback="error")()
    except torch_jax.NotTraceableError:
        return True
    return False
