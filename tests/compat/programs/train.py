"""A classifier trained in the ways of PyTorch/XLA: ``WAY`` selects one, the program is the same."""

import os

from torch_jax.compat.install import install

install()

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_xla import runtime as xr

WAY = os.environ.get("WAY", "optimizer_step")


def tell(step, loss):
    xm.master_print(f"step {step}: {loss.item():.5f}")


def data():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(128, 8, generator=generator)
    return TensorDataset(points, (points.sum(1) > 0).long())


class Training:
    def __init__(self):
        if WAY == "ddp":
            dist.init_process_group("xla", init_method="xla://")
        self.device = torch_xla.device()
        torch.manual_seed(xm.get_ordinal() if WAY == "optimizer_step" else 0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(self.device)
        if WAY == "optimizer_step":
            xm.broadcast_master_param(self.model)
        if WAY == "ddp":
            self.model = DistributedDataParallel(
                self.model, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        sampler = DistributedSampler(data(), xr.world_size(), xr.global_ordinal(), shuffle=False)
        loader = DataLoader(data(), batch_size=16, sampler=sampler, drop_last=True)
        self.loader = pl.MpDeviceLoader(loader, self.device)
        self.compiled = torch_xla.compile(self.step, name="step")

    def step(self, points, labels):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(points), labels)
        loss.backward()
        if WAY == "optimizer_step":
            xm.optimizer_step(self.optimizer)
        else:
            self.optimizer.step()
        return loss

    def run(self):
        tracker = xm.RateTracker()
        for epoch in range(2):
            for number, (points, labels) in enumerate(self.loader):
                assert xm.is_xla_tensor(points)
                run = self.compiled if WAY == "compile" else self.step
                loss = run(points, labels)
                tracker.add(len(points))
                if number % 2 == 0:
                    mean = xm.all_reduce(xm.REDUCE_SUM, loss.detach(), 1 / xr.world_size())
                    xm.add_step_closure(tell, args=(number, mean))
        xm.wait_device_ops()
        right = sum(
            (self.model(points).argmax(1) == labels).float().mean().item()
            for points, labels in self.loader
        )
        share = xm.mesh_reduce("share", right / len(self.loader), lambda all: sum(all) / len(all))
        xm.master_print(f"share {share:.5f}, rate {tracker.global_rate() > 0}")
        xm.master_print("processes", xr.world_size(), xm.xrt_world_size(), xr.device_type())
        found = xm.rendezvous("end", f"rank {xm.get_ordinal()}".encode())
        xm.master_print(b", ".join(found).decode())
        assert met.metrics_report() and met.counter_names()


def main(index):
    assert index == xm.get_local_ordinal()
    Training().run()


if __name__ == "__main__":
    if WAY == "ddp":
        torch_xla.launch(main)
    else:
        xmp.spawn(main, args=())
