"""Process groups, loaders, other processes, files."""

from __future__ import annotations

import copy
import io
import os
import pathlib
import pickle
import tempfile

import torch
from torch import nn

from tests.startup.cpu_programs import group, model, program


@program
def group_without_backend():
    import torch.distributed as dist

    with group():
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.barrier()
        objs = [None]
        dist.all_gather_object(objs, {"a": torch.ones(2)})
        listed = [1]
        dist.broadcast_object_list(listed)
        return (
            dist.get_backend(),
            x,
            objs,
            str(dist.group.WORLD._device_types),
            dist.get_backend_config(),
        )


@program
def group_gloo():
    import torch.distributed as dist

    with group("gloo"):
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.barrier()
        m = nn.parallel.DistributedDataParallel(model())
        loss = m(torch.ones(3, 4)).sum()
        loss.backward()
        return (dist.get_backend(), x, [p.grad for p in m.parameters()])


@program
def device_mesh():
    from torch.distributed.device_mesh import init_device_mesh

    with group("gloo"):
        mesh = init_device_mesh("cpu", (1,))
        from torch.distributed.tensor import Shard, distribute_tensor

        t = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        from torch.distributed.fsdp import fully_shard

        m = model()
        fully_shard(m, mesh=mesh)
        out = m(torch.ones(1, 4)).sum()
        out.backward()
        return ((t + 1).full_tensor(), out)


@program
def fsdp1_cpu():

    with group("gloo"):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        m = FSDP(model(), device_id=torch.device("cpu"))
        return m(torch.ones(1, 4))


@program
def data_parallel():
    m = nn.DataParallel(model())
    return (m(torch.ones(3, 4)), m.device_ids, [str(p.device) for p in m.parameters()])


@program
def data_parallel_functional():
    return nn.parallel.data_parallel(model(), torch.ones(3, 4))


@program
def data_parallel_ids():
    return nn.DataParallel(model(), device_ids=[0])(torch.ones(3, 4))


@program
def scatter_gather():
    from torch.nn.parallel import replicate

    return replicate(model(), [0])


@program
def dcp_async():
    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory() as d:
        f = dcp.async_save({"a": torch.arange(3.0)}, checkpoint_id=d, no_dist=True)
        f.result()
        s = {"a": torch.zeros(3)}
        dcp.load(s, checkpoint_id=d, no_dist=True)
        return s


@program
def dcp_async_group():
    import torch.distributed.checkpoint as dcp

    with group("gloo"):
        with tempfile.TemporaryDirectory() as d:
            f = dcp.async_save({"a": torch.arange(3.0)}, checkpoint_id=d)
            f.result()
            s = {"a": torch.zeros(3)}
            dcp.load(s, checkpoint_id=d)
            return s


@program
def dcp_sync():
    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory() as d:
        m = model()
        dcp.save({"m": m.state_dict()}, checkpoint_id=d, no_dist=True)
        s = {"m": model().state_dict()}
        dcp.load(s, checkpoint_id=d, no_dist=True)
        return s


@program
def dcp_state_dict():
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_state_dict,
    )

    m = model()
    o = torch.optim.Adam(m.parameters())
    m(torch.ones(1, 4)).sum().backward()
    o.step()
    return (
        get_model_state_dict(m, options=StateDictOptions(full_state_dict=True, cpu_offload=True)),
        get_state_dict(m, o),
    )


@program
def state_staging():
    from torch.distributed._state_dict_utils import (
        _copy_state_dict,
        _create_cpu_state_dict,
        _offload_state_dict_to_cpu,
    )

    sd = model().state_dict()
    c = _create_cpu_state_dict(sd)
    return (_copy_state_dict(sd, c), _offload_state_dict_to_cpu(sd))


@program
def state_dict_stager():
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    return StateDictStager(pin_memory=False, share_memory=True).stage(model().state_dict())


@program
def loader():
    from torch.utils.data import DataLoader, TensorDataset

    return list(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2))


@program
def loader_pinned():
    from torch.utils.data import DataLoader, TensorDataset

    return list(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, pin_memory=True))


@program
def loader_workers_pinned():
    from torch.utils.data import DataLoader, TensorDataset

    return list(
        DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, pin_memory=True, num_workers=1)
    )


@program
def loader_workers():
    from torch.utils.data import DataLoader, TensorDataset

    return list(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, num_workers=1))


