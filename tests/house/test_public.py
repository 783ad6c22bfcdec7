"""The public names: the same for Python as for editors and type checkers.

``what_users_write.py`` holds what type checkers say of them, by ``make lint``.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torch_jax

PUBLIC = """
    DataDependentError DeviceLoader Environment JaxInterpreter MasterWeights NotTraceableError
    OperatorNotFound VerificationError call_jax checkpoint_name checkpoint_policy compile_for config
    default_env explain export from_jax from_jax_function functional fused generate_loop
    initialize is_jax_module jit last_checkpoint lazy load_functional load_orbax lower mark_step
    matmul_precision memory_report mesh metrics nn_from_flax nnx_from_torch optim pallas_op
    profile register_op report reset_metrics save_orbax scan_layers shard spawn sync to_jax
    to_jax_function trace_ops where_is with_sharding_constraint
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
