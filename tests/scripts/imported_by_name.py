"""Functions that a program has copied from modules before it uses the device act as those there."""

import sys

import torch

from torch_jax._private import pytorch
from torch_jax.core import patching

copies = {target: patching._owner(target)[0].now for target in patching.BY_NAME}
taken = {}
for target in patching.BY_NAME:
    module, _, name = target.rpartition(".")
    scope = {}
    exec(f"from {module} import {name}", scope)
    taken[target] = scope[name]

# no module of PyTorch's has the original itself, but those of C
originals = {id(value): target for target, value in copies.items()}
held = [
    (name, originals[id(value)])
    for name, module in list(sys.modules.items())
    if name.startswith("torch.") and not name.startswith("torch._C")
    for value in list(vars(module).values())
    if id(value) in originals
]
assert not held, held

assert pytorch._script_name(torch.autograd.grad) == "aten::grad"

x = torch.ones(2, device="jax")
import torch_jax  # noqa: E402

torch_jax.jit(torch.sin)(x)
for row in patching.PATCHES.values():
    if row.when in (patching.AT_FIRST_USE, patching.AT_FIRST_JIT) and not row.is_registration:
        owner, name = patching._owner(row.target)
        behind = getattr(owner, name)
        if row.target in taken:
            assert behind is not copies[row.target], row.target
            module, _, name = row.target.rpartition(".")
            assert taken[row.target] is getattr(sys.modules[module], name), row.target
        elif isinstance(owner, type(sys)):  # private ones, which programs do not copy
            assert "._" in row.target or owner.__name__.startswith("jaxlib"), row.target

to_dlpack, from_dlpack = taken["torch.utils.dlpack.to_dlpack"], taken["torch.from_dlpack"]
assert (from_dlpack(to_dlpack(x)) + 1).tolist() == [2, 2]
assert from_dlpack(x).device.type == "jax"


@torch_jax.jit
def seeded(x):
    taken["torch.random.manual_seed"](3)
    return x + 1


seeded(x)
torch.rand(1)
seeded(x)
first = torch.rand(1)
seeded(x)
assert torch.equal(torch.rand(1), first)
print("all act")
