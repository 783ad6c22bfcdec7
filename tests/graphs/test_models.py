"""Models and training steps under ``torch.compile(backend="jax")``."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.compare import assert_same, to_jax
from tests.support.graphs import check_model, compiled
from tests.support.values import randn
from torch_jax.graphs.executable import Executable


@pytest.mark.slow
def test_lstm():
    """Dynamo breaks the graph at RNNs, unless told not to."""
    with torch._dynamo.config.patch(allow_rnn=True):
        check_model(nn.LSTM(4, 5, batch_first=True), torch.randn(2, 3, 4))


@pytest.mark.slow
def test_forward_and_backward_are_one_executable_each(monkeypatch):
    made = []
    original = Executable.__init__

    def init(self, graph, name, *args):
        made.append(name.partition(" (")[2])
        original(self, graph, name, *args)

    monkeypatch.setattr(Executable, "__init__", init)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("jax")
    run = compiled(model)
    for _ in range(3):
        run(randn(3, 4)).sum().backward()
    assert made == ["forward)", "backward)"]
    with torch.no_grad():
        run(randn(3, 4))
    assert made[2:] == ["inference)"]


def train(
    model: nn.Module, optimizer: Any, batches: list[Any], step: Any, device: str
) -> list[Any]:
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        step()
        losses.append(loss.detach().cpu())
    return losses


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.slow
def test_twenty_training_steps_with_a_compiled_optimizer(kind):
    options = {"lr": 0.05} | ({"momentum": 0.9} if kind == "SGD" else {})
    # a bias before a norm has no gradient but rounding, which AdamW makes large
    linear = nn.Linear(6, 16, bias=False)
    model = nn.Sequential(linear, nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    ours = copy.deepcopy(model).to("jax")
    batches = [(torch.randn(8, 6), torch.randint(0, 4, (8,))) for _ in range(20)]
    optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    expected = train(model, optimizer, batches, optimizer.step, "cpu")
    mine = getattr(torch.optim, kind)(ours.parameters(), **options)
    step = compiled(mine.step, fullgraph=False)
    actual = train(compiled(ours), mine, batches, step, "jax")
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), rtol=1e-3, atol=1e-4)
    for p, q in zip(ours.state_dict().values(), model.state_dict().values(), strict=True):
        assert_same(p, q, scale=100)
    for key, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            other = mine.state_dict()["state"][key][name]
            assert other.device.type == ("cpu" if name == "step" else "jax")
            torch.testing.assert_close(other.cpu(), value, rtol=1e-3, atol=1e-3)


def test_a_compiled_step_of_adam_over_two_dtypes():
    def train(device: str, compile: Any) -> list[torch.Tensor]:
        parameters = [
            nn.Parameter(torch.ones(2, dtype=dtype).to(device))
            for dtype in (torch.float32, torch.bfloat16)
        ]
        optimizer = torch.optim.AdamW(parameters)
        step = compile(optimizer.step)
        for _ in range(2):
            sum(p.square().sum() for p in parameters).backward()
            step()
        return [p.detach() for p in parameters]

    assert_same(train("jax", partial(compiled, fullgraph=False)), train("cpu", lambda f: f))


# --- models of transformers -----------------------------------------------------------------------

# class, config, and how often Dynamo breaks its graph
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "BERT": (
        "BertModel", "BertConfig",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 32}, 0,
    ),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2}, 0),
    "Llama": (
        "LlamaForCausalLM", "LlamaConfig",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 32}, 0,
    ),
    "Mixtral": (
        "MixtralForCausalLM", "MixtralConfig",
        {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 32, "num_local_experts": 4}, 0,
    ),
    "T5": (
        "T5ForConditionalGeneration", "T5Config",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}, 0,
    ),
    "UMT5": (
        "UMT5EncoderModel", "UMT5Config",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}, 0,
    ),
    "ResNet": (
        "ResNetForImageClassification", "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "layer_type": "basic"}, 0,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    kind, config, sizes, breaks = TRANSFORMERS[name]
    sizes = sizes if name == "ResNet" else sizes | {"vocab_size": 31}
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    ours = copy.deepcopy(model).to("jax")
    tokens = torch.randint(2, 31, (2, 6))
    given = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if name == "T5" else {})
    if name == "ResNet":
        given = {"pixel_values": torch.randn(2, 3, 32, 32)}
    torch._dynamo.utils.counters.clear()
    run = compiled(ours, fullgraph=False)
    expected, actual = model(**given)[0], run(**to_jax(given))[0]
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == breaks
    assert_same(actual, expected, strides=False, scale=10)
    expected.square().mean().backward()
    actual.square().mean().backward()
    for (label, p), q in zip(ours.named_parameters(), model.parameters(), strict=True):
        if q.grad is None:  # of an output that nobody used: AOTAutograd makes zeros
            assert p.grad is None or not p.grad.any(), label
        else:
            assert_same(p.grad, q.grad, strides=False, scale=50)
