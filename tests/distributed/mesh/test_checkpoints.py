"""Checkpoints of tensors over eight devices, loaded with other shardings and by other means."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
import types
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.torch as st
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import format_utils
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

import torch_jax
from tests.distributed.mesh.on_mesh import (
    RULES,
    Net,
    adamw,
    grid,
    on_data,
    same,
    says,
    shard,
    spec,
    train,
)


def folder() -> str:
    """A folder that goes with the process."""
    return tempfile.mkdtemp(dir=_FOLDERS.name)


_FOLDERS = tempfile.TemporaryDirectory()


def state() -> dict[str, Any]:
    """Tensors of many kinds, on the CPU."""
    a = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    dtypes = torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.float64, torch.uint8
    kinds = {str(dtype): (a * 9).abs().to(dtype) for dtype in dtypes}
    kinds["wide"], kinds["long"] = a.double() / 3, a.long() + 2**40 + 1
    return {"a": a, "b": a + 1, "nested": [{"c": a * 2}, 3], "word": "x", **kinds}


def sharded(tensors: Any, *parts: Any) -> Any:
    """The same with its tensors over the mesh."""
    if isinstance(tensors, dict):
        return {name: sharded(value, *parts) for name, value in tensors.items()}
    if isinstance(tensors, list):
        return [sharded(value, *parts) for value in tensors]
    return shard(tensors, *parts) if isinstance(tensors, torch.Tensor) else tensors


def zeros(tensors: Any) -> Any:
    """The same with zeros on the CPU."""
    if isinstance(tensors, dict):
        return {name: zeros(value) for name, value in tensors.items()}
    if isinstance(tensors, list):
        return [zeros(value) for value in tensors]
    if isinstance(tensors, torch.Tensor):
        return torch.empty(tensors.shape, dtype=tensors.dtype, device="cpu").zero_()
    return type(tensors)()


def equal(found: Any, expected: Any) -> None:
    """The very values, wherever they are."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    if isinstance(expected, dict | list):
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            equal(found[key], expected[key])
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found.cpu(), expected.cpu())
    else:
        assert found == expected, (found, expected)


# --- copies in parts ------------------------------------------------------------------------------


@pytest.mark.slow
def test_copies_of_views_go_by_parts():
    """Between the CPU and tensors in parts, for every kind of view."""
    boxes = (
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:],
        lambda t: t[3],
        lambda t: t[2:5, 1:3],
        lambda t: t[2, 3],
        lambda t: t.t()[1:2].unsqueeze(1),
        lambda t: t[:0],
    )
    others = (
        lambda t: t[::2],
        lambda t: t.reshape(4, 16),
        lambda t: t.flatten()[3:7],
        lambda t: t.diagonal(),
    )
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        for parts in (("data", "model"), (None, "data"), (("data", "model"),), ()):
            expected = torch.randn(8, 8).to(dtype)
            x = shard(expected, *parts)
            for view in boxes if dtype != torch.float32 else boxes + others:
                theirs, ours = view(expected), view(x)
                equal(ours, theirs)
                assert ours.cpu().stride() == torch.empty_like(theirs).stride()
                new = torch.randn(theirs.shape).to(dtype)
                theirs.copy_(new)
                ours.copy_(new)
                equal(x, expected)
                assert len(x.untyped_storage().array.addressable_shards) == 8
            equal(x[0].unfold(0, 3, 1), expected[0].unfold(0, 3, 1))
            equal(x.flatten().unfold(0, 8, 4), expected.flatten().unfold(0, 8, 4))
    conjugate = x.conj()
    conjugate.copy_(new := torch.randn(8, 8).to(x.dtype))
    equal(x, new.conj().resolve_conj())
    says(RuntimeError, "[Bb]roadcast|must match the size", lambda: x.copy_(torch.ones(3, 8)))
    x.copy_(torch.arange(8.0))  # broadcast, and cast
    equal(x, torch.arange(8.0).expand(8, 8).to(x.dtype))


@pytest.mark.slow
def test_accelerators_are_sent_slices_and_send_slices():
    """As :func:`copies_of_views_go_by_parts`, where a part is not in host memory."""
    expected = torch.arange(64.0).view(8, 8)
    x = shard(expected, "data", "model")
    with unittest.mock.patch("torch_jax.target.on_cpu", lambda: False):
        for view in (lambda t: t[1:6, 3:], lambda t: t.t()[2], lambda t: t[7, 7], lambda t: t):
            equal(view(x), view(expected))
            new = torch.randn(view(expected).shape)
            view(expected).copy_(new)
            view(x).copy_(new)
            equal(x, expected)


