"""The public names: the same for Python as for editors and type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torch_jax

PUBLIC = """
    DataDependentError DeviceLoader Environment JaxInterpreter MasterWeights NotTraceableError
    OperatorNotFound VerificationError call_jax checkpoint_name checkpoint_policy config
    default_env explain export from_jax from_jax_function functional fused generate_loop
    initialize is_jax_module jit last_checkpoint lazy load_functional load_orbax lower mark_step
    matmul_precision memory_report mesh metrics nn_from_flax nnx_from_torch optim pallas_op plan
    profile register_op report reset_metrics save_orbax scan_layers shard spawn sync to_jax
    to_jax_function trace_ops where_is with_sharding_constraint
"""
USER = """
import torch_jax
from torch import Tensor, nn

@torch_jax.jit
def step(x: Tensor, scale: float) -> Tensor:
    return x * scale

reveal_type(step)
reveal_type(step(Tensor(), 2.0))
reveal_type(torch_jax.jit(nn.Linear(2, 2)))
reveal_type(torch_jax.jit(donate=False)(step))
step("no tensor")
torch_jax.jit(step, donates=False)
torch_jax.no_such_name
"""


def declared() -> dict[str, str]:
    """What the block for type checkers imports: names, and the modules they come from."""
    tree = ast.parse(Path(torch_jax.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names:
            assert alias.asname == alias.name  # which is what makes a name public
            module = node.module if node.module != "torch_jax" else f"torch_jax.{alias.name}"
            found[alias.name] = module.removeprefix("torch_jax.")
    return found


def test_names_are_declared_as_they_are_loaded():
    assert declared() == torch_jax._LAZY


def test_public_names():
    assert sorted(torch_jax._LAZY) == sorted(PUBLIC.split())
    for name in torch_jax._LAZY:
        assert getattr(torch_jax, name) is not None and name in dir(torch_jax)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torch_jax.no_such_name


@pytest.mark.slow
def test_type_checkers_know_signatures(tmp_path):
    program = tmp_path / "user.py"
    program.write_text(USER)
    # by the project's settings and in its folder: `make lint` has filled the cache of mypy there
    root = Path(torch_jax.__file__).parent.parent
    command = [sys.executable, "-m", "mypy", "--check-untyped-defs", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    lines = [line.partition("user.py:")[2] for line in done.stdout.splitlines()]
    for expected in (
        "jit.Jitted[[x: torch._tensor.Tensor, scale: float], torch._tensor.Tensor]",
        'note: Revealed type is "torch._tensor.Tensor"',
        'note: Revealed type is "torch.nn.modules.linear.Linear"',
    ):
        assert any(expected in line for line in lines), done.stdout
    errors = [line for line in lines if " error: " in line]
    assert len(errors) == 4, done.stdout  # a missing and a wrong argument, an option, a name
