"""Ordinary training steps, plain and under ``torch_jax.jit``: the same losses, the same state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedules
from torch.utils import checkpoint

import torch_jax
from tests.support.jitted import assert_run, both
from torch_jax import DataDependentError, NotTraceableError

pytestmark = pytest.mark.xla_both

STEPS = 20


class Training(NamedTuple):
    """A step, its batches, what it trains and with what."""

    step: Callable[..., torch.Tensor]
    batches: list[tuple[torch.Tensor, ...]]
    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    schedulers: tuple[Any, ...] = ()


def fresh(make: Callable[[], Training]) -> Training:
    """A training from a fixed seed, its generators as at the start of the first step."""
    torch.manual_seed(0)
    made = make()
    torch.manual_seed(1)
    return made


def losses_of(step: Callable[..., torch.Tensor], training: Training) -> list[torch.Tensor]:
    return [step(*batch).detach().cpu() for batch in training.batches]


def assert_equal_states(actual: Training, expected: Training, tolerance: float) -> None:
    """Parameters, buffers, gradients and the optimizers' state, the same names in each."""
    for ours, theirs in zip(actual.modules, expected.modules, strict=True):
        assert_close(ours.state_dict(), theirs.state_dict(), tolerance)
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                assert_close({f"{name}.grad": p.grad}, {f"{name}.grad": q.grad}, tolerance)
    for mine, its in zip(actual.optimizers, expected.optimizers, strict=True):
        ours, theirs = mine.state_dict(), its.state_dict()
        assert ours["state"].keys() == theirs["state"].keys()
        for key, state in theirs["state"].items():
            assert_close(ours["state"][key], state, tolerance)
        for group, wanted in zip(ours["param_groups"], theirs["param_groups"], strict=True):
            assert numbers_of(group) == pytest.approx(numbers_of(wanted))
    for ours, theirs in zip(actual.schedulers, expected.schedulers, strict=True):
        assert ours.last_epoch == theirs.last_epoch
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr())


def numbers_of(group: dict[str, Any]) -> dict[str, float]:
    """The numbers of a parameter group, those in tuples one by one; as Python's own types."""
    found = {}
    for key, value in group.items():
        for index, part in enumerate(value if isinstance(value, tuple) else (value,)):
            assert not isinstance(part, torch.SymFloat), f"{key} was left traced"
            if isinstance(part, float):
                found[f"{key}[{index}]"] = part
    return found


def assert_close(actual: dict, expected: dict, tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor) or isinstance(actual[key], torch.Tensor):
            ours, theirs = torch.as_tensor(actual[key]).cpu(), torch.as_tensor(value).cpu()
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance, check_dtype=key != "step",
                msg=lambda m, key=key: f"{key}: {m}",
            )  # fmt: skip
        else:
            assert actual[key] == value, key


def check(make: Callable[[], Training], kinds: int = 1, tolerance: float = 1e-4) -> None:
    """Train plainly and both ways; Python is skipped but for so many ``kinds`` of call."""
    eager = fresh(make)
    expected = losses_of(eager.step, eager)
    for pure in (False, True):
        compiled = fresh(make)
        step = torch_jax.jit(compiled.step, pure=pure)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = losses_of(step, compiled)
        torch.testing.assert_close(losses, expected, rtol=tolerance, atol=tolerance)
        assert_equal_states(compiled, eager, tolerance)
        assert_run(step, pure, kinds)


def random_batches(*shape: int, classes: int = 3, count: int = STEPS) -> list[tuple]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(count):
        x = torch.randn(shape, generator=generator).to("jax")
        y = torch.randint(0, classes, (shape[0],), generator=generator).to("jax")
        made.append((x, y))
    return made


def token_batches(vocabulary: int = 11) -> list[tuple]:
    generator = torch.Generator().manual_seed(2)
    make = lambda: torch.randint(0, vocabulary, (4, 9), generator=generator)  # noqa: E731
    return [(make().to("jax"),) for _ in range(STEPS)]


# --- models ---------------------------------------------------------------------------------------


