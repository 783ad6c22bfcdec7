"""Every collective of ``torch.distributed``, its reductions and dtypes, and its errors."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

import torch_jax
from tests.distributed.checks import numbers, raised

_DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64)
_OTHERS = (torch.float16, torch.int32, torch.uint8, torch.int8, torch.complex128)


def all_reduce_sums_every_dtype(device: str) -> Any:
    tensors = [numbers(device, 4, dtype=dtype) for dtype in _DTYPES + _OTHERS]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


def all_reduce_takes_every_operator(device: str) -> Any:
    results: list[Any] = []
    for op in ("AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        for dtype in (torch.float32, torch.int64):
            tensor = numbers(device, 3, dtype=dtype)
            failed = raised(lambda t=tensor, o=op: dist.all_reduce(t, getattr(dist.ReduceOp, o)))
            results += [failed] if failed != "nothing" else [tensor]
    return results


def reduce_gives_one_process_the_sum(device: str) -> Any:
    tensor = numbers(device, 3)
    dist.reduce(tensor, 1)
    return tensor if dist.get_rank() == 1 else None


def all_gather_gives_lists_and_one_tensor(device: str) -> Any:
    parts = [torch.zeros(2, 3, device=device) for _ in range(2)]
    dist.all_gather(parts, numbers(device, 2, 3))
    whole = torch.zeros(4, 3, device=device, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(whole, numbers(device, 2, 3, dtype=torch.bfloat16))
    return parts, whole


def reduce_scatter_takes_lists_and_one_tensor(device: str) -> Any:
    part, other = torch.zeros(2, 3, device=device), torch.zeros(2, device=device, dtype=torch.int64)
    dist.reduce_scatter(part, [numbers(device, 2, 3), numbers(device, 2, 3) * 2])
    dist.reduce_scatter_tensor(other, numbers(device, 4, dtype=torch.int64), dist.ReduceOp.MAX)
    product = torch.zeros_like(other)
    dist.reduce_scatter_tensor(product, numbers(device, 4, dtype=torch.int64), _PRODUCT)
    return part, other, product


_PRODUCT = dist.ReduceOp.PRODUCT  # gloo's: JAX has no program for it


def broadcast_keeps_every_bit(device: str) -> Any:
    results = [1 / _sent(torch.tensor([-0.0, float("nan"), 0.0]), 0, device)]
    for root, dtype in enumerate((torch.complex64, torch.bool)):
        results.append(_sent(numbers("cpu", 3, dtype=dtype), root, device))
    return results


def _sent(values: torch.Tensor, root: int, device: str) -> torch.Tensor:
    tensor = (values if dist.get_rank() == root else torch.zeros_like(values)).to(device)
    dist.broadcast(tensor, root)
    return tensor


def gather_and_scatter_have_a_root(device: str) -> Any:
    is_root = dist.get_rank() == 1
    parts = [torch.zeros(3, device=device) for _ in range(2)] if is_root else None
    dist.gather(numbers(device, 3), parts, 1)
    part = torch.zeros(3, device=device)
    given = [numbers(device, 3), numbers(device, 3) * 5] if is_root else None
    dist.scatter(part, given, 1)
    return parts, part


def all_to_all_exchanges_parts(device: str) -> Any:
    rank = dist.get_rank()
    equal = torch.zeros(4, 2, device=device)
    dist.all_to_all_single(equal, numbers(device, 4, 2))
    taken, given = ([1, 2], [1, 3]) if rank == 0 else ([3, 2], [2, 2])
    unequal = torch.zeros(sum(taken), 2, device=device)
    dist.all_to_all_single(unequal, numbers(device, 4, 2), taken, given)
    return equal, unequal


def point_to_point_needs_no_order(device: str) -> Any:
    other = 1 - dist.get_rank()
    sent = numbers(device, 3)
    first, second, third = (torch.zeros(3, device=device) for _ in range(3))
    works = [dist.isend(sent, other), dist.irecv(first, other)]
    for work in works:
        work.wait()
    batch = [dist.P2POp(dist.isend, sent * 2, other), dist.P2POp(dist.irecv, second, other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    source = None
    if dist.get_rank() == 0:
        dist.send(sent, 1, tag=3)
    else:
        source = dist.recv(third, tag=3)
    return first, second, third, source


def objects_go_everywhere(device: str) -> Any:
    rank = dist.get_rank()
    everywhere: list[Any] = [None, None]
    dist.all_gather_object(everywhere, {"rank": rank, "word": "y" * (rank + 1)})
    from_one = [rank, "a"] if rank == 0 else [None, None]
    dist.broadcast_object_list(from_one, 0)
    return everywhere, from_one


def objects_may_hold_tensors(device: str) -> Any:
    everywhere: list[Any] = [None, None]
    dist.all_gather_object(everywhere, numbers(device, 2))
    return [tensor.device.type == device for tensor in everywhere], everywhere


def work_goes_on_until_it_is_waited_for(device: str) -> Any:
    tensor = numbers(device, 3)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    work.wait()
    return tensor, doubled, work.is_completed(), work.is_success()


def groups_of_some_processes(device: str) -> Any:
    alone, turned = dist.new_group([0]), dist.new_group([1, 0])
    tensor = numbers(device, 3)
    if dist.get_rank() == 0:
        dist.all_reduce(tensor, group=alone)
    dist.broadcast(tensor, 1, group=turned)
    return tensor, dist.get_rank(turned)


def barrier_and_coalesced(device: str) -> Any:
    dist.barrier()
    first, second = numbers(device, 3), numbers(device, 2)
    dist.all_reduce_coalesced([first, second])
    return first, second


def collectives_have_gradients(device: str) -> Any:
    x = numbers(device, 3, requires_grad=True)
    with warnings.catch_warnings(action="ignore"):
        y, z = differentiable.all_reduce(x * 2), torch.cat(differentiable.all_gather(x))
    (y.sum() + (z * z).sum()).backward()
    return y, z, x.grad


def functional_collectives(device: str) -> Any:
    x, group = numbers(device, 4), dist.group.WORLD
    results = [
        functional.all_reduce(x, "sum", group),
        functional.all_gather_tensor(x, 0, group),
        functional.reduce_scatter_tensor(x, "sum", 0, group),
        functional.broadcast(x, 1, group),
        functional.all_to_all_single(x, None, None, group),
        *functional.all_reduce_coalesced([x, x * 2], "sum", group),
    ]
    return [functional.wait_tensor(result) + 0 for result in results]


def views_are_written_through(device: str) -> Any:
    tensor = numbers(device, 4, 4)
    if device == "cpu":  # gloo reads a view as if it were contiguous
        part = tensor[1:3, ::2].contiguous()
        dist.all_reduce(part)
        tensor[1:3, ::2] = part
        return tensor
    dist.all_reduce(tensor[1:3, ::2])
    return tensor


def autograd_does_not_see_writes(device: str) -> Any:
    weight = numbers(device, 4, 2, requires_grad=True)
    parts = weight.chunk(2)
    dist.broadcast(weight.detach(), 0)
    parts[1].sum().backward()
    return weight.grad, weight._version


def parts_without_elements_are_gathered(device: str) -> Any:
    gathered = torch.empty(0, 3, device=device)
    dist.all_gather_into_tensor(gathered, torch.empty(0, 3, device=device))
    return gathered


def what_does_not_fit_is_refused(device: str) -> Any:
    three, four = torch.zeros(3, device=device), torch.zeros(4, device=device)
    other = torch.zeros(3, device=device, dtype=torch.float64)
    return (
        raised(lambda: dist.all_gather([three, four], three)),
        raised(lambda: dist.all_gather([three, other], three)),
        raised(lambda: dist.all_gather([three], three)),
        raised(lambda: dist.all_gather_into_tensor(four, three)),
        *_refusals(device, three, four),
    )


def _refusals(device: str, tensor: torch.Tensor, other: torch.Tensor) -> tuple[str, ...]:
    """What gloo hangs in, ends the process for, or serves."""
    if device == "cpu":
        return "RuntimeError", "RuntimeError", "ValueError", "NotImplementedError"
    group, options = dist.group.WORLD, dist.distributed_c10d.AllreduceOptions()
    return (
        raised(lambda: dist.reduce_scatter(tensor, [tensor, other])),
        raised(lambda: dist.all_to_all_single(tensor, tensor)),
        raised(lambda: dist.send(tensor, 99)),
        raised(lambda: group.allreduce([tensor.to_sparse()], options)),
    )


def a_collective_in_a_recorded_function(device: str) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def lazily(x: torch.Tensor) -> torch.Tensor:
        with torch_jax.lazy():
            return step(x)

    recorded = torch_jax.jit(step) if device == "jax" else step
    runs = (recorded, recorded, recorded, lazily if device == "jax" else step)
    return [run(numbers(device, 3) + at) for at, run in enumerate(runs)]
