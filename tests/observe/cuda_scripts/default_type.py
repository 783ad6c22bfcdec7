"""set_default_tensor_type("torch.cuda.FloatTensor"): all that is made is made on the card."""

import torch

if torch.cuda.is_available():
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
else:
    torch.set_default_tensor_type("torch.FloatTensor")
x = torch.arange(6.0).view(2, 3)
w = torch.ones(3, requires_grad=True)
y = (x @ w).pow(2).sum()
y.backward()
print(x.is_cuda == torch.cuda.is_available(), y.item(), w.grad.tolist())
torch.set_default_tensor_type("torch.FloatTensor")
print(torch.ones(1).is_cuda)
