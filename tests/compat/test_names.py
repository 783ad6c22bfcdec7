"""PyTorch/XLA's names in one process."""

from __future__ import annotations

import io

import pytest
import torch

from torch_jax import config
from torch_jax.compat import torch_xla
from torch_jax.compat.xla import (
    debug,
    parallel_loader,
    runtime,
    stablehlo,
    utils,
    xla_model,
)


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setenv("TORCH_JAX_MODE", "eager")
    yield
    assert config.get("mode") == "eager"


def test_the_device():
    assert torch_xla.device() == torch.device("jax", 0) == xla_model.xla_device()
    assert torch_xla.device_count() == runtime.addressable_device_count() == 1
    assert torch_xla.real_devices() == [f"{runtime.device_type()}:0"]
    assert xla_model.is_master_ordinal() and xla_model.get_ordinal() == 0
    assert not runtime.is_spmd() and runtime.global_runtime_device_count() >= 1
    with pytest.raises(NotImplementedError, match="mark parameters"):
        runtime.use_spmd(auto=True)


def test_collectives_of_one_process():
    x = torch.arange(4.0, device="jax")
    assert xla_model.all_reduce(xla_model.REDUCE_SUM, x, 0.5).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert xla_model.all_reduce("sum", [x], 2.0) is None and x.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert xla_model.all_gather(x).tolist() == x.tolist()
    assert xla_model.reduce_scatter("sum", x, 1.0, 0, 1).tolist() == x.tolist()
    assert xla_model.all_to_all(x, 0, 0, 1).tolist() == x.tolist()
    where = xla_model.mesh_reduce("sum", x, lambda all: [one.device.type for one in all])
    assert where == ["cpu"]
    assert xla_model.rendezvous("here", b"payload") == [b"payload"]
    assert xla_model.all_reduce("sum", x, groups=[[0]]).tolist() == x.tolist()
    with pytest.raises(NotImplementedError, match="new_group"):
        xla_model.all_reduce("sum", x, groups=[[0], [1]])


def test_closures_run_at_the_end_of_a_step():
    seen: list[float] = []
    with torch_xla.step():
        total = torch.ones(2, device=torch_xla.device()).sum()
        xla_model.add_step_closure(lambda value: seen.append(value.item()), args=(total,))
        assert not seen
    assert seen == [2.0]
    torch_xla.sync()
    assert seen == [2.0]


def test_loaders_end_a_step_after_each_batch():
    batches = utils.SampleGenerator((torch.ones(2), torch.zeros(1)), 3)
    seen: list[int] = []
    loader = parallel_loader.ParallelLoader(batches, [torch_xla.device()])
    for number, (x, _) in enumerate(loader.per_device_loader(torch_xla.device())):
        assert xla_model.is_xla_tensor(x) and seen == list(range(number))
        xla_model.add_step_closure(seen.append, args=(number,))
    assert seen == [0, 1, 2] and len(batches) == 3


def test_functions_files_and_counts(tmp_path):
    debug.clear_all()
    double = torch_xla.compile(lambda x: x * 2, full_graph=True)
    assert double(torch.ones(2, device="jax")).tolist() == [2.0, 2.0]
    file = io.BytesIO()
    xla_model.save({"weight": torch.ones(2, device="jax")}, file)
    file.seek(0)
    assert torch.load(file)["weight"].device.type == "cpu"
    assert " operators, 1 of them recorded" in debug.metrics_report()
    assert debug.counter_value("operators") is not None
    assert len(debug.short_metrics_report().splitlines()) == 3
    assert debug.short_metrics_report(["operators", "none"]).startswith("operators: ")
    assert len(debug.short_metrics_report(["operators"], ["cpu_fallbacks"]).splitlines()) == 2
    assert utils.getenv_as("NO_SUCH_VARIABLE", int, 3) == 3
    tracker = xla_model.RateTracker()
    tracker.add(5)
    assert tracker.rate() > 0 and tracker.global_rate() > 0


def test_exported_programs_are_text_and_take_tensors_of_any_device(tmp_path):
    model = torch.nn.Linear(3, 2)
    x = torch.ones(4, 3)
    stablehlo.save_torch_model_as_stablehlo(model, (x,), tmp_path)
    program = stablehlo.StableHLOGraphModule.load(tmp_path)
    assert "stablehlo.dot_general" in program.get_stablehlo_text()
    for given in (x, x.to("jax")):
        found = program(given)
        assert found.device == given.device
        torch.testing.assert_close(found.cpu(), model(x))
