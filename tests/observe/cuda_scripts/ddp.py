"""DistributedDataParallel under torchrun, in the manner of PyTorch's tutorial."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl" if use_cuda else "gloo")
    torch.manual_seed(0)
    device = torch.device(f"cuda:{local_rank}" if use_cuda else "cpu")
    model = torch.nn.Linear(3, 1).to(device)
    model = DDP(model, device_ids=[local_rank] if use_cuda else None)
    data = TensorDataset(torch.arange(24.0).view(8, 3) / 24, torch.ones(8, 1))
    sampler = DistributedSampler(data, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=2, sampler=sampler, pin_memory=use_cuda):
            x, y = x.to(device, non_blocking=True), y.to(device)
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} {total.item():.4f} {model.module.weight.sum().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
