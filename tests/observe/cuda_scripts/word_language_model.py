"""An LSTM over words, in the manner of pytorch/examples/word_language_model."""

import math

import torch
import torch.nn as nn

torch.manual_seed(1111)
use_cuda = torch.cuda.is_available()
device = torch.device("cuda") if use_cuda else torch.device("cpu")
ntokens, bptt, batch = 11, 5, 4


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.drop = nn.Dropout(0.0)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nlayers, self.nhid, self.ntoken = nlayers, nhid, ntoken

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return tuple(weight.new_zeros(self.nlayers, bsz, self.nhid) for _ in range(2))


data = batchify(torch.arange(64) * 7 % ntokens, batch)
model = RNNModel(ntokens, 6, 8, 1).to(device)
criterion = nn.NLLLoss()
total_loss, hidden = 0.0, model.init_hidden(batch)
for i in range(0, 15, bptt):
    inputs, targets = get_batch(data, i)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(inputs, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-2.0)
    total_loss += loss.item()
    print("| batch {:3d} | loss {:5.3f} | ppl {:6.2f}".format(i, total_loss, math.exp(loss)))
