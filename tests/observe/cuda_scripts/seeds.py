"""Seeds and generators of a card: the same numbers for the same seed."""

import random

import torch

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


set_seed(3)
a = torch.randn(3, device=device)
set_seed(3)
b = torch.randn(3, device=device)
print(torch.equal(a, b))
generator = torch.Generator(device).manual_seed(5)
c = torch.rand(4, device=device, generator=generator)
d = torch.rand(4, device=device, generator=torch.Generator(device=device).manual_seed(5))
print(torch.equal(c, d), generator.device.type in ("cpu", "cuda", "jax"))
state = torch.cuda.get_rng_state() if cuda else torch.get_rng_state()
e = torch.randperm(6, device=device)
torch.cuda.set_rng_state(state) if cuda else torch.set_rng_state(state)
print(torch.equal(e, torch.randperm(6, device=device)))
with torch.random.fork_rng():
    torch.rand(2, device=device)
    inside = torch.rand(1, device=device)
torch.rand(2, device=device)
print(torch.equal(inside, torch.rand(1, device=device)))
loader = torch.utils.data.DataLoader(
    torch.arange(6), shuffle=True, generator=torch.Generator().manual_seed(0), batch_size=3
)
print([batch.tolist() for batch in loader])
