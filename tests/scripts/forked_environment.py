"""Children of a process with an environment, forked before and after its first use of the device.

Prints, for both, where the child and then the parent make tensors, as JSON.
"""

import json
import os

import torch

import torch_jax

env = torch_jax.default_env()
env.enable_globally()


def forked():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps([torch.ones(2).device.type, env.enabled]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(os.read(read, 1 << 16))


unused = forked(), torch.ones(2).device.type
used = forked(), torch.ones(2).device.type
print(json.dumps([unused, used]))
