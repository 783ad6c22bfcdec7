"""A process that ends while things are alive that could be in the way, as threads are."""

import atexit
import sys
import threading

import torch

import torch_jax

weight = torch.nn.Parameter(torch.ones(200, 200, device="jax"))
step = torch_jax.jit(lambda x: (x @ weight).sum())
started = threading.Event()


def compute():
    x = torch.ones(200, 200, device="jax")
    while True:
        step(x)
        x = (x @ x * 1e-3).relu() + torch.rand(200, 200, device="jax")
        started.set()


def leave():
    torch.ones(2, device="jax").add(1).tolist()
    sys.exit(7)


def last():
    graph.backward()
    print(torch.ones(2, device="jax").tolist(), weight.grad.shape[0], step(weight).item() > 0)


graph = (weight * 2).sum()
step(torch.ones(200, 200, device="jax"))
atexit.register(last)
leaving = threading.Thread(target=leave)
leaving.start()
leaving.join()
if sys.argv[1] == "daemons":
    for _ in range(3):
        threading.Thread(target=compute, daemon=True).start()
    started.wait()
elif sys.argv[1] == "waits":  # for a thread that goes on when the main one is done
    threading.Thread(target=lambda: [step(weight) for _ in range(20)]).start()
pending = weight.detach()
for _ in range(30):
    pending = pending @ pending * 1e-3
if sys.argv[1] == "exit":
    sys.exit(0)
