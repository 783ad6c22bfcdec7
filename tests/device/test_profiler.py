"""``torch.profiler`` over the device: tables, stacks, and exported files."""

from __future__ import annotations

import gzip
import json
import warnings

import jax
import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.profiler import tensorboard_trace_handler as handler

import torch_jax

pytestmark = pytest.mark.usefixtures("eager_by_xla")  # kernels are those of XLA's programs

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture
def x(eager_by_xla):
    x = torch.randn(64, 64).to("jax")
    work(x)
    return x


def work(x: torch.Tensor) -> torch.Tensor:
    with record_function("work"):
        return torch.relu(x @ x).cpu()


def kernels(found):
    return [event for event in found if event.device_type == DeviceType.PrivateUse1]


@pytest.mark.slow
def test_kernels_belong_to_operators_and_to_lines(x, tmp_path):
    with profile(with_stack=True) as prof:
        work(x)
    rows = {row.key: row for row in prof.key_averages()}
    for name in ("aten::mm", "aten::relu"):
        assert rows[name].self_device_time_total > 0
        assert rows["work"].device_time_total >= rows[name].self_device_time_total
        assert any(row.startswith(f"{name}: ") for row in rows)
    assert rows["aten::mm"].count == 1
    table = prof.key_averages().table(sort_by="self_device_time_total", row_limit=5)
    assert "Self JAX" in table and "aten::mm" in table
    lines = {line for event in kernels(prof.events()) for line in event.stack}
    assert any("test_profiler.py" in line and line.endswith(": work") for line in lines)
    starts = [event.time_range.start for event in kernels(prof.events())]
    assert starts == sorted(starts) and starts[0] > 0
    prof.export_stacks(str(tmp_path / "stacks"), "self_privateuse1_time_total")
    assert "work" in (tmp_path / "stacks").read_text()


@pytest.mark.slow
def test_the_exported_file_has_both_sides_on_one_clock(x, tmp_path):
    with profile(activities=BOTH) as prof:
        work(x)
    prof.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    with gzip.open(tmp_path / "trace.json.gz") as file:
        found = json.load(file)["traceEvents"]
    (around,) = [e for e in found if e.get("name") == "work" and e.get("cat") == "user_annotation"]
    device = [e for e in found if e.get("cat") == "kernel"]
    assert {e["args"]["launched by"] for e in device} >= {"aten::mm", "aten::relu"}
    for event in device:
        assert around["ts"] < event["ts"] < around["ts"] + around["dur"]
    arrows = [e["id"] for e in found if e.get("name") == "ac2g"]
    assert len(arrows) == 2 * len(device) and len(set(arrows)) == len(device)
    assert any(e["pid"] == "XLA host" and e["ph"] == "X" for e in found)


@pytest.mark.slow
def test_compiled_functions_say_operators_and_lines(x):
    def step(x):
        y = x @ x
        return torch.relu(y)

    compiled = torch_jax.jit(step)
    for _ in range(6):  # a call more is not a program where another test has recorded its operator
        compiled(x)
    with profile() as prof, record_function("step"):
        compiled(x)
    (mm,) = [e for e in kernels(prof.events()) if e.name.startswith("aten::mm: ")]
    line = step.__code__.co_firstlineno + 1
    assert f"test_profiler.py({line}): " in mm.stack[0] and mm.stack[0].endswith("step")
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["step"].device_time_total >= mm.device_time_total > 0


@pytest.mark.slow
def test_a_profile_has_what_its_last_calls_launched():
    # the result is dropped while its program runs, so that no array is left to wait for
    compiled = torch_jax.jit(lambda x: torch.relu(x @ x @ x @ x))
    x = torch.randn(512, 512).to("jax")
    for _ in range(6):
        compiled(x)
    for _ in range(5):
        with profile() as prof:
            compiled(x)
        found = [e.name for e in kernels(prof.events())]
        assert sum(name.startswith("aten::mm: ") for name in found) == 3
        assert any(name.startswith("aten::relu: ") for name in found)
        assert not any("fence" in e.name for e in kernels(prof.events()))


@pytest.mark.slow
def test_schedules_handlers_and_steps(x, tmp_path):
    shown = []

    def ready(prof):
        shown.append({row.key for row in prof.key_averages()})
        handler(str(tmp_path))(prof)

    with profile(schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=ready) as prof:
        for _ in range(8):
            work(x)
            prof.step()
    assert len(shown) == 2 and all("aten::mm: dot_general" in rows for rows in shown)
    assert len(list(tmp_path.glob("*.pt.trace.json"))) == 2


@pytest.mark.slow
def test_the_older_profiler_and_profiles_of_the_cpu_alone(x):
    with torch.autograd.profiler.profile(use_device="jax", record_shapes=True) as prof:
        work(x)
    assert [64, 64] in next(e for e in prof.function_events if e.name == "aten::mm").input_shapes
    assert prof.key_averages().total_average().device_time_total > 0
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        work(x)
    assert not kernels(prof.events())


@pytest.mark.slow
def test_one_trace_at_a_time(x, tmp_path):
    jax.profiler.start_trace(str(tmp_path))
    try:
        with pytest.warns(UserWarning, match="jax.profiler traces already"):
            with profile() as prof:
                work(x)
        assert not kernels(prof.events())
    finally:
        jax.profiler.stop_trace()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile() as prof:
            with pytest.raises(RuntimeError, match="Only one profile"):
                jax.profiler.start_trace(str(tmp_path))
            work(x)
    assert kernels(prof.events())


@pytest.mark.slow
def test_an_error_ends_the_trace(x):
    with pytest.raises(ZeroDivisionError), profile():
        work(x)
        raise ZeroDivisionError
    with profile() as prof:
        work(x)
    assert kernels(prof.events())
