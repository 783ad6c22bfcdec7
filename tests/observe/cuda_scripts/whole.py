"""A program with arguments, a child process, slow lines, and an error at its end."""

import os
import sys

import torch
import torch.multiprocessing as mp
from torch import nn


class Uneven(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.ones(1, device="cuda")


def child(rank, results):
    torch.cuda.set_device(rank)
    results.put(torch.cuda.is_available() and (torch.ones(2).cuda(rank) * 3).sum().item())


def draw(concentration):
    return torch.distributions.Dirichlet(concentration).rsample()


def train(model, x):
    total = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()  # waits at each step
    return total


def main():
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(child, args=(results,), nprocs=1)
    print(sys.argv[1:], __name__, sys.path[0] == os.path.dirname(os.path.realpath(__file__)))
    print("child", results.get())
    x = torch.randn(4, 8).cuda()
    print(train(nn.Linear(8, 2).cuda(), x) > 0)
    for n in range(1, 12):
        torch.ones(n, device="cuda").mul_(2)  # a new shape each time
    draw(torch.ones(3, requires_grad=True).cuda()).sum().backward()
    try:
        next(iter(torch.utils.data.DataLoader(Uneven(), num_workers=1)))
    except RuntimeError as error:
        print("let the data set return CPU tensors" in str(error))
    raise ValueError("at the end")


if __name__ == "__main__":
    main()
