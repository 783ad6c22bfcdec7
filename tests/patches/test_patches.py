"""Every replacement is needed: without it the fault shows, and with it there is none.

A row whose fault no longer shows is one that PyTorch has made superfluous. A row that is not in
place names something that this PyTorch has moved.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types

import pytest
import torch

import torch_jax
from tests.patches import (
    needs_of_jit,
    needs_of_libraries,
    needs_of_profiles,
    needs_of_tensors,
)
from tests.patches.needs import NEEDS, Works, ones
from torch_jax.core import patching, trees
from torch_jax.integrations import install as integrations

FILES = needs_of_jit, needs_of_libraries, needs_of_profiles, needs_of_tensors  # enter rows
# What ends the process, or hangs on the order of imports: programs of their own, in which the first
# line that is empty is where the original comes back.
ELSEWHERE = {
    "torch.distributed.Logger.set_runtime_stats_and_log": """
import os, tempfile, torch
file = tempfile.NamedTemporaryFile()
where = {"init_method": f"file://{file.name}.group", "rank": 0, "world_size": 1}
torch.distributed.init_process_group("jax", **where)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("jax"))

errors = os.dup(2)
os.dup2(file.fileno(), 2)
for _ in range(3):
    model(torch.ones(1, 2, device="jax")).sum().backward()
os.dup2(errors, 2)
assert "Time stats" not in open(file.name).read()
""",
    "torch.UntypedStorage.__new__": """
import torch
x = torch.ones(1, device="jax")

torch.UntypedStorage(3, device="jax").nbytes()
""",
    "torch._C._accelerator_emptyHostCache": """
import torch
x = torch.ones(1, device="jax")

torch.accelerator.empty_host_cache()
""",
    "torch.autograd.Variable._execution_engine": """
import torch
x = torch.ones(2, device="jax", requires_grad=True)

x.register_hook(lambda gradient: 1 / 0)
try:
    x.sum().backward()
except ZeroDivisionError:
    pass
""",
    "torch._functorch.predispatch._vmap_increment_nesting_impl": """
import torch, warnings
x = torch.ones(2, 3, device="jax")

warnings.filterwarnings("error", message=".*performance drop")
torch.vmap(torch.special.log_ndtr)(x)
""",
    "torch._C._functorch._vmap_increment_nesting": """
import torch, warnings
x = torch.ones(2, 3, device="jax")

warnings.filterwarnings("error", message=".*performance drop")
torch.compile(torch.vmap(torch.special.log_ndtr), backend="jax", fullgraph=True)(x)
""",
    "jaxlib.xla_client.make_cpu_client": """
import os
os.environ["XLA_FLAGS"] = " ".join((
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=2",
    "--xla_cpu_collective_call_terminate_timeout_seconds=4",
))
from torch_jax.core import waking
waking.wake()

import jax, torch
torch.ones(1, device="jax")
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
sharding = jax.NamedSharding(mesh, jax.P("x"))

@jax.jit
def product(x):
    for _ in range(3):
        x = x @ x * 0.01
    return x + x.sum(0)

x = jax.device_put(jax.numpy.ones((8, 100, 100)), sharding)
jax.block_until_ready([product(x) for _ in range(500)])
""",
    "torch._dynamo.trace_rules.get_torch_obj_rule_map": """
import torch
import torch_jax
torch_jax.config.set("redirect_cuda", True)
torch_jax.default_env().enable_globally()
import torch._dynamo

double = torch.compile(lambda x: x * torch.cuda.device_count(), backend="jax", fullgraph=True)
double(torch.ones(2, device="cuda"))
""",
}
# What cannot be taken away for a block: Dynamo has no way to, and schedulers, of which programs
# define new classes, are looked for at each trace. tests/graphs, tests/capture show them at work.
FOR_GOOD = {
    "torch.optim.lr_scheduler.LRScheduler",
    "torch._dynamo.config",
    "torch._dynamo.device_interface.register_interface_for_device",
    "torch._dynamo.trace_rules.add",
}


@pytest.fixture(scope="module", autouse=True)
def all_patches():
    """All are in place; what earlier tests have left is passed over by the collections below."""
    torch_jax.jit(torch.sin).lower(ones(1))
    torch._dynamo.reset()  # it is imported now
    trees.flatten(torch.Size([1]))
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def fails(works: Works) -> bool:
    try:
        return not works()
    except Exception:
        return True
    finally:  # frames of the error hold PyTorch's guards, which would stay in force
        gc.collect()


def test_every_row_is_in_place_and_tested():
    # tests/integrations has those of libraries that train, whose imports take long
    rows = {name for name, row in patching.PATCHES.items() if row.when not in integrations.FILES}
    assert patching.in_place() >= rows
    assert rows == NEEDS.keys() | ELSEWHERE.keys() | FOR_GOOD
    for row in patching.PATCHES.values():
        assert row.why and row.when and row.since, row


def _is_dear(target: str) -> bool:
    """Whether its proof takes many seconds: each profile does."""
    return target.startswith("torch.autograd.profiler.")


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=pytest.mark.slow) if _is_dear(t) else t for t in NEEDS]
)
@pytest.mark.usefixtures("eager_by_xla")  # as on accelerators, which need them all
def test_a_replacement_is_needed(target):
    assert NEEDS[target]()
    with patching.without(target):
        assert fails(NEEDS[target]), f"{target} works without its replacement: drop it"
    assert NEEDS[target]()


@pytest.mark.parametrize("target", ELSEWHERE)
@pytest.mark.slow
def test_a_program_fails_without_a_replacement(target):
    program = ELSEWHERE[target].strip() + "\n"
    without = f"""
from torch_jax.core import backward, patching
block = patching.without({target!r})
block.__enter__()  # an object that nobody holds would leave the block at once
"""
    assert runs(program)
    assert not runs(program.replace("\n\n", without, 1))


def runs(program: str) -> bool:
    """Whether a new process ends well; torch_jax is imported where the program says."""
    by_hand = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if "import torch_jax" in program else {}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | by_hand, timeout=120)
    return done.returncode == 0


def test_what_wraps_a_replacement_is_there_again_after_a_block_without_it(monkeypatch):
    parallel = sys.modules[torch.nn.DataParallel.__module__]
    name = "_get_available_device_type"
    replacement = getattr(parallel, name)
    monkeypatch.setattr(parallel, name, lambda: replacement())
    wrapper = getattr(parallel, name)
    with patching.without(f"torch.nn.parallel.data_parallel.{name}"):
        assert getattr(parallel, name) not in (wrapper, replacement)
    assert getattr(parallel, name) is wrapper


def test_a_patch_that_comes_after_its_moment_is_put_in_place(monkeypatch):
    """An export passes the moment of the first jit, before the module of jit is imported."""
    library = types.ModuleType("library")
    library.double = lambda x: x + x
    monkeypatch.setitem(sys.modules, "library", library)
    patching.apply("a moment")

    @patching.patch("library.double", "a moment")
    def _patch(original):
        """Give a sum in words."""
        return lambda x: f"{original(x)}"

    try:
        assert library.double(2) == "4"
    finally:
        del patching.PATCHES["library.double"]
        patching._undo.pop("library.double")
        patching._passed.discard("a moment")
