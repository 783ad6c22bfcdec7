"""Names of tensors' types and Variable, as programs of 2018 have them."""

import torch
from torch.autograd import Variable

torch.manual_seed(0)
cuda = True if torch.cuda.is_available() else False
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
LongTensor = torch.cuda.LongTensor if cuda else torch.LongTensor
adversarial_loss = torch.nn.BCELoss()
layer = torch.nn.Linear(3, 1)
imgs = torch.rand(2, 3)
if cuda:
    layer.cuda()
    adversarial_loss.cuda()
real_imgs = Variable(imgs.type(Tensor))
valid = Variable(Tensor(2, 1).fill_(1.0), requires_grad=False)
labels = Variable(LongTensor([0, 1]))
loss = adversarial_loss(torch.sigmoid(layer(real_imgs)), valid)
loss.backward()
assert real_imgs.is_cuda == cuda == layer.weight.is_cuda
assert isinstance(real_imgs, Tensor) and real_imgs.type() == Tensor.__name__.replace(
    "FloatTensor" if "." not in Tensor.__name__ else "\0", "torch.FloatTensor"
)
print(real_imgs.type().rpartition(".")[2], labels.type().rpartition(".")[2], labels.tolist())
print(f"{loss.item():.4f} {layer.weight.grad.sum().item():.4f}", loss.data.cpu().numpy().shape)
if real_imgs.get_device() >= 0:
    with torch.cuda.device(real_imgs.get_device()):
        extra = torch.cuda.FloatTensor([1.0, 2.0])
else:
    extra = torch.FloatTensor([1.0, 2.0])
print(extra.half().type().rpartition(".")[2], extra.new(2, 2).zero_().sum().item())
