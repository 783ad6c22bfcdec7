"""A loader with workers and pinned memory, after the card has been used."""

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([float(i)]), {"square": i * i}


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weight = torch.ones(1, device=device) * 2
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True, drop_last=True)
    total = torch.zeros((), device=device)
    for x, extra in loader:
        x = x.to(device, non_blocking=True)
        total += (x * weight).sum() + extra["square"].to(device, non_blocking=True).sum()
    print(total.item())


if __name__ == "__main__":
    main()
