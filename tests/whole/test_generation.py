"""``generate()`` of transformers: few compiles, none the second time, and the CPU's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_jax
from tests.support.ledger import programs

transformers = pytest.importorskip("transformers")

_SIZES: dict[str, Any] = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _gpt2() -> Any:
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=128, **_SIZES)
    return transformers.GPT2LMHeadModel(config)


def _llama(kind: str = "Llama", **more: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **_SIZES,
        **more,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": lambda: _llama("Mistral", sliding_window=8),
}


def _pair(name: str) -> tuple[Any, Any]:
    """A model on the CPU and on the device; of large weights, so that no two tokens nearly tie."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    other = MODELS[name]().eval()
    other.load_state_dict(model.state_dict())
    return model, other.to("jax")


def _prompt(left_padded: bool) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 96, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if left_padded:
        ids[0, :3], mask[0, :3] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _on_device(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("jax") for name, tensor in given.items()}


GREEDY: dict[str, Any] = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False}


@pytest.mark.parametrize(
    ("name", "padded", "more", "most"),
    [
        pytest.param("gpt2", False, {}, 150, marks=pytest.mark.slow),
        pytest.param("gpt2", True, {"num_beams": 3}, 320, marks=pytest.mark.slow),
        pytest.param("gpt2", False, {"repetition_penalty": 1.3}, 180, marks=pytest.mark.slow),
        pytest.param("llama", True, {}, 240, marks=pytest.mark.slow),
        pytest.param(
            "llama", True, {"cache_implementation": "static"}, 240, marks=pytest.mark.slow
        ),
        pytest.param("mistral", False, {}, 320, marks=pytest.mark.slow),
    ],
)
def test_generate_compiles_few_programs_and_makes_the_tokens_of_the_cpu(name, padded, more, most):
    first = programs()
    cpu, device = _pair(name)
    given, asked = _prompt(padded), GREEDY | {"disable_compile": True} | more
    expected = cpu.generate(**given, **asked)
    here = _on_device(given)
    assert device.generate(**here, **asked).cpu().equal(expected)
    assert programs() - first <= most
    device.generate(**here, **asked)
    before = programs()
    assert device.generate(**here, **asked).cpu().equal(expected)
    assert programs() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def test_the_loop_makes_the_tokens_of_the_cpu_in_two_programs(name):
    cpu, device = _pair(name)
    given, loop = _prompt(left_padded=True), {"custom_generate": torch_jax.generate_loop}
    here = _on_device(given)
    for asked in (
        GREEDY,
        {"max_new_tokens": 30, "do_sample": False},
        {"max_new_tokens": 30, "min_length": 20, "do_sample": False},
    ):
        expected = cpu.generate(**given, **asked)
        assert device.generate(**here, **asked, **loop).cpu().equal(expected)
    seen: list[torch.Tensor] = []
    asked = GREEDY | {"on_tokens": seen.append, "chunk": 16, "return_dict_in_generate": True}
    device.generate(**here, **asked, **loop)
    seen.clear()
    before = programs()
    found = device.generate(**here, **asked, **loop)
    assert programs() == before
    assert [tokens.shape[1] for tokens in seen] == [16, 16, 8]
    expected = cpu.generate(**given, **GREEDY)
    assert torch.cat([given["input_ids"], *seen], 1).equal(expected)
    assert found.sequences.cpu().equal(expected)
    assert found.cache.get_seq_length() == 46


@pytest.mark.slow
def test_the_loop_samples_the_distribution_and_can_be_repeated():
    cpu, device = _pair("gpt2")
    ids = _prompt(left_padded=False)["input_ids"][:1]
    asked: dict[str, Any] = {"do_sample": True, "top_k": 4, "temperature": 2.0, "max_new_tokens": 1}
    logits = cpu(ids).logits[0, -1].detach().topk(4)
    expected = torch.zeros(96).index_copy(0, logits.indices, (logits.values / 2).softmax(0))
    asked |= {"custom_generate": torch_jax.generate_loop, "num_return_sequences": 2000}
    mask = torch.ones_like(ids).to("jax")
    torch.manual_seed(3)
    drawn = device.generate(ids.to("jax"), attention_mask=mask, **asked).cpu()
    counts = drawn[:, -1].bincount(minlength=96) / 2000
    assert (counts - expected).abs().max() < 5 * (0.25 / 2000) ** 0.5
    torch.manual_seed(3)
    assert device.generate(ids.to("jax"), attention_mask=mask, **asked).cpu().equal(drawn)


@pytest.mark.slow
def test_the_loop_names_what_it_does_not_know():
    loop = {"custom_generate": torch_jax.generate_loop}
    model, ids = _gpt2().eval().to("jax"), torch.ones(1, 4, dtype=torch.int64, device="jax")
    for asked in ({"num_beams": 2}, {"no_repeat_ngram_size": 2}, {"max_time": 3.0}):
        with pytest.raises(ValueError, match=r"generate_loop does not know .*(beams|NGram|Time)"):
            model.generate(ids, max_new_tokens=2, do_sample=False, **asked, **loop)
    with pytest.raises(ValueError, match="StaticSlidingWindowLayer"):
        MODELS["mistral"]().eval().to("jax").generate(ids, max_new_tokens=2, **loop)
