"""``torch_jax.MasterWeights``: bfloat16 parameters with float32 masters, as on the CPU."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn, optim

import torch_jax
from tests.support import executors
from tests.support.jitted import assert_skipped
from tests.support.steps import step_of
from torch_jax import MasterWeights

BF16 = torch.bfloat16
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, foreach=False),
    "adamw foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5),
}
RUNS = {
    **executors.EXECUTORS,
    "recorded": torch_jax.jit,
    "pure": torch_jax.jit(pure=True),
}


class Training:
    """A model in bfloat16, with a norm in float32, whose gradients are the same everywhere."""

    def __init__(self, device, name="sgd", runs=lambda function: function):
        torch.manual_seed(0)
        made = {"weight": torch.randn(4, 3).to(BF16), "bias": torch.zeros(3, dtype=BF16)}
        self.model = nn.ParameterDict({**made, "scale": torch.ones(3)}).to(device)
        self.optimizer = MasterWeights(OPTIMIZERS[name](self.model.parameters()))
        self.device, self.call = device, runs(self.one_step)

    def one_step(self, x):
        self.optimizer.zero_grad()
        # sums of powers of two: bfloat16 holds them exactly, in whatever order they are added
        y = self.model["weight"] * x + self.model["bias"]
        (y.float() * self.model["scale"]).sum().backward()
        self.optimizer.step()

    def run(self, count=6):
        schedule = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        for at in range(count):
            self.call(torch.full((4, 3), 2.0**-at, dtype=BF16, device=self.device))
            schedule.step()
        return self

    def tensors(self):
        """Parameters, masters and states, on the CPU."""
        states = [v for s in self.optimizer.state.values() for v in s.values()]
        found = [*self.model.values(), *self.optimizer.masters.values(), *states]
        return [t.detach().cpu() for t in found if isinstance(t, torch.Tensor)]


CASES = [
    *(executors.param(run, "adamw") for run in executors.EXECUTORS),
    *(pytest.param(name, run, marks=pytest.mark.slow)
      for name in OPTIMIZERS for run in ("eager", "recorded", "pure")
      if (name, run) != ("adagrad", "pure")),  # it counts its steps on the CPU
]  # fmt: skip


@pytest.mark.parametrize("name, run", CASES)
def test_steps_are_those_of_the_cpu(name, run):
    training = Training("jax", name, RUNS[run]).run()
    torch.testing.assert_close(training.tensors(), Training("cpu", name).run().tensors())
    if run == "pure":
        assert_skipped(training.call)


def test_masters_are_those_of_a_model_in_float32():
    """And not those of steps that were rounded."""
    model = nn.Linear(2, 2, bias=False).to("jax", BF16)
    plain = nn.Parameter(model.weight.detach().float())
    optimizer = MasterWeights(optim.SGD(model.parameters(), lr=2.0**-12))
    whole = optim.SGD([plain], lr=2.0**-12)
    for _ in range(20):
        model.weight.grad, plain.grad = torch.ones_like(model.weight), torch.ones_like(plain)
        optimizer.step()
        whole.step()
    assert torch.equal(optimizer.masters[model.weight].cpu(), plain.detach().cpu())
    assert torch.equal(model.weight.detach().cpu(), plain.detach().cpu().to(BF16))


def test_states_are_saved_and_loaded():
    training, other, file = Training("jax").run(3), Training("jax").run(1), io.BytesIO()
    torch.save([training.model.state_dict(), training.optimizer.state_dict()], file)
    file.seek(0)
    model, optimizer = torch.load(file, weights_only=True)
    other.model.load_state_dict(model)
    other.optimizer.load_state_dict(optimizer)
    for count in (0, 2):
        tensors = [one.run(count).tensors() for one in (other, training)]
        torch.testing.assert_close(*tensors, rtol=0, atol=0)
    del optimizer["masters"][-1]
    with pytest.raises(ValueError, match="masters of 1 parameters, and the optimizer 2"):
        other.optimizer.load_state_dict(optimizer)


def test_a_state_without_masters_takes_the_parameters():
    plain = optim.SGD([nn.Parameter(torch.ones(2, dtype=BF16, device="jax"))], lr=0.5)
    parameter = nn.Parameter(torch.zeros(2, dtype=BF16, device="jax"))
    optimizer = MasterWeights(optim.SGD([parameter], lr=0.1))
    with torch.no_grad():
        parameter.fill_(3)
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.masters[parameter].tolist() == [3, 3]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_copies_groups_closures_and_an_optimizer_that_has_stepped():
    parameter, late = (nn.Parameter(torch.ones(2, dtype=BF16, device="jax")) for _ in range(2))
    inner = optim.SGD([parameter], lr=0.5, momentum=0.5)
    parameter.grad = torch.ones_like(parameter)
    inner.step()
    optimizer = MasterWeights(inner)
    master = optimizer.masters[parameter]
    assert optimizer.state[master]["momentum_buffer"].dtype == torch.float32
    optimizer.add_param_group({"params": [late], "lr": 0.25})

    def closure():
        optimizer.zero_grad()
        loss = (parameter * 2 + late).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2 * (0.5 * 2 + 1)
    # momentum 0.5 * 1 + 2
    assert parameter.tolist() == [-0.75, -0.75] and late.tolist() == [0.75, 0.75]
    twin = copy.deepcopy(optimizer)
    assert [m.tolist() for m in twin.masters.values()] == [[-0.75, -0.75], [0.75, 0.75]]
    assert twin.masters.keys().isdisjoint(optimizer.masters)
    assert twin.param_groups[0]["params"][0] is next(iter(twin.masters.values()))


def test_memory_is_two_bytes_and_four_beside_the_states():
    model = nn.Linear(64, 64).to("jax", BF16)
    optimizer = MasterWeights(optim.AdamW(model.parameters()))
    step = step_of(model, optimizer, lambda y: y.float().square().mean())
    x = torch.ones(4, 64, dtype=BF16, device="jax")
    step(x)
    memory = torch_jax.lower(step, x).memory_analysis()
    least = (64 * 64 + 64) * (2 + 4 + 8) + 4 * 64 * 2
    assert least <= memory.argument_size_in_bytes <= least + 512  # counts and numbers