@pytest.mark.slow
def test_no_memory_of_whole_size_is_made():
    """Saving and loading 128 MB in 8 parts takes no more than the parts that are on the way."""
    mesh, where = torch_jax.mesh(data=8), folder()
    layer = nn.Linear(4096, 8192, bias=False, device="meta")
    torch_jax.shard(layer, mesh, ("data",), init=lambda module: module.weight.data.fill_(3))
    dcp.save({"warm": shard(torch.ones(8), "data")}, checkpoint_id=f"{where}/warm")
    total = layer.weight.numel() * 4
    ctypes.CDLL(None).mallopt(-3, 1 << 20)  # what is freed goes back to the system
    before = rest()
    dcp.save(layer.state_dict(), checkpoint_id=f"{where}/x")
    assert peak() - before < 0.7 * total, (peak() - before, total)
    layer.weight.data.zero_()
    before = rest()
    dcp.load(layer.state_dict(), checkpoint_id=f"{where}/x")
    assert peak() - before < 0.7 * total, (peak() - before, total)
    assert layer.weight[5000, 7].item() == 3


def rest() -> int:
    """Bytes of the process, from where its peak is counted anew.

    Programs that are still running would take theirs later, and be counted as what comes after.
    """
    torch.jax.synchronize()
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most bytes of memory that the process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":") for line in lines)["VmHWM"].split()[0]) << 10


# --- torch.distributed.checkpoint -----------------------------------------------------------------


def test_checkpoints_hold_each_part_once():
    for parts, count in ((("data", "model"), 8), (("model",), 2), ((), 1), ((None, "data"), 4)):
        saved = dcp.save(sharded(state(), *parts), checkpoint_id=folder())
        for name, tensor in saved.state_dict_metadata.items():
            chunks = getattr(tensor, "chunks", None)
            assert chunks is None or len(chunks) == count, (parts, name)


@pytest.mark.slow
def test_checkpoints_are_loaded_with_other_shardings():
    for source in (("data", "model"), (("model", "data"),), ()):
        where = folder()
        dcp.save(sharded(state(), *source), checkpoint_id=where)
        for target in (("data", "model"), (None, ("data", "model")), ("model",), (), None):
            given = zeros(state())
            found = given if target is None else sharded(given, *target)
            kept = found["nested"][0]["c"]
            dcp.load(found, checkpoint_id=where)
            equal(found, state())
            equal(kept, state()["nested"][0]["c"])
            if target is not None:
                assert spec(kept) == spec(shard(torch.ones(8, 8), *target))
    where = folder()
    dcp.save(state(), checkpoint_id=where)  # of the CPU, in one piece
    found = sharded(zeros(state()), "data", "model")
    dcp.load(found, checkpoint_id=where)
    equal(found, state())


@pytest.mark.slow
def test_checkpoints_take_views_and_aliases():
    where, a = folder(), torch.arange(64.0).view(8, 8)

    def views(t: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "all": t,
            "same": t,
            "transposed": t.t(),
            "rows": t[1:7],
            "row": t[5],
            "one": t[3, 4],
            "steps": t[::2],
            "other": t.view(4, 16),
            "none": t[:0],
        }

    saved = dcp.save(views(shard(a, "data", "model")), checkpoint_id=where)
    counts = {name: len(value.chunks) for name, value in saved.state_dict_metadata.items()}
    assert counts == {
        "all": 8,
        "same": 8,
        "transposed": 8,
        "rows": 8,
        "row": 2,
        "one": 1,
        "steps": 1,
        "other": 1,
        "none": 1,
    }
    found = zeros(views(a))
    dcp.load(found, checkpoint_id=where)
    equal(found, views(a))
    for name, view in views(a).items():
        x = shard(torch.zeros(8, 8), "data", "model")
        dcp.load({name: views(x)[name]}, checkpoint_id=where)
        expected = torch.zeros(8, 8)
        views(expected)[name].copy_(view)
        equal(x, expected)


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint():
    """From a sharded model with a tie: into others of it, an unsharded, and one on the CPU."""
    torch.manual_seed(0)
    net, where = Net(), folder()
    reference = copy.deepcopy(net)
    train(reference, optimizer := adamw(reference), lambda x: x, count=2)
    torch_jax.shard(net, grid(), RULES)
    train(net, known := adamw(net), on_data, count=2)
    model, optim = get_state_dict(net, known)
    dcp.save({"model": model, "optim": optim}, checkpoint_id=where)
    expected = train(reference, optimizer, lambda x: x, count=2)

    def restored(other: nn.Module, place: Any) -> None:
        one = adamw(other)
        model, optim = get_state_dict(other, one)
        found = {"model": model, "optim": optim}
        dcp.load(found, checkpoint_id=where)
        set_state_dict(other, one, model_state_dict=model, optim_state_dict=found["optim"])
        losses = train(other, one, place, count=2)
        same(torch.tensor(losses), torch.tensor(expected))
        assert other.head.weight is other.emb.weight

    restored(Net(), lambda x: x)
    restored(Net().to("jax"), lambda x: x.to("jax"))
    restored(torch_jax.shard(Net(), grid(), ()), on_data)
    restored(torch_jax.shard(Net(), grid(), {"emb.*": ("data",), "*": ()}), on_data)

    def load(module: nn.Module) -> None:
        dcp.load({"model": module.state_dict()}, checkpoint_id=where)

    with torch.device("meta"):
        deferred = Net()
    torch_jax.shard(deferred, grid(), RULES, init=load)
    assert spec(deferred.up.weight) == ("model", "data")
    restored(deferred, on_data)


