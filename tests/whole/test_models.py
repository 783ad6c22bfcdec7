"""Whole models and ordinary training loops: device jax against CPU, from the same weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support import executors, transformers_models
from tests.support.compare import assert_same
from tests.support.graphs import check_model


def train(
    model: nn.Module, batches, loss_of, make_optimizer, device: str, executor: str = "eager"
) -> list[float]:
    """Losses of an ordinary training loop on a copy of the model."""
    model = copy.deepcopy(model).to(device)
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(*batch):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    step = executors.by(executor, step)
    return [step(*(t.to(device) for t in batch)).item() for batch in batches]


def check_training(model, batches, loss_of, executor, make_optimizer=None) -> None:
    make_optimizer = make_optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-3))
    cpu = train(model, batches, loss_of, make_optimizer, "cpu")
    jax = train(model, batches, loss_of, make_optimizer, "jax", executor)
    assert jax == pytest.approx(cpu, rel=2e-4)
    assert cpu[-1] < cpu[0]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.rnn = kind(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 11)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def _next_token_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


RECURRENT = [
    *(executors.param("eager", kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    *(executors.param(executor, nn.LSTM) for executor in executors.COMPILED),
]


@pytest.mark.parametrize("kind, executor", RECURRENT)
@pytest.mark.slow
def test_recurrent_networks_train(kind, executor):
    torch.manual_seed(0)
    tokens = torch.randint(0, 11, (3, 7))
    check_training(Recurrent(kind), [(tokens,)] * 3, _next_token_loss, executor)


def _classifier_loss(model, images, labels):
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)


@executors.each
@pytest.mark.slow
def test_a_convolutional_network_trains_and_evaluates(executor):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.InstanceNorm2d(4),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    batches = [(torch.randn(4, 3, 12, 12), torch.randint(0, 5, (4,)))] * 3
    sgd = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    check_training(model, batches, _classifier_loss, executor, sgd)
    model.train()(batches[0][0])
    model.eval()
    expected = model(batches[0][0])
    evaluate = executors.by(executor, model.to("jax"))
    assert_same(evaluate(batches[0][0].to("jax")), expected, scale=2)


@executors.each
@pytest.mark.slow
def test_an_encoder_layer_with_masks_trains(executor):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(6)

    padding_as_float = torch.zeros(2, 6).masked_fill(padding, -torch.inf)

    def loss_of(model, x, padding, causal, additive):
        y = model(x, src_mask=causal, src_key_padding_mask=additive)
        return y.masked_fill(padding.unsqueeze(-1), 0).square().mean()

    batches = [(torch.randn(2, 6, 16), padding, causal, padding_as_float)] * 3
    check_training(model, batches, loss_of, executor)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)),
        lambda: torch.randn(3, 4),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        lambda: torch.randn(2, 3, 8, 8),
    ),
    "attention": (Attention, lambda: torch.randn(2, 5, 8)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
        lambda: torch.randint(0, 7, (2, 5)),
    ),
}  # fmt: skip


@executors.each
@pytest.mark.parametrize("model, inputs", MODELS.values(), ids=MODELS)
@pytest.mark.slow
def test_models_in_training_and_evaluation(model, inputs, executor):
    torch.manual_seed(0)
    check_model(model(), inputs(), executor=executor)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "umt5"])
@pytest.mark.slow
def test_transformers_models_give_the_same_loss_and_gradients(name):
    model = transformers_models.drawn(name)
    tokens = torch.randint(1, 40, (2, 7))
    mask = torch.ones_like(tokens)
    mask[1, 5:] = 0
    expected = model(input_ids=tokens, attention_mask=mask, labels=tokens)
    expected.loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    twin = copy.deepcopy(model)
    twin.zero_grad()
    twin.to("jax")
    inputs = {"input_ids": tokens, "attention_mask": mask, "labels": tokens}
    actual = twin(**{k: v.to("jax") for k, v in inputs.items()})
    actual.loss.backward()
    assert_same(actual.loss, expected.loss)
    assert_same(actual.logits, expected.logits, scale=5)
    for n, p in twin.named_parameters():
        if n in gradients:
            # sums over tokens and heads in another order
            assert_same(p.grad, gradients[n], strides=False, scale=5)


@pytest.mark.slow
def test_generation_with_a_cache_gives_the_same_tokens():
    model = transformers_models.drawn("gpt2")
    tokens = torch.randint(1, 40, (1, 4))
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    model.to("jax")
    tokens = tokens.to("jax")
    actual = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    assert actual.tolist() == expected.tolist()


def test_save_pretrained_and_back_with_tied_weights(tmp_path):
    model = transformers_models.drawn("gpt2").to("jax")
    assert model.lm_head.weight is model.transformer.wte.weight
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for (name, a), (_, b) in zip(
        model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert torch.equal(a.cpu(), b), name
    again.to("jax")
    assert again.lm_head.weight is again.transformer.wte.weight


@pytest.mark.slow
def test_dropout_trains_and_differs_between_steps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to("jax")
    x = torch.ones(16, 64, device="jax")
    first, second = model(x), model(x)
    assert not torch.equal(first.cpu(), second.cpu())
    zeros = (first == 0).float().mean().item()
    assert 0.4 < zeros < 0.6
    first.sum().backward()
    assert model[0].weight.grad.abs().sum().item() > 0
    model.eval()
    assert torch.equal(model(x).cpu(), model(x).cpu())


def test_double_backward_and_hooks():
    x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.tolist() == [6.0, 12.0]
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (x * 2).sum().backward()
    assert seen == [[2.0, 2.0]] and x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("norm_first", [False, True])
@executors.each
@pytest.mark.slow
def test_encoder_layers_in_inference(executor, norm_first):
    """PyTorch calls one operator for a whole layer, and one for attention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)

    def encode(layer, attention, x, causal):
        attended, weights = attention(x, x, x, need_weights=True)
        return layer(x), layer(x, src_mask=causal, is_causal=True), attended, weights

    with torch.no_grad():
        expected = encode(layer, attention, x, causal)
        moved = layer.to("jax"), attention.to("jax"), x.to("jax"), causal.to("jax")
        actual = executors.by(executor, encode)(*moved)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
