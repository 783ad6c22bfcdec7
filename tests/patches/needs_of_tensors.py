"""Proofs that modules, constructors, tensors and processes need replacements."""

import itertools
import multiprocessing.reduction
import os
import pickle
import socket
import tempfile
import unittest.mock
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import tensor

import torch_jax
from tests.patches.needs import need, on_jax, ones
from torch_jax.core import backward
from torch_jax.dispatch import autocast, ladder
from torch_jax.memory.storage import wrap

# --- modules --------------------------------------------------------------------------------------


@need("torch.nn.Module._apply")
def moved_parameters_are_the_same_objects() -> bool:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    return layer.to("jax").weight is weight


@need("torch.optim.adam._multi_tensor_adam")
def adam_is_one_operator() -> bool:
    layer = nn.Linear(2, 2, device="jax")
    layer(ones(1, 2)).sum().backward()
    with torch_jax.trace_ops() as trace:
        torch.optim.AdamW(layer.parameters()).step()
    return "_foreach_lerp_" not in str(trace)


@need("torch.optim.SGD._init_group")
def momentum_is_there_in_the_first_step() -> bool:
    layer = nn.Linear(2, 2, device="jax")
    layer(ones(1, 2)).sum().backward()
    with torch_jax.trace_ops() as trace:
        torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9).step()
    return "_foreach_mul_" in str(trace)


@need("torch.Tensor.data")
def data_may_come_from_the_device() -> bool:
    weight = nn.Parameter(torch.zeros(2))
    weight.data = ones(2)
    return on_jax(weight)


@need("torch.nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions._adjust")
def chunked_losses_are_summed_in_float32() -> bool:
    options = nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions()
    sizes = {"num_batches": 8, "in_features": 4, "num_classes": 4}
    found = options._adjust(**sizes, dtype=torch.bfloat16, device=torch.device("jax"))
    return found.acc_dtype is torch.float32


@need("torch.nn.modules.transformer._detect_is_causal_mask")
def masks_are_not_looked_at() -> bool:
    layer = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    scripted = torch.jit.script(encoder)(torch.ones(1, 3, 4), torch.zeros(3, 3))
    encode = torch_jax.jit(encoder.to("jax"), pure=True)
    encoded = encode(ones(1, 3, 4), torch.zeros(3, 3, device="jax"))
    return torch.allclose(encoded.cpu(), scripted, atol=1e-6)


@need("torch.nn.functional.gaussian_nll_loss")
def variances_are_not_looked_at() -> bool:
    loss = torch_jax.jit(lambda var: F.gaussian_nll_loss(var, var, var), pure=True)
    return loss(ones(3)).item() == 0.0 and not loss.explain().notes


# --- constructors ---------------------------------------------------------------------------------


@need("torch.Generator")
def generators_of_the_device() -> bool:
    return torch.Generator(device="jax").manual_seed(0).device.type == "jax"


@need("torch.Stream", "torch._C._accelerator_getStream")
def streams_wait_for_the_device() -> bool:
    streams = torch.Stream(device="jax"), torch.accelerator.current_stream()
    return all(isinstance(stream, torch.jax.Stream) for stream in streams)


@need("torch.Event")
def events_are_recorded() -> bool:
    event = torch.Event("jax", enable_timing=True)
    event.record()
    return event.elapsed_time(event) == 0


@need("torch.Tensor.pin_memory")
def pinning_changes_nothing() -> bool:
    tensor = torch.zeros(2)
    return tensor.pin_memory() is tensor


# --- torch.accelerator ----------------------------------------------------------------------------

_ANSWERS = {
    "emptyCache": "empty_cache",
    "getDeviceCapability": "get_device_capability",
    "getDeviceStats": "memory_allocated",
    "getMemoryInfo": "get_memory_info",
    "isAllocatorInitialized": "memory_allocated",
    "resetAccumulatedStats": "reset_accumulated_memory_stats",
    "resetPeakStats": "reset_peak_memory_stats",
    "synchronizeDevice": "synchronize",
}


def answers(name: str) -> bool:
    function = getattr(torch.accelerator, name)
    getattr(function, "__wrapped__", function)()  # not from a cache; PyTorch's own raises
    return True


