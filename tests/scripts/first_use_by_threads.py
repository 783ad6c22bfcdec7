"""Threads race for the first use of the device."""

import threading

import torch

done = [None] * 4


def work(i):
    done[i] = (torch.ones(2, device="jax") * i).tolist()


threads = [threading.Thread(target=work, args=(i,)) for i in range(len(done))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(done)