@pytest.mark.slow
def test_state_dicts_are_gathered_where_that_is_asked_for():
    torch.manual_seed(0)
    net = Net()
    expected = copy.deepcopy(net.state_dict())
    torch_jax.shard(net, grid(), RULES)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    equal(get_model_state_dict(net, options=whole), expected)
    train(net, optimizer := adamw(net), on_data, count=1)
    found = get_optimizer_state_dict(net, optimizer, options=whole)["state"]
    assert all(t.device.type == "cpu" for one in found.values() for t in one.values())
    equal(found["up.weight"]["exp_avg"], optimizer.state[net.up.weight]["exp_avg"])


@pytest.mark.slow
def test_what_is_written_later_is_not_saved():
    stagers: list[Any] = [None]
    for options in ((False,) * 4, (False, True, True, True), (True,) * 4):
        stagers += [DefaultStager(StagingOptions(*options))]
    for stager in stagers:
        for _ in range(2):  # what was staged before is used again
            where, saved = folder(), sharded(state(), "data", "model")
            future: Any = dcp.async_save(saved, checkpoint_id=where, async_stager=stager)
            if hasattr(future, "staging_completion"):
                future.staging_completion.result()
                future = future.upload_completion
            saved["a"].zero_()
            saved["b"].view(-1)[3:].add_(1)
            future.result()
            found = zeros(state())
            dcp.load(found, checkpoint_id=where)
            equal(found, state())
    for cached in (False, True):
        writer, saved = (
            dcp.FileSystemWriter(folder(), cache_staged_state_dict=cached),
            sharded(state(), "data"),
        )
        future = dcp.async_save(saved, storage_writer=writer)
        saved["a"].zero_()
        future.result()
        found = zeros(state())
        dcp.load(found, storage_reader=dcp.FileSystemReader(writer.path))
        equal(found, state())


def test_a_checkpoint_over_another_one_takes_its_place_at_once():
    where = Path(folder())
    for step in range(3):
        dcp.save({"a": shard(torch.full((8, 8), float(step)), "data")}, checkpoint_id=where)
        (file,) = where.glob("*.distcp")
        assert torch_jax.last_checkpoint(where) == where
        assert (file.name == "__0_0.distcp") == (step == 0)
    metadata = (where / ".metadata").read_bytes()

    class Ended(Exception):
        pass

    class Ends:
        def __reduce__(self) -> Any:
            raise Ended

    saved = {"a": shard(torch.full((8, 8), 7.0), "data"), "b": Ends()}
    try:
        dcp.save(saved, checkpoint_id=where)
    except dcp.CheckpointException as error:  # no Exception
        assert "Ended" in str(error)
    else:
        raise AssertionError("saving has not failed")
    assert (where / ".metadata").read_bytes() == metadata
    dcp.load(found := {"a": torch.zeros(8, 8)}, checkpoint_id=where)
    equal(found, {"a": torch.full((8, 8), 2.0)})


def test_the_last_whole_checkpoint_is_found():
    where = Path(folder())
    assert torch_jax.last_checkpoint(where / "none") is None is torch_jax.last_checkpoint(where)
    for step in (8, 9, 10):
        dcp.save({"a": shard(torch.ones(8), "data")}, checkpoint_id=where / f"step-{step}")
    assert torch_jax.last_checkpoint(where) == where / "step-10"
    (where / "step-10" / ".metadata").unlink()
    assert torch_jax.last_checkpoint(str(where)) == where / "step-9"
    (file,) = (where / "step-9").glob("*.distcp")
    file.write_bytes(file.read_bytes()[:-1])
    assert torch_jax.last_checkpoint(where) == where / "step-8"
    (where / "step-8" / ".metadata").write_bytes(pickle.dumps(3))
    assert torch_jax.last_checkpoint(where) is None


