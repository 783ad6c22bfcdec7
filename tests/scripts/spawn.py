"""Spawned processes are sent tensors and models, and send tensors back."""

import torch
import torch.multiprocessing as mp
from torch import nn


def double(x):
    return (x * 2).detach(), x.requires_grad, x.device.type, isinstance(x, nn.Parameter)


def work(rank, inbox, outbox, model, tensors):
    x = inbox.get(timeout=100)
    y = model(x)
    y.sum().backward()
    tensors["base"].fill_(9.0)
    outbox.put(
        {
            "y": y.detach(),
            "gradient": model.weight.grad,
            "weight": model.weight,
            "view": tensors["view"],
            "rank": rank,
        }
    )
    outbox.close()
    outbox.join_thread()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    base = torch.arange(4.0, device="jax")
    model = nn.Linear(4, 2).to("jax")
    inbox, outbox = context.Queue(), context.Queue()
    inbox.put(base)
    arguments = inbox, outbox, model, {"base": base, "view": base[1:3]}
    running = mp.spawn(work, arguments, nprocs=1, join=False)
    with context.Pool(1) as pool:
        sent = [base, nn.Parameter(base), base.cpu()]
        results = pool.map(double, sent)
    assert [r[0].tolist() for r in results] == [[0.0, 2.0, 4.0, 6.0]] * 3, results
    kinds = [(False, "jax", False), (True, "jax", True), (False, "cpu", False)]
    assert [r[1:] for r in results] == kinds, results
    got = outbox.get(timeout=100)
    while not running.join():
        pass
    expected = model.cpu()(base.cpu())
    torch.testing.assert_close(got["y"].cpu(), expected.detach())
    expected.sum().backward()
    torch.testing.assert_close(got["gradient"].cpu(), model.weight.grad)
    assert isinstance(got["weight"], nn.Parameter) and got["weight"].is_jax
    assert got["view"].tolist() == [9.0, 9.0], got
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0], base  # the child had a copy
