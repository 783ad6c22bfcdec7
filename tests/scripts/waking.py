"""A process that ends while its threads import JAX."""

import threading

import torch


def compute():
    x = torch.ones(20, 20, device="jax")
    while True:
        x = (x @ x).tanh()


for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
