"""Other processes: forked, spawned, sent tensors; and how a process ends."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.compare import assert_same

FORKS = """
import json, os, sys, threading, time, warnings
warnings.filterwarnings("ignore", "os.fork")  # JAX's warning to all who fork
import torch, torch_jax
from torch_jax import random

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
    import gc; gc.collect()
    return "deleted"

busy = torch.ones(500, 500, device="jax")
for _ in range(40):
    busy = busy @ busy * 1e-3
results["delete"] = forked(delete)

with random.default_generator._lock:  # as a thread of the parent's may hold it
    results["lock"] = forked(lambda: random.default_generator.manual_seed(0).draw().tolist())

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.tensor(float(i)) ** 2 + 0 * torch.rand(())

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
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory) -> dict[str, Any]:
    """What a process saw that forked children before and after it had used the device."""
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork on this platform")
    done = _run(tmp_path_factory.mktemp("forks"), FORKS)
    assert done.stderr == "" and done.returncode == 0
    return json.loads(done.stdout)


def _run(directory, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = directory / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.slow
def test_a_fork_before_the_device_is_used_is_like_any_process(forks):
    assert forks["unused"] == [[[2.0, 2.0], False], 5]


def test_every_entrance_says_that_a_forked_child_has_no_device(forks):
    told, status = forks["entrances"]
    assert status == 5 and len(told) > 20
    expected = (
        "RuntimeError: Cannot re-initialize jax in forked subprocess. To use jax with "
        "multiprocessing, you must use the 'spawn' start method"
    )
    assert {name: text for name, text in told.items() if not text.startswith(expected)} == {}


def test_the_error_is_that_of_cuda():
    source = (torch.cuda._lazy_init.__code__.co_consts, torch.cuda._lazy_init.__doc__)
    assert "Cannot re-initialize CUDA in forked subprocess. To use CUDA with " in str(source)


def test_a_forked_child_does_what_needs_no_device(forks):
    told, status = forks["harmless"]
    assert status == 5
    assert told == {
        "shape": [3, 2], "manual_seed": 3, "state": 16, "on the CPU": [2.0, 2.0], "a module": 2
    }  # fmt: skip
    assert forks["state"] == [[True, False], 5]


def test_a_forked_child_lets_inherited_tensors_go(forks):
    assert forks["delete"] == ["deleted", 5]


def test_locks_are_fresh_in_a_forked_child(forks):
    assert forks["lock"] == [[0, 0, 0, 0], 5]


def test_workers_of_data_loaders_may_be_forked(forks):
    assert forks["loader"] == [[1.0, 2.0], [5.0, 10.0]]


def test_children_of_children_and_the_parent(forks):
    (told, status), outer = forks["grandchild"]
    assert "Cannot re-initialize jax" in told and (status, outer) == (5, 5)
    assert forks["parent"] == [2.0, 2.0]


# --- sending tensors ------------------------------------------------------------------------------


def _sent(value: Any) -> Any:
    """What arrives of a value that is sent to another process."""
    return pickle.loads(ForkingPickler.dumps(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_what_arrives_is_what_was_sent(dtype):
    base = torch.arange(12).view(3, 4).to(dtype)
    for cpu in (base, base.t(), base[1:, ::2], base[:0], base[0, 0]):
        assert_same(_sent(cpu.to("jax")), cpu.contiguous() if cpu.numel() < 2 else cpu.clone())


def test_parameters_ties_and_views_arrive_as_such():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.to("jax")
    got, view = _sent((model, model[0].weight.detach()[1]))
    assert got[0].weight is got[1].weight and got[0].weight.is_jax
    assert isinstance(got[0].weight, nn.Parameter) and got[0].weight.requires_grad
    assert not got[0].bias.requires_grad
    for name, value in model.state_dict().items():
        assert_same(got.state_dict()[name], value.cpu())
    with torch.no_grad():
        got[0].weight.fill_(7.0)
    assert view.tolist() == [7.0, 7.0]  # they share memory there as they do here
    assert model[0].weight.max().item() < 7  # but it is a copy


def test_results_of_autograd_are_not_sent():
    results = []
    for device in ("cpu", "jax"):
        x = torch.ones(2, device=device, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match="Cowardly refusing to serialize") as error:
            _sent(x)
        results.append(str(error.value))
    assert results[0] == results[1]


SPAWN = """
import torch, torch.multiprocessing as mp
from torch import nn

def double(x):
    return (x * 2).detach(), x.requires_grad, x.device.type, isinstance(x, nn.Parameter)

def work(rank, inbox, outbox, model, tensors):
    x = inbox.get(timeout=100)
    y = model(x)
    y.sum().backward()
    tensors["base"].fill_(9.0)
    outbox.put({
        "y": y.detach(), "gradient": model.weight.grad, "weight": model.weight,
        "view": tensors["view"], "rank": rank,
    })
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
"""


@pytest.mark.slow
def test_spawned_processes_are_sent_tensors_and_send_them_back(tmp_path):
    done = _run(tmp_path, SPAWN)
    assert (done.returncode, done.stderr) == (0, "")


# --- the end of a process -------------------------------------------------------------------------

# as threads are, each script ends while something is alive that could be in the way
END = """
import atexit, sys, threading
import torch, torch_jax

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
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["daemons", "waits", "exit"])
def test_a_process_ends_well(how, tmp_path):
    done = _run(tmp_path, END, how)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[1.0, 1.0] 200 True\n"


WAKING = """
import threading
import torch

def compute():
    x = torch.ones(20, 20, device="jax")
    while True:
        x = (x @ x).tanh()

for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
"""


@pytest.mark.slow
def test_a_process_ends_well_while_daemons_import_jax(tmp_path):
    done = _run(tmp_path, WAKING)
    assert (done.returncode, done.stderr) == (0, "")
