"""Children forked before and after a process has used the device: their findings, as JSON."""

import gc
import json
import os
import sys
import time

import torch

import torch_jax
from torch_jax.memory import generators


def forked(work, limit=60):
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # it ends as every Python program ends, but tells its result first
        os.write(write, json.dumps(work()).encode())
        os.close(write)
        sys.exit(5)
    os.close(write)
    for _ in range(10 * limit):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return json.loads(os.read(read, 1 << 16)), os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs", None


results = {}
results["unused"] = forked(
    lambda: [(torch.ones(2, device="jax") + 1).tolist(), torch.jax._is_in_bad_fork()]
)

x = torch.ones(2, 3, device="jax") + 1
parameter = torch.nn.Parameter(torch.ones(3, device="jax"))
double, new = torch_jax.jit(lambda a: a * 2), torch_jax.jit(lambda a: a * 3)
entrances = {
    "ones": lambda: torch.ones(2, device="jax"),
    "empty": lambda: torch.empty(0, device="jax"),
    "tensor": lambda: torch.tensor([1.0], device="jax"),
    "rand": lambda: torch.rand(2, device="jax"),
    "an operator that is hot": lambda: x + 1,
    "an operator that is new": lambda: torch.erfinv(x),
    "an operator on a part": lambda: x[:, 1] * 2,
    "in place": lambda: x.add_(1),
    "foreach": lambda: torch._foreach_mul([x], 2.0),
    "a decomposition": lambda: torch.nn.functional.silu(x),
    "copy_": lambda: x.copy_(torch.ones(2, 3)),
    "cpu": lambda: x.cpu(),
    "cpu of a part": lambda: x.t()[1:].cpu(),
    "item": lambda: x[0, 0].item(),
    "tolist": lambda: x.tolist(),
    "repr": lambda: repr(x),
    "to": lambda: torch.ones(2).to("jax"),
    "a module": lambda: torch.nn.Linear(2, 2).to("jax"),
    "backward": lambda: (parameter * 2).sum().backward(),
    "jit that is hot": lambda: double(x),
    "jit that is new": lambda: new(x),
    "a storage": lambda: torch.UntypedStorage(3, device="jax"),
    "synchronize": torch.jax.synchronize,
    "memory": torch.jax.memory_allocated,
    "init": torch.jax.init,
    "fold_in": lambda: torch.jax.fold_in(1),
}
harmless = {
    "shape": lambda: list(x.t().shape),
    "manual_seed": lambda: torch.manual_seed(3).initial_seed(),
    "state": lambda: torch.jax.get_rng_state().numel(),
    "on the CPU": lambda: torch.ones(2).add(1).tolist(),
    "a module": lambda: torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape[1],
}


def enter():
    told = {}
    for name, call in entrances.items():
        try:
            told[name] = f"gave {call()!r}"
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told


for name, call in entrances.items():  # all of them are hot here, but for those that are new
    if "new" not in name:
        call()
results["entrances"] = forked(enter)
results["harmless"] = forked(lambda: {name: call() for name, call in harmless.items()})
results["state"] = forked(lambda: [torch.jax._is_in_bad_fork(), torch.jax.is_initialized()])


def delete():
    global x, parameter, busy
    del x, parameter, busy
    double.clear_cache()
    gc.collect()
    return "deleted"


busy = torch.ones(500, 500, device="jax")
for _ in range(40):
    busy = busy @ busy * 1e-3
results["delete"] = forked(delete)

with generators.default_generator._lock:  # as a thread of the parent's may hold it
    results["lock"] = forked(lambda: generators.default_generator.manual_seed(0).draw().tolist())


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.tensor(float(i)) ** 2 + 0 * torch.rand(())


loader = torch.utils.data.DataLoader(
    Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork"
)
batches = []
for batch in loader:
    batches.append((batch.to("jax") + 1).tolist())
results["loader"] = batches


def twice():
    return forked(lambda: enter()["ones"])


results["grandchild"] = forked(twice)
results["parent"] = (torch.ones(2, device="jax") + 1).tolist()
print(json.dumps(results))