for _target, _name in _ANSWERS.items():
    need(f"torch._C._accelerator_{_target}")(lambda name=_name: answers(name))  # type: ignore[misc]


@need("torch._C._accelerator_setDeviceIndex", "torch._C._accelerator_getDeviceIndex")
def devices_have_the_numbers_of_processes() -> bool:
    with unittest.mock.patch.dict(os.environ, LOCAL_WORLD_SIZE="2"):
        torch.accelerator.set_device_index(1)
        chosen = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(0)
    try:
        torch.accelerator.set_device_index(1)
    except RuntimeError as error:
        return chosen == 1 and "ordinal: jax:1" in str(error)
    return False


# --- tensors and storages -------------------------------------------------------------------------


@need("torch.Tensor.data_ptr")
def addresses_tell_tensors_apart() -> bool:
    one, other = ones(4), ones(4)
    return one.data_ptr() not in (0, other.data_ptr()) and one[1:].data_ptr() > one.data_ptr()


@need("torch._tensor_str._tensor_str")
def printing_compiles_nothing() -> bool:
    tensor = ones(next(_sizes))
    before = compiled()
    repr(tensor)
    return compiled() == before


_sizes = itertools.count(20)


def compiled() -> int:
    return sum(len(kernel.cache) for kernel in ladder.KERNELS_BY_OP.values())


@need("torch._tensor_str._str")
def printing_under_a_trace_fails_before_it_formats() -> bool:
    try:
        jax.make_jaxpr(lambda array: repr(wrap(array) + 1))(jnp.ones(3))
    except torch_jax.DataDependentError as error:
        return not {"_tensor_str", "_patch_contents"} & _frames(error)
    return False


def _frames(error: BaseException) -> set[str]:
    names, frame = set(), error.__traceback__
    while frame is not None:
        names.add(frame.tb_frame.f_code.co_name)
        frame = frame.tb_next
    return names


def storage() -> Any:
    return torch.arange(3, dtype=torch.uint8, device="jax").untyped_storage()


@need("torch.UntypedStorage.nbytes", "torch.UntypedStorage.__len__")
def storages_know_their_size() -> bool:
    return (storage().nbytes(), storage().size(), len(storage())) == (3, 3, 3)


@need("torch.UntypedStorage.data_ptr")
def storages_have_addresses() -> bool:
    return storage().data_ptr() != 0


@need("torch.UntypedStorage.resize_")
def storages_are_resized() -> bool:
    memory = ones(3).untyped_storage()
    memory.resize_(4)
    return memory.resizable() and memory.nbytes() == 4


@need("torch.UntypedStorage.cpu", "torch.UntypedStorage.__getitem__")
def storages_are_read() -> bool:
    return (storage().cpu().tolist(), storage()[2]) == ([0, 1, 2], 2)


@need("torch.UntypedStorage.copy_")
def storages_are_copied_to_the_host() -> bool:
    host = torch.UntypedStorage(3)
    host.copy_(storage(), non_blocking=True)
    return host.tolist() == [0, 1, 2]


@need("torch.UntypedStorage._write_file", "torch.UntypedStorage._set_from_file")
def storages_are_written_and_read() -> bool:
    with tempfile.TemporaryFile() as file:
        storage()._write_file(file, True, True, 1)
        file.seek(0)
        new = torch.zeros(3, dtype=torch.uint8, device="jax").untyped_storage()
        new._set_from_file(file, 0, True, 1)
        return new.tolist() == [0, 1, 2]


@need("torch.UntypedStorage._swap_data_ptr_")
def storages_change_places() -> bool:
    one, other = ones(3), torch.zeros(3, device="jax")
    places = one.data_ptr(), other.data_ptr()
    one.untyped_storage()._swap_data_ptr_(other.untyped_storage())
    return other[1:].tolist() == [1, 1] and (other.data_ptr(), one.data_ptr()) == places


@need("torch.UntypedStorage.is_shared", "torch.UntypedStorage.share_memory_")
def memory_that_is_not_shared_says_so() -> bool:
    try:
        nn.Linear(2, 2).to("jax").share_memory()
    except NotImplementedError as error:
        return "by value" in str(error) and not ones(2).is_shared()
    return False