def test_damaged_files_are_found_and_those_without_checksums_are_taken():
    where = Path(folder())
    with unittest.mock.patch("torch_jax.distributed.checkpoint_folders.sign"):  # as PyTorch saves
        dcp.save({"a": shard(torch.ones(64), "data")}, checkpoint_id=where / "old")
    dcp.save({"a": shard(torch.ones(64), "data")}, checkpoint_id=where / "new")
    assert torch_jax.last_checkpoint(where) == where / "new"
    for name in ("new", "old"):
        (file,) = (where / name).glob("*.distcp")
        saved = bytearray(file.read_bytes())
        saved[saved.index(torch.ones(8).numpy().tobytes())] ^= 1
        file.write_bytes(saved)
    assert torch_jax.last_checkpoint(where) == where / "old"
    dcp.load({"a": torch.zeros(64)}, checkpoint_id=where / "old")
    try:
        dcp.load({"a": torch.zeros(64)}, checkpoint_id=where / "new")
    except dcp.CheckpointException as error:  # no Exception
        assert "last_checkpoint(folder)" in str(error)
    else:
        raise AssertionError("damaged bytes were loaded")


@pytest.mark.parametrize("fails", ["fsync", "replace"])
@pytest.mark.parametrize("again", [False, True])
def test_a_save_that_fails_leaves_no_files(fails, again):
    where = Path(folder())
    if again:
        dcp.save({"a": shard(torch.ones(64), "data")}, checkpoint_id=where)
    before = sorted(where.iterdir())
    full = OSError(28, "No space left on device")
    with unittest.mock.patch.object(os, fails, side_effect=full):
        try:
            dcp.save({"a": shard(torch.zeros(64), "data")}, checkpoint_id=where)
        except dcp.CheckpointException as error:
            assert "No space left" in str(error)
        else:
            raise AssertionError("saving has not failed")
    assert sorted(where.iterdir()) == before


# --- safetensors and torch.save -------------------------------------------------------------------


def test_safetensors_hold_whole_tensors():
    torch.manual_seed(0)
    net, file = Net(), f"{folder()}/x.safetensors"
    expected = copy.deepcopy(net.state_dict())
    torch_jax.shard(net, grid(), RULES)
    st.save_model(net, file)  # which knows ties
    other = Net().to("jax")
    assert st.load_model(other, file) == (set(), [])
    equal(other.state_dict(), expected)
    torch_jax.shard(other, grid(), {"norm.*": (), "*": ("model",)})
    other.emb.weight.data.zero_()
    st.load_model(other, file)
    equal(other.state_dict(), expected)
    assert spec(other.emb.weight) == ("model",)
    tensors = {"up": net.up.weight, "bf16": shard(torch.ones(8, 2).bfloat16(), "data")}
    st.save_file(tensors, file)
    equal(found := st.load_file(file, device="jax"), tensors)
    assert all(tensor.device.type == "jax" for tensor in found.values())
    equal(st.load(st.save(tensors)), tensors)


def test_hugging_face_files_hold_whole_tensors():
    where, expected = folder(), {"a": torch.randn(8, 8), "b": torch.randn(8, 2).bfloat16()}
    for options in ({}, {"save_distributed": True, "enable_consolidation": True}):
        saved = sharded(expected, "data", "model")
        writer = dcp.HuggingFaceStorageWriter(where, **options)
        dcp.save(saved, storage_writer=writer)
        (file,) = Path(where).glob("*.safetensors")
        equal(st.load_file(file), expected)
        found = sharded(zeros(expected), None, "model")
        dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(where))
        equal(found, expected)


@pytest.mark.slow
def test_files_of_torch_save_hold_whole_tensors():
    where = folder()
    x = shard(torch.randn(8, 8), "data", "model")
    torch.save({"x": x, "row": x[3]}, f"{where}/x.pt")
    found = torch.load(f"{where}/x.pt")
    equal(found, {"x": x, "row": x[3]})
    assert found["x"].device.type == "jax" and spec(found["x"]) is None
    found["x"][3] = 1  # the two share memory, as they did
    assert found["row"].sum().item() == 8
    assert torch.load(f"{where}/x.pt", map_location="cpu")["x"].device.type == "cpu"
    equal(copy.deepcopy(x), x)
    saved = sharded(state(), "data", "model")
    dcp.save(saved, checkpoint_id=f"{where}/dcp")
    format_utils.dcp_to_torch_save(f"{where}/dcp", f"{where}/whole.pt")
    equal(torch.load(f"{where}/whole.pt"), state())
    torch.save(saved, f"{where}/sharded.pt")
    format_utils.torch_save_to_dcp(f"{where}/sharded.pt", f"{where}/back")
    found = sharded(zeros(state()), "model")
    dcp.load(found, checkpoint_id=f"{where}/back")
    equal(found, state())