@program
def loader_shuffled():
    from torch.utils.data import DataLoader, TensorDataset

    g = torch.Generator().manual_seed(0)
    return (
        list(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, shuffle=True, generator=g)),
        torch.utils.data.random_split(range(4), [2, 2], generator=g)[0].indices,
    )


@program
def checkpointing():
    from torch.utils.checkpoint import checkpoint

    r = []
    for re in (True, False):
        m = model()
        x = torch.ones(2, 4, requires_grad=True)
        torch.manual_seed(1)
        y = checkpoint(lambda x, m=m: nn.functional.dropout(m(x)), x, use_reentrant=re)
        y.sum().backward()
        r += [y, x.grad]
    return r


@program
def checkpoint_offload():
    with torch.autograd.graph.save_on_cpu():
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        return x.grad


@program
def checkpoint_offload_pinned():
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        return x.grad


@program
def save_load():
    b = io.BytesIO()
    m = model()
    torch.save(m.state_dict(), b)
    b.seek(0)
    r = torch.load(b)
    b.seek(0)
    torch.save(m, b)
    b.seek(0)
    m2 = torch.load(b, weights_only=False)
    b.seek(0)
    return (r, m2.state_dict(), len(b.getvalue()))


@program
def save_mmap():
    with tempfile.TemporaryDirectory() as d:
        torch.save(torch.arange(3), d + "/a")
        a = torch.load(d + "/a", mmap=True)
        torch.save(torch.arange(3), d + "/b", _use_new_zipfile_serialization=False)
        return (a, torch.load(d + "/b"), torch.load(d + "/a", map_location="meta"))


@program
def load_cuda():
    b = io.BytesIO()
    torch.save(torch.ones(2), b)
    b.seek(0)
    return torch.load(b, map_location="cuda")


@program
def load_weights_only_bad():
    b = io.BytesIO()
    torch.save(model(), b)
    b.seek(0)
    return torch.load(b)


@program
def load_skip():
    with torch.serialization.skip_data():
        b = io.BytesIO()
        torch.save(torch.ones(2), b)
    return len(b.getvalue())


def _child(q, x):
    q.put((x * 2).tolist())


@program
def mp_fork():
    import torch.multiprocessing as mp

    c = mp.get_context("fork")
    q = c.SimpleQueue()
    p = c.Process(target=_child, args=(q, torch.ones(2)))
    p.start()
    r = q.get()
    p.join()
    return (r, p.exitcode)


@program
def mp_pool():
    import torch.multiprocessing as mp

    with mp.get_context("fork").Pool(1) as pool:
        return pool.map(torch.sin, [torch.ones(2)])


@program
def mp_share():
    x = torch.ones(3).share_memory_()
    return (x.is_shared(), nn.Linear(1, 1).share_memory().weight.is_shared())


@program
def mp_sharing_strategy():
    import torch.multiprocessing as mp

    return (mp.get_sharing_strategy(), sorted(mp.get_all_sharing_strategies()))


@program
def forked():
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(
                w,
                str(
                    (torch.rand(2, generator=torch.Generator().manual_seed(0)) + 1).tolist()
                ).encode(),
            )
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return os.read(r, 1000).decode()


@program
def pickles():
    x = torch.arange(4.0).view(2, 2).t()
    p = nn.Parameter(x)
    return (
        pickle.loads(pickle.dumps(x)),
        pickle.loads(pickle.dumps(p)),
        len(pickle.dumps(x)),
        pickle.loads(pickle.dumps(torch.device("cpu"))),
        pickle.loads(pickle.dumps(torch.float32)),
    )


@program
def deepcopies():
    x = torch.arange(4.0).view(2, 2).t()
    m = model()
    m.extra = x
    c = copy.deepcopy(m)
    return (c.state_dict(), c.extra, copy.copy(x), copy.deepcopy(x.untyped_storage()).tolist())


@program
def hub_local():
    with tempfile.TemporaryDirectory() as d:
        pathlib.Path(d, "hubconf.py").write_text(
            "import torch\ndependencies=['torch']\ndef m(): return torch.nn.Linear(1,1)\n"
        )
        return (
            torch.hub.list(d, source="local"),
            type(torch.hub.load(d, "m", source="local")).__name__,
        )


@program
def memory_fmt():
    x = torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last)
    return ((x + 1).stride(), x.clone().stride(), torch.empty_like(x).stride())