def mlp(
    optimizer: Callable = lambda p: torch.optim.AdamW(p, lr=1e-2),
    schedule: Callable | None = None,
    dropout: float = 0.0,
    recompute: bool = False,
    mixed: bool = False,
    clip: bool = False,
    set_to_none: bool = True,
) -> Callable[[], Training]:
    def make() -> Training:
        model = nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
        ).to("jax")
        opt = optimizer(model.parameters())
        scheduler = schedule(opt) if schedule else None

        def step(x, y):
            opt.zero_grad(set_to_none=set_to_none)
            with torch.autocast("jax", dtype=torch.bfloat16, enabled=mixed):
                if recompute:
                    out = checkpoint.checkpoint(model, x, use_reentrant=False)
                else:
                    out = model(x)
                loss = F.cross_entropy(out, y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            opt.step()
            if scheduler is not None:
                scheduler.step()
            return loss

        scheduled = (scheduler,) if scheduler else ()
        return Training(step, random_batches(8, 6), [model], [opt], scheduled)

    return make


class Block(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(16, 2, 64, 0.0, batch_first=True, norm_first=True, bias=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device)
        return super().forward(x, mask, is_causal=True)


class GPT(nn.Module):
    def __init__(self, tied: bool = False):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.position = nn.Parameter(torch.randn(8, 16) * 0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def gpt(tied: bool = False) -> Callable[[], Training]:
    def make() -> Training:
        model = GPT(tied).to("jax")
        opt = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)

        def step(tokens):
            opt.zero_grad()
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            return loss

        return Training(step, token_batches(), [model], [opt])

    return make


def convolutions() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    ).to("jax")  # fmt: skip
    opt = torch.optim.SGD(
        model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, nesterov=True
    )

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    return Training(step, random_batches(4, 3, 8, 8, classes=5), [model], [opt])


def lstm() -> Training:
    model = nn.LSTM(5, 7, num_layers=2, batch_first=True).to("jax")
    head = nn.Linear(7, 3).to("jax")
    opt = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-2)

    def step(x, y):
        opt.zero_grad()
        out, _ = model(x)
        loss = F.cross_entropy(head(out[:, -1]), y)
        loss.backward()
        opt.step()
        return loss

    return Training(step, random_batches(4, 6, 5), [model, head], [opt])


def gan() -> Training:
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6)).to("jax")
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to("jax")
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    real, fake = torch.ones(8, 1, device="jax"), torch.zeros(8, 1, device="jax")

    def step(x, _):
        noise = torch.randn(8, 4, device="jax")
        of_critic.zero_grad()
        made = generator(noise)
        loss = F.binary_cross_entropy_with_logits(critic(x), real)
        loss = loss + F.binary_cross_entropy_with_logits(critic(made.detach()), fake)
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        fooled = F.binary_cross_entropy_with_logits(critic(made), real)
        fooled.backward()
        of_generator.step()
        return torch.stack([loss.detach(), fooled.detach()])

    batches = random_batches(8, 6)
    return Training(step, batches, [generator, critic], [of_generator, of_critic])


def averaging() -> Training:
    model = nn.Linear(6, 3).to("jax")
    average = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-2)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        return loss

    return Training(step, random_batches(8, 6), [model, average], [opt])


def swa_utils() -> Training:
    model = nn.Linear(6, 3).to("jax")
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        average.update_parameters(model)
        return loss

    return Training(step, random_batches(8, 6), [model, average], [opt])