# --- orbax ----------------------------------------------------------------------------------------


class _Orbax(types.ModuleType):
    """Stands in for ``orbax.checkpoint``: keeps what it is given, gives it as it is asked for."""

    def __init__(self) -> None:
        super().__init__("orbax.checkpoint")
        self.kept: dict[Path, Any] = {}
        self.tree = jax.tree_util
        self.checkpoint = self.args = self.checkpoint_utils = self

    def PyTreeCheckpointHandler(self) -> None:
        """Orbax's, of trees."""

    def Checkpointer(self, handler: None) -> Any:
        """Itself."""
        return self

    def PyTreeSave(self, tree: Any) -> Any:
        """The tree, of arrays, numbers and text."""
        kinds = {type(leaf).__name__ for leaf in self.tree.tree_leaves(tree)}
        assert kinds <= {"ArrayImpl", "ndarray", "int", "float", "str", "bool"}, kinds
        return tree

    def construct_restore_args(self, wanted: Any) -> str:
        """For a tree that is wanted."""
        return "how"

    def PyTreeRestore(self, wanted: Any, restore_args: str) -> Any:
        """The tree that is wanted."""
        return wanted

    def save(self, path: Path, tree: Any, force: bool) -> None:
        """Keep copies in host memory."""
        self.kept[path] = self.tree.tree_map(
            lambda leaf: np.array(leaf) if hasattr(leaf, "shape") else leaf, tree
        )

    def restore(self, path: Path, wanted: Any) -> Any:
        """Arrays with the shardings that are wanted."""

        def one(wish: Any, value: Any) -> Any:
            sharding = getattr(wish, "sharding", None)
            return value if sharding is None else jax.device_put(value, sharding)

        return self.tree.tree_map(one, wanted, self.kept[path])


@contextlib.contextmanager
def _orbax_is(module: Any) -> Iterator[None]:
    names = "orbax", "orbax.checkpoint"
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names, module))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def test_orbax_is_given_arrays_and_shardings():
    with _orbax_is(None):
        says(ImportError, r"torch_jax\[orbax\]", lambda: torch_jax.save_orbax(folder(), {}))
    fake = _Orbax()
    with _orbax_is(fake):
        saved, where = sharded(state(), "data", "model"), folder()
        saved |= {"cpu": torch.arange(3), "row": saved["a"].t()[3]}
        torch_jax.save_orbax(where, saved)
        assert fake.kept[Path(where)]["a"].shape == (8, 8)
        given = sharded(zeros(state()), None, "model")
        given |= {"cpu": torch.zeros(3, dtype=torch.int64), "row": torch.zeros(8).to("jax")}
        found = torch_jax.load_orbax(where, given)
        equal(found, state() | {"cpu": torch.arange(3), "row": state()["a"].t()[3]})
        assert found["a"] is given["a"] and spec(found["a"]) == (None, "model")


# --- programs without torch_jax -------------------------------------------------------------------

_PLAIN = """
import sys, torch, torch.distributed.checkpoint as dcp
assert "jax" not in sys.modules and "torch_jax" not in sys.modules
expected, where = torch.load(sys.argv[1]), sys.argv[2]
found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
dcp.load(found, checkpoint_id=f"{where}/ours")
assert all(torch.equal(found[name], expected[name]) for name in expected)
dcp.save({name: tensor + tensor for name, tensor in found.items()}, checkpoint_id=f"{where}/theirs")
"""


@pytest.mark.slow
def test_checkpoints_are_those_of_plain_pytorch():
    where, expected = folder(), {n: t for n, t in state().items() if isinstance(t, torch.Tensor)}
    torch.save(expected, f"{where}/expected.pt")
    dcp.save(sharded(expected, "data", "model"), checkpoint_id=f"{where}/ours")
    command = [sys.executable, "-W", "ignore", "-c", _PLAIN, f"{where}/expected.pt", where]
    alone = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = sharded(zeros(expected), ("model", "data"))
    dcp.load(found, checkpoint_id=f"{where}/theirs")
    equal(found, {name: tensor + tensor for name, tensor in expected.items()})
