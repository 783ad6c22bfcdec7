"""Two halves of a model on two cards, in the manner of PyTorch's tutorial, and packed sequences."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
cuda = torch.cuda.is_available()
first, second = ("cuda:0", "cuda:1") if cuda else ("cpu", "cpu")


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10).to(first)
        self.net2 = nn.Linear(10, 5).to(second)

    def forward(self, x):
        x = torch.relu(self.net1(x.to(first)))
        return self.net2(x.to(second))


model = Toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
labels = torch.ones(4, 5).to(second)
loss = nn.functional.mse_loss(model(torch.randn(4, 10)), labels)
loss.backward()
optimizer.step()
print(f"{loss.item():.4f}")
gru = nn.GRU(2, 3, batch_first=True)
packed = pack_padded_sequence(torch.randn(2, 4, 2), [4, 2], batch_first=True)
if cuda:
    gru, packed = gru.cuda(), packed.cuda()
    gru.flatten_parameters()
output, lengths = pad_packed_sequence(gru(packed)[0], batch_first=True)
print(f"{output.sum().item():.4f}", lengths.tolist())
