"""The work of PyTorch programs around arithmetic: copies, printing, saving, threads."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import torch_jax
from tests.support.models import Tied
from tests.support.values import randn
from torch_jax.patches import constructors

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_crosses_and_comes_back(dtype):
    cpu = torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 1.0]]).to(dtype)
    jax = cpu.to("jax")
    assert jax.dtype == dtype and jax.device == torch.device("jax", 0)
    assert torch.equal(_bytes(jax), _bytes(cpu))
    assert torch.equal(_bytes(jax.t()), _bytes(cpu.t()))
    assert jax.cpu().untyped_storage().resizable()


def test_copies_never_share_memory_with_the_host():
    cpu = torch.zeros(1 << 12)
    jax = cpu.to("jax")
    cpu.fill_(1)
    assert jax.sum().item() == 0
    back = jax.cpu()
    back.fill_(2)
    assert jax.sum().item() == 0
    array = np.zeros(1 << 12, np.float32)
    from_numpy = torch.from_numpy(array).to("jax")
    array[:] = 5
    assert from_numpy.max().item() == 0


def test_items_lists_and_numpy():
    x = torch.tensor([[1.5, 2.5]], device="jax")
    assert x[0, 1].item() == 2.5 and x.tolist() == [[1.5, 2.5]]
    assert float(x[0, 0]) == 1.5 and int(x[0, 1]) == 2 and bool(x[0, 0])
    assert torch.tensor(True, device="jax").item() is True
    assert torch.tensor(2**40, device="jax").item() == 2**40
    assert torch.tensor(1 + 2j, device="jax").item() == 1 + 2j
    with pytest.raises(TypeError, match="Use Tensor.cpu()"):
        x.numpy()
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        x.item()


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6.0).view(2, 3), torch.tensor(3), torch.tensor([True]), torch.empty(0, 2)],
)
def test_printing_shows_values_and_device(tensor):
    shown = repr(tensor.to("jax"))
    assert "device='jax:0'" in shown
    assert shown.replace(", device='jax:0'", "") == repr(tensor)


def test_deepcopy_and_pickle_keep_aliases_and_parameters():
    base = torch.arange(6.0, device="jax")
    parts = {"base": base, "view": base[2:5], "weight": nn.Parameter(base.clone())}
    for copied in (copy.deepcopy(parts), pickle.loads(pickle.dumps(parts["base"]))):
        if isinstance(copied, torch.Tensor):
            assert copied.is_jax and copied.tolist() == base.tolist()
            continue
        copied["base"].mul_(10)
        assert copied["view"].tolist() == [20.0, 30.0, 40.0]
        assert isinstance(copied["weight"], nn.Parameter) and copied["weight"].requires_grad
    assert base.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("zip_format", [True, False])
@pytest.mark.parametrize("source,target", [("jax", None), ("jax", "cpu"), ("cpu", "jax")])
def test_save_and_load_with_map_location(source, target, zip_format):
    base = torch.arange(12.0).view(3, 4).to(source)
    state = {"base": base, "view": base.t()[1:], "half": base.to(torch.bfloat16)}
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=zip_format)
    file.seek(0)
    loaded = torch.load(file, map_location=target)
    assert all(t.device.type == (target or source) for t in loaded.values())
    loaded["base"].add_(1)
    assert torch.equal(loaded["view"].cpu(), (base + 1).t()[1:].cpu())
    assert torch.equal(loaded["half"].cpu(), state["half"].cpu())


def test_safetensors_loads_onto_the_device(tmp_path):
    from safetensors.torch import load_file, save_file

    x = randn(3, 4)
    save_file({"x": x, "y": x.to(torch.bfloat16)}, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors", device="jax")
    assert loaded["x"].is_jax and torch.equal(loaded["x"].cpu(), x.cpu())
    assert loaded["y"].dtype == torch.bfloat16


def test_moving_a_module_keeps_parameters_ties_gradients_and_optimizers():
    model = Tied()
    weight = model.embed.weight
    weight.note = "kept"
    model(torch.tensor([1, 2, 3])).sum().backward()
    gradient = weight.grad
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    assert model.to("jax") is model
    assert model.embed.weight is weight is model.head.weight
    assert weight.is_jax and weight.grad is gradient and gradient.is_jax
    assert weight.note == "kept" and model.norm.running_mean.is_jax
    before = weight.detach().cpu().clone()
    optimizer.step()
    torch.testing.assert_close(weight.detach().cpu(), before - 0.5 * gradient.cpu())
    model.cpu()
    assert model.head.weight is weight and weight.device.type == "cpu"
    model.jax()
    assert weight.is_jax


def test_moving_a_module_whose_old_graph_is_alive():
    model = nn.Linear(2, 2)
    reference = weakref.ref(model.weight)
    loss = model(torch.ones(1, 2)).square().sum()
    model.to("jax")
    assert model.weight.is_jax and reference() is model.weight
    with pytest.raises(RuntimeError, match="before its parameters moved"):
        loss.backward()
    model(torch.ones(1, 2, device="jax")).sum().backward()
    assert model.weight.grad.is_jax


def test_assigning_data_across_devices():
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.data = torch.ones(2).to("jax")
    assert parameter.is_jax and parameter.requires_grad and isinstance(parameter, nn.Parameter)
    (parameter * 2).sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-1.0, -1.0]


def test_state_dicts_cross_devices():
    model, other = Tied(), Tied().to("jax")
    other.load_state_dict(model.state_dict())
    for name, value in other.state_dict().items():
        assert value.is_jax and torch.equal(value.cpu(), model.state_dict()[name])
    third = Tied()
    third.load_state_dict(other.state_dict())
    assert torch.equal(third.head.weight, model.head.weight)


def test_default_device_and_context():
    with torch.device("jax"):
        assert torch.ones(2).is_jax and nn.Linear(2, 2).weight.is_jax
        assert torch.tensor([1, 2]).is_jax
    torch.set_default_device("jax")
    try:
        assert torch.zeros(3).is_jax and torch.arange(3).is_jax
        assert torch.jax.get_rng_state().device.type == "cpu"
        assert torch.rand(2, device="jax", generator=torch.Generator()).is_jax
        assert copy.deepcopy(torch.ones(2)).is_jax and not torch.ones(2).cpu().is_jax
        assert torch.ones(2, device="cpu").untyped_storage().to(device="jax").nbytes() == 8
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(3).is_jax


def _add_on_a_thread(x: torch.Tensor, results: list, index: int) -> None:
    y = (x * index + torch.ones(3, device="jax")).requires_grad_()
    y.pow(2).sum().backward()
    results[index] = (y.detach().tolist(), y.grad.tolist())


def test_fresh_threads_need_no_set_up():
    x = torch.arange(3.0, device="jax")
    results: list = [None] * 8
    threads = [
        threading.Thread(target=_add_on_a_thread, args=(x, results, i)) for i in range(len(results))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (values, gradients) in enumerate(results):
        assert values == [1.0, 1.0 + i, 1.0 + 2 * i]
        assert gradients == [2 * v for v in values]


def test_there_is_one_device():
    for make in (torch.empty, torch.ones, torch.arange, torch.randn):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make(2, device="jax:1")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(2).to("jax:1")
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="jax")


def test_mixing_devices_is_refused_as_pytorch_does():
    x = torch.ones(2, 2, device="jax")
    for operation in (torch.add, torch.mm, torch.minimum):
        with pytest.raises(RuntimeError, match="same device.*jax:0 and cpu"):
            operation(x, torch.ones(2, 2))
        with pytest.raises(RuntimeError, match="same device.*jax:0 and cpu"):
            operation(torch.ones(2, 2), torch.ones(2, 2), out=x)
    assert (x * torch.tensor(2.0)).tolist() == [[2.0, 2.0], [2.0, 2.0]]  # zero-dim is allowed


@pytest.mark.parametrize("eager", ["torch", "xla"])
def test_a_number_of_the_cpu_is_not_written_by_the_device(eager):
    number = torch.tensor(2.0)
    with torch_jax.config.temporarily("eager_on_cpu", eager):
        with pytest.raises(RuntimeError, match="same device.*jax:0 and cpu"):
            number += torch.ones((), device="jax")
    assert number.item() == 2


def test_operators_return_before_they_have_run():
    x = torch.ones(600, 600, device="jax")
    x @ x  # compile
    y = x
    for _ in range(20):
        y = y @ x * 1e-3
    array = y.untyped_storage().array
    assert not array.is_ready()
    torch.jax.synchronize()
    assert array.is_ready()


@pytest.mark.slow
def test_data_loaders_with_workers_and_pinned_memory():
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    constructors._warn_pin_memory.cache_clear()  # it warns once in a process
    with pytest.warns(UserWarning, match="pin_memory does nothing"):
        torch.zeros(1).pin_memory()
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=1, pin_memory=True, multiprocessing_context="spawn"
    )
    assert [batch.to("jax").sum().item() for (batch,) in loader] == [6.0, 22.0]


def test_an_unsupported_operator_names_itself_its_arguments_and_the_remedy():
    library = torch.library.Library("everyday", "FRAGMENT")
    library.define("strange(Tensor x) -> Tensor")
    x = torch.ones(2, 3, device="jax")
    with pytest.raises(torch_jax.OperatorNotFound) as error:
        torch.ops.everyday.strange(x)
    for part in ("everyday.strange", "float32[2,3]", "register_op"):
        assert part in str(error.value)

    @torch_jax.register_op("everyday::strange", meta=False)
    def strange(x):
        return x * 3

    assert torch.ops.everyday.strange(x).sum().item() == 18


def test_cpu_fallback_warns_once_and_is_counted():
    from torch_jax import config
    from torch_jax.dispatch import cpu

    library = torch.library.Library("everyday2", "FRAGMENT")
    library.define("host_only(Tensor x) -> Tensor")
    library.impl("host_only", lambda x: x + 1, "CPU")
    before = config.get("cpu_fallback")
    config.set("cpu_fallback", "warn")
    try:
        x = torch.ones(2, device="jax")
        with pytest.warns(UserWarning, match="runs on the CPU.*test_everyday.py:"):
            assert torch.ops.everyday2.host_only(x).tolist() == [2.0, 2.0]
        torch.ops.everyday2.host_only(x)
        assert cpu.FALLBACKS["everyday2.host_only.default"] == 2
    finally:
        config.set("cpu_fallback", before)


def test_out_of_memory_is_said_and_tensors_stay_intact():
    x = torch.ones(3, device="jax")
    with pytest.raises(torch.OutOfMemoryError, match="out of memory in aten"):
        torch.zeros(1 << 45, device="jax").sum().item()
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        x.expand(1 << 45, 3).contiguous().sum().item()
    assert x.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_the_module_torch_jax_answers():
    assert torch.jax.is_available() and torch.jax.device_count() == 1
    assert torch.jax.current_device() == 0
    torch.jax.set_device(0)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.jax.set_device(3)
    x = torch.ones(1 << 18, device="jax")
    torch.jax.synchronize()
    used = torch.jax.memory_allocated()
    assert used >= x.numel() * 4 and torch.jax.max_memory_allocated() >= used
    del x
    assert torch.jax.memory_allocated() <= used - (1 << 20)
    assert torch.jax.is_initialized() and torch.jax.get_device_name()
    assert torch.bfloat16 in torch.jax.get_amp_supported_dtype()
    assert torch.jax.is_bf16_supported()
    start, end = torch.jax.Event(enable_timing=True), torch.jax.Event(enable_timing=True)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0
    with torch.jax.stream(torch.jax.Stream()), torch.jax.device(0):
        torch.jax.empty_cache()


def test_streams_and_events_of_the_device():
    x = torch.ones(3, device="jax")
    for stream in (torch.Stream("jax"), torch.Stream(device="jax:0"), torch.jax.Stream()):
        assert type(stream) is torch.jax.Stream and isinstance(stream, torch.Stream)
        assert stream == torch.accelerator.current_stream() and stream.device == x.device
        with stream:
            x.record_stream(stream)
        event = stream.record_event()
        stream.wait_event(event)
        event.synchronize()
        assert event.query() and stream.query()
    start, end = torch.Event("jax", enable_timing=True), torch.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    end.record()
    assert type(end) is torch.jax.Event and isinstance(end, torch.Event)
    assert start.elapsed_time(end) >= 0
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(torch.Event())
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.Stream("jax:1")


def test_streams_of_other_devices_are_theirs():
    stream = torch.Stream("cpu")
    assert isinstance(stream, torch.Stream) and not isinstance(stream, torch.jax.Stream)
    assert issubclass(torch.jax.Stream, torch.Stream) and not isinstance(5, torch.Stream)
    assert issubclass(torch.xpu.Event, torch.Event) == torch.xpu._is_compiled()


@pytest.mark.slow
def test_torch_accelerator_answers_for_the_device():
    assert torch.accelerator.current_accelerator() == torch.device("jax")
    assert torch.accelerator.device_count() == 1 and torch.accelerator.is_available()
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() >= 0
    torch.accelerator.empty_cache()


def test_generators_and_rng_state():
    torch.manual_seed(7)
    state = torch.jax.get_rng_state()
    first = torch.rand(4, device="jax").tolist()
    torch.jax.set_rng_state(state)
    assert torch.rand(4, device="jax").tolist() == first
    torch.manual_seed(7)
    assert torch.rand(4, device="jax").tolist() == first
    assert torch.rand(4, device="jax").tolist() != first
    for make in (lambda: torch.Generator(device="jax"), torch.Generator):
        generator = make().manual_seed(3)
        once = torch.rand(4, device="jax", generator=generator).tolist()
        again = torch.rand(4, device="jax", generator=make().manual_seed(3)).tolist()
        assert once == again != torch.rand(4, device="jax", generator=generator).tolist()
    assert torch.Generator(device="jax").device.type == "jax"
    assert isinstance(torch.default_generator, torch.Generator)
    with torch.random.fork_rng(devices=[0], device_type="jax"):
        torch.rand(3, device="jax")