MODELS = {
    "mlp": mlp(),
    "gpt": gpt(),
    "tied weights": gpt(tied=True),
    "convolutions": convolutions,
    "lstm": lstm,
    "gan": gan,
    "exponential moving average": averaging,
    "autocast": mlp(mixed=True),
    "autocast and clipping": mlp(mixed=True, clip=True),
    "clip_grad_norm_": mlp(clip=True),
    "dropout": mlp(dropout=0.3),
    "checkpoint": mlp(recompute=True),
    "checkpoint with dropout": mlp(recompute=True, dropout=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models_train_as_they_do_eagerly(make):
    check(make)


@pytest.mark.slow
def test_gradients_set_to_zero_instead_of_none():
    # The first step finds no gradients and makes them; all later ones write into them.
    check(mlp(set_to_none=False), kinds=2)


@pytest.mark.slow
def test_averaged_models_count_on_the_cpu():
    """Python adds to the count at each call; a call that skips Python would not."""
    eager, compiled = fresh(swa_utils), fresh(swa_utils)
    expected = losses_of(eager.step, eager)
    losses = losses_of(torch_jax.jit(compiled.step), compiled)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert_equal_states(compiled, eager, 1e-5)
    with pytest.raises(DataDependentError, match="on the CPU is asked for"):
        losses_of(torch_jax.jit(compiled.step, pure=True), compiled)


@both
def test_dropout_draws_the_masks_of_eager_from_the_same_seed(pure):
    drop = nn.Dropout(0.5)
    ones = torch.ones(64, device="jax")
    compiled = torch_jax.jit(lambda x: drop(x), pure=pure)
    torch.manual_seed(5)
    expected = [drop(ones).cpu() for _ in range(4)]
    torch.manual_seed(5)
    actual = [compiled(ones).cpu() for _ in range(4)]
    assert torch.equal(torch.stack(actual), torch.stack(expected))
    assert not torch.equal(actual[0], actual[1])


# --- optimizers -----------------------------------------------------------------------------------

O = torch.optim  # noqa: E741
OPTIMIZERS = {
    "AdamW": lambda p: O.AdamW(p, lr=1e-2),
    "AdamW amsgrad": lambda p: O.AdamW(p, lr=1e-2, amsgrad=True),
    "AdamW maximize": lambda p: O.AdamW(p, lr=1e-3, maximize=True),
    "AdamW loop": lambda p: O.AdamW(p, lr=1e-2, foreach=False),
    "AdamW capturable": lambda p: O.AdamW(p, lr=1e-2, capturable=True),
    "Adam": lambda p: O.Adam(p, lr=1e-2, weight_decay=0.1),
    "Adam fused": lambda p: O.Adam(p, lr=1e-2, fused=True),
    "Adam tensor lr": lambda p: O.Adam(p, lr=torch.tensor(1e-2, device="jax")),
    "SGD": lambda p: O.SGD(p, lr=0.1),
    "SGD momentum": lambda p: O.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD nesterov": lambda p: O.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD loop": lambda p: O.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "Adadelta": lambda p: O.Adadelta(p),
    "Adamax": lambda p: O.Adamax(p),
    "NAdam": lambda p: O.NAdam(p),
    "RAdam": lambda p: O.RAdam(p),
    "ASGD": lambda p: O.ASGD(p),
    "RMSprop": lambda p: O.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "two groups": lambda p: _two_groups([*p]),
}
ON_HOST = {  # these count their steps on the CPU
    "Adafactor": lambda p: O.Adafactor(p, lr=1e-2),
    "Adagrad": lambda p: O.Adagrad(p, lr=1e-2, lr_decay=0.01),
}


def _two_groups(parameters: list) -> torch.optim.Optimizer:
    decayed = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 3e-3}]
    return O.AdamW(groups, lr=1e-2, weight_decay=0.0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.slow
def test_optimizers_step_as_they_do_eagerly(optimizer):
    check(mlp(optimizer))


# They make their state out of gradients, or of numbers that they multiply.
TWO_KINDS = {
    "SGD dampening": lambda p: O.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "Rprop": lambda p: O.Rprop(p, lr=1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", TWO_KINDS.values(), ids=TWO_KINDS)
def test_optimizers_whose_first_step_is_another(optimizer):
    check(mlp(optimizer), kinds=2)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ON_HOST.values(), ids=ON_HOST)
def test_optimizers_that_count_on_the_cpu(optimizer):
    eager, compiled = fresh(mlp(optimizer)), fresh(mlp(optimizer))
    losses = losses_of(torch_jax.jit(compiled.step), compiled)
    torch.testing.assert_close(losses, losses_of(eager.step, eager), rtol=1e-4, atol=1e-4)
    assert_equal_states(compiled, eager, 1e-4)
    with pytest.raises(NotTraceableError, match="writes into a CPU tensor"):
        losses_of(torch_jax.jit(compiled.step, pure=True), compiled)


def lbfgs() -> Training:
    model = nn.Linear(6, 3).to("jax")
    opt = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def step(x, y):
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure)

    return Training(step, random_batches(8, 6, count=3), [model], [])


def test_lbfgs_looks_at_values():
    eager, compiled = fresh(lbfgs), fresh(lbfgs)
    expected = losses_of(eager.step, eager)
    torch.testing.assert_close(losses_of(torch_jax.jit(compiled.step), compiled), expected)
    assert_equal_states(compiled, eager, 1e-4)
    with pytest.raises(DataDependentError) as caught:
        losses_of(torch_jax.jit(compiled.step, pure=True), compiled)
    line = compiled.step.__code__.co_firstlineno + 7
    assert f"{__file__}:{line}, in step" in str(caught.value)


CHANGES = {
    "lr": (OPTIMIZERS["AdamW"], [0.1, 1, 0.0, 1e-3]),
    "betas": (OPTIMIZERS["AdamW"], [(0.8, 0.99), (0.5, 0.9)]),
    "eps": (OPTIMIZERS["AdamW"], [1e-3, 1e-6]),
    "weight_decay": (OPTIMIZERS["AdamW"], [0.1, 0.3]),
    "momentum": (OPTIMIZERS["SGD momentum"], [0.5, 0.95]),
    "alpha": (OPTIMIZERS["RMSprop"], [0.5, 0.8]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_numbers_of_an_optimizer_may_change_between_steps(name):
    optimizer, values = CHANGES[name]

    def make() -> Training:
        training = mlp(optimizer)()
        return training._replace(batches=training.batches[: 4 + 2 * len(values)])

    def change(training: Training, index: int) -> None:
        if index >= 4 and index % 2 == 0:
            training.optimizers[0].param_groups[0][name] = values[index // 2 - 2]

    check_between(make, change)


def check_between(
    make: Callable[[], Training], change: Callable[[Training, int], Any], before: bool = True
) -> None:
    """As :func:`check`, with something that changes between the steps, before or after each."""

    def train(training: Training, step: Callable) -> list[torch.Tensor]:
        losses = []
        for index, batch in enumerate(training.batches):
            if before:
                change(training, index)
            losses.append(step(*batch).detach().cpu())
            if not before:
                change(training, index)
        return losses

    eager = fresh(make)
    expected = train(eager, eager.step)
    for pure in (False, True):
        compiled = fresh(make)
        step = torch_jax.jit(compiled.step, pure=pure)
        torch.testing.assert_close(train(compiled, step), expected, rtol=1e-4, atol=1e-4)
        assert_equal_states(compiled, eager, 1e-4)
        assert_run(step, pure)


# --- schedulers -----------------------------------------------------------------------------------


def _warm_up_then_cosine(opt):
    warm_up = schedules.LinearLR(opt, 0.1, total_iters=5)
    cosine = schedules.CosineAnnealingLR(opt, 15)
    return schedules.SequentialLR(opt, [warm_up, cosine], milestones=[5])


SCHEDULES = {
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 20),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=30),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda i: min(1.0, (i + 1) / 10)),
    "SequentialLR": _warm_up_then_cosine,
    "StepLR": lambda o: schedules.StepLR(o, 4, 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_schedulers_inside_the_step(schedule):
    check(mlp(lambda p: O.SGD(p, lr=0.05, momentum=0.9), schedule))


def test_a_scheduler_of_adam_moves_its_betas_as_well():
    check(mlp(schedule=SCHEDULES["OneCycleLR"]))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_schedulers_outside_of_the_step(schedule):
    def make() -> Training:
        training = mlp(lambda p: O.SGD(p, lr=0.05, momentum=0.9))()
        return training._replace(schedulers=(schedule(training.optimizers[0]),))

    check_between(make, lambda training, _: training.schedulers[0].step(), before=False)


@pytest.mark.slow
def test_a_schedule_of_the_users_own():
    class Halving(schedules.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

    check(mlp(lambda p: O.SGD(p, lr=0.5), Halving))


@pytest.mark.slow
@both
def test_training_goes_on_eagerly_and_compiled_in_turn(pure):
    eager, mixed = fresh(mlp()), fresh(mlp())
    expected = losses_of(eager.step, eager)
    step = torch_jax.jit(mixed.step, pure=pure)
    steps = [step if index % 3 else mixed.step for index in range(STEPS)]
    pairs = zip(steps, mixed.batches, strict=True)
    actual = [run(*batch).detach().cpu() for run, batch in pairs]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert_equal_states(mixed, eager, 1e-4)
    assert_run(step, pure)


@both
@pytest.mark.parametrize("compiled_again", [False, True])
def test_counts_that_are_set_anew_after_a_compiled_step(compiled_again, pure):
    """A program counts on the device; users set counts on the CPU."""

    def train(device: str, compile: Callable) -> tuple[torch.Tensor, ...]:
        weight = nn.Parameter(torch.arange(3.0, device=device))
        optimizer = torch.optim.Adam([weight], lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

        compiled = compile(step)
        for call in range(6):
            if call == 3:
                optimizer.state[weight]["step"] = torch.tensor(0.0)
            (compiled if call < 3 or compiled_again else step)()
        return weight.detach().cpu(), optimizer.state[weight]["step"].cpu()

    # on the device 1 - 0.999 is a difference of float32s: 4e-5 of it are lost
    ours, theirs = train("jax", torch_jax.jit(pure=pure)), train("cpu", lambda step: step)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)
