"""One rank: runs the checks of modules and writes the differences, as JSON."""

import importlib
import json
import sys
import warnings

import torch
import torch.distributed as dist

from tests.distributed import checks

warnings.simplefilter("ignore", FutureWarning)
torch.set_num_threads(1)
file, *modules = sys.argv[1:]
dist.init_process_group("jax")
found = {}
for name in modules:
    module = importlib.import_module(f"tests.distributed.checks.{name}")
    for check in checks.names_of(module):
        found[check] = checks.difference(getattr(module, check))
with open(f"{file}.{dist.get_rank()}", "w") as out:
    json.dump(found, out)
dist.destroy_process_group()
