"""A spawned process uses the device, and its parent never does."""

import torch
import torch.multiprocessing as mp


def work(queue, x):
    queue.put((torch.ones(2, device="jax") + x.to("jax")).tolist())


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue, torch.ones(2)))
    child.start()
    print(queue.get())
    child.join()
    assert child.exitcode == 0
