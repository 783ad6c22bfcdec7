"""A small ResNet with the usual switches of cuDNN and TF32, in channels_last."""

import torch
import torch.nn as nn

torch.manual_seed(3)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = False
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
if torch.backends.cudnn.is_available() and torch.cuda.is_available():
    assert torch.backends.cudnn.version() >= 7603
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n)
        self.conv2, self.bn2 = nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(x + y)


model = nn.Sequential(nn.Conv2d(3, 4, 1), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
images = torch.randn(2, 3, 6, 6)
model = model.to(device=device, memory_format=torch.channels_last)
images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
output = model(images)
output.square().mean().backward()
weight = model[1].conv1.weight
print(images.is_contiguous(memory_format=torch.channels_last), output.shape)
print("%.4f %.4f" % (output.sum().item(), weight.grad.abs().sum().item()))
torch.backends.cudnn.benchmark = False
