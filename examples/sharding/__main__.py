"""Trains a small Llama on one device and on a mesh of eight, FSDP and tensor parallel at once.

``python -m examples.sharding``: on a CPU, JAX makes eight devices of it.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import torch
import torch.nn.functional as F

import torch_jax
from examples.sharding.llama import Config, Llama

STEPS, BATCH, LENGTH = 12, 8, 32
# One axis splits the batch, and every weight once more (FSDP); the other the heads and the hidden
# units (tensor parallel): rows of what comes first, columns of what comes second.
RULES = {
    "*.out.weight": ("data", "model"),
    "*.down.weight": ("data", "model"),
    "*norm.weight": (),
    "*.weight": ("model", "data"),
}


def batches() -> list[torch.Tensor]:
    """Sequences that count in steps of their own, with some noise."""
    torch.manual_seed(1)
    start, stride = torch.randint(256, (STEPS, BATCH, 1)), torch.randint(1, 4, (STEPS, BATCH, 1))
    noise = torch.rand(STEPS, BATCH, LENGTH + 1) < 0.05
    return list((start + stride * torch.arange(LENGTH + 1) + noise) % 256)


def train(model: Llama, loader: torch_jax.DeviceLoader) -> list[float]:
    """The loss of each step; forward, backward, clipping and AdamW are one program."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    @torch_jax.jit  # Python runs at each call: it takes little beside a step over eight devices
    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return [step(tokens).item() for tokens in loader]


def main() -> None:
    """Train twice, and print what is where and how the losses compare."""
    config = Config()
    torch.manual_seed(0)
    on_cpu = Llama(config)
    state = on_cpu.state_dict()

    mesh = torch_jax.mesh(data=4, model=2)
    with torch.device("meta"):  # no device ever holds the whole model
        sharded = Llama(
            config, lambda x: torch_jax.with_sharding_constraint(x, ("data", None, None), mesh)
        )
    torch_jax.shard(sharded, mesh, RULES, init=lambda model: model.load_state_dict(state))
    print(torch_jax.where_is(sharded, depth=0))
    eight = train(sharded, torch_jax.DeviceLoader(batches(), mesh=mesh, spec=("data",)))

    one = train(on_cpu.to("jax"), torch_jax.DeviceLoader(batches()))
    for number, (a, b) in enumerate(zip(one, eight, strict=True)):
        print(f"step {number}: one device {a:.5f}, eight {b:.5f}")
    worst = max(abs(a - b) / a for a, b in zip(one, eight, strict=True))
    print(f"losses differ by less than 1e-4 of themselves: {worst < 1e-4}")


if __name__ == "__main__":
    main()