for _name, _take in {
    "torch.Tensor.__dlpack__": jnp.from_dlpack,
    "torch.Tensor.__dlpack_device__": jnp.from_dlpack,
    "torch.to_dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "torch.from_dlpack": lambda x: torch.from_dlpack(x) * x,
}.items():
    need(_name)(lambda take=_take: take(ones(2)).tolist() == [1, 1])  # type: ignore[misc]


# --- torch.compile, autocast, processes -----------------------------------------------------------


@need("torch.clear_autocast_cache")
def casts_of_weights_are_dropped() -> bool:
    weight = ones(2, 2).requires_grad_()
    torch.set_autocast_enabled("jax", True)
    try:
        ones(2, 2) @ weight
        assert autocast._casts.found
        torch.clear_autocast_cache()
        return not autocast._casts.found
    finally:
        torch.set_autocast_enabled("jax", False)
        autocast.clear_cache()


@need("torch._TorchCompileInductorWrapper.__call__")
def compile_needs_no_backend_named() -> bool:
    torch._dynamo.reset()
    return torch.compile(lambda: torch.arange(3, device="jax") * 2)().tolist() == [0, 2, 4]


@need("torch._C._conv_determine_backend_memory_format")
def a_graph_knows_the_strides_of_a_convolution() -> bool:
    torch._dynamo.reset()
    x = torch.ones(2, 2, 2, next(_lengths), device="jax").to(memory_format=torch.channels_last)
    convolve = torch.compile(lambda x: nn.functional.conv2d(x, x[:, :, :1, :1]).contiguous())
    return convolve(x).is_contiguous()


@need("multiprocessing.reduction.ForkingPickler.register")
def tensors_go_to_processes() -> bool:
    sent = multiprocessing.reduction.ForkingPickler.dumps(ones(2))
    return on_jax(pickle.loads(sent))


@need("torch.distributed.distributed_c10d.BackendConfig.__init__")
def a_process_group_needs_no_backend_named() -> bool:
    config = torch.distributed.distributed_c10d.BackendConfig("undefined")
    return config.device_backend_map == {"cpu": "gloo"}


@need("torch.distributed.distributed_c10d.Backend.register_backend")
def the_device_has_a_backend() -> bool:
    return torch.distributed.get_default_backend_for_device("jax") == "jax"


@need("torch.distributed.device_mesh.init_device_mesh")
def a_mesh_makes_a_group_of_the_device() -> bool:
    dist = torch.distributed
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with unittest.mock.patch.dict(os.environ, ranks):
        try:
            mesh = dist.device_mesh.init_device_mesh("jax", (1,))
            return dist.get_backend(mesh.get_group()) == "jax"
        finally:
            dist.destroy_process_group()


_lengths = itertools.count(2)  # DTensor and fake tensors remember what they decide for a shape


@need("torch.distributed.tensor.DTensor")
def attention_is_split() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        dist = torch.distributed
        dist.init_process_group("jax", init_method=f"file://{folder}/f", rank=0, world_size=1)
        try:
            mesh = dist.device_mesh.init_device_mesh("jax", (1,))
            heads = tensor.distribute_tensor(ones(1, 2, next(_lengths), 4), mesh, [tensor.Shard(1)])
            attended = F.scaled_dot_product_attention(heads, heads, heads)
            return attended.placements == (tensor.Shard(1),)
        finally:
            dist.destroy_process_group()


@need("torch.nn.parallel.DistributedDataParallel.__init__")
def ddp_looks_for_unused_parameters() -> bool:
    """A backward pass gives gradients to that one of two modules that ran."""
    dist, model = torch.distributed, nn.ModuleDict({n: nn.Linear(2, 2) for n in "ab"}).to("jax")
    model.forward = model["a"].forward
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("jax", init_method=f"file://{folder}/f", rank=0, world_size=1)
        try:
            ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            ddp(ones(1, 2)).sum().backward()
            return model["a"].weight.grad is not None and model["b"].weight.grad is None
        finally:
            dist.destroy_process_group()
            backward.AROUND.clear()


@need("torch.nn.parallel.data_parallel._get_available_device_type")
def models_on_the_cpu_stay_there() -> bool:
    return nn.DataParallel(nn.Linear(1, 1))(torch.ones(1, 1)).device.type == "cpu"
