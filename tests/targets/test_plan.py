"""``python -m torch_jax plan``: a Llama's training step, compiled for chips that are elsewhere."""

import json

import pytest
import torch

import torch_jax
from torch_jax.observe import cli
from torch_jax.planning import llama, sizes

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def plan(*arguments):
    return cli.main(["plan", "--target", "gpu-h100", "--batch", "2", "--length", "16", *arguments])


def test_a_page_for_each_mesh(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    written = tmp_path / "pages.json"
    meshes = "--mesh", "fsdp=1", "--mesh", "data=1,tensor=1"
    assert plan("--config", str(config), *meshes, "--json", str(written)) == 0
    out = capsys.readouterr().out
    assert out.count("It fits: ") == 2 and f"{config}, fsdp=1: 0.00 billion parameters" in out
    pages = json.loads(written.read_text())
    parameters = 256 * 64 * 2 + 64 + 3 * (2 * 64 + 64 * (2 * 64 + 2 * 32 + 3 * 128))
    for page in pages:
        (step,) = page["programs"]
        assert step["calls"] == 2
        # masters and both moments; and a product for each parameter forward, again, and twice back
        assert step["arguments"] == pytest.approx(12 * parameters, rel=0.01)
        assert step["flops"] > 7 * 2 * 16 * (parameters - 256 * 64)


def test_the_model_learns_and_a_loop_of_its_layers_is_the_layers(monkeypatch):
    """The model that plans compile computes what its equal in transformers does."""
    transformers = pytest.importorskip("transformers")
    model = sizes.model(SMALL)
    ours = llama.Llama(model, lambda x: x, again=False, loop=False)
    config = transformers.LlamaConfig(**SMALL, rms_norm_eps=torch.finfo().eps, rope_theta=500000.0)
    theirs = transformers.LlamaForCausalLM(config)
    names = {
        "self_attn.q_proj": "query", "self_attn.k_proj": "key", "self_attn.v_proj": "value",
        "self_attn.o_proj": "out", "mlp.": "", "_proj": "", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm", "embed_tokens": "embed", "lm_head": "head",
        "model.": "",
    }  # fmt: skip
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    ours.load_state_dict(state)
    tokens = torch.randint(256, (2, 16))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    ours.to("jax").loop = True
    looped = torch_jax.jit(ours)(tokens.to("jax"))
    torch.testing.assert_close(looped.cpu(), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name, count", [("llama-3-8b", 8030261248), ("llama-3-70b", 70553706496)])
def test_parameters_are_those_that_are_published(name, count):
    with torch.device("meta"):
        model = llama.Llama(sizes.model(name), lambda x: x, again=True, loop=True)
    assert sum(one.numel() for one in model.parameters()) == count


@pytest.mark.parametrize(
    "options, words",
    [
        (["--config", "llama-4"], "llama-4 is neither one of llama-3-8b"),
        (["--config", "llama-3-8b", "--mesh", "fsdp=2"], "2 places, and the target 1 chip"),
        (["--config", "llama-3-8b", "--mesh", "model=1"], "'model=1' is none of data="),
        (["--config", "llama-3-8b", "--mesh", "fsdp=1,fsdp=1"], "'fsdp=1' is none of data="),
        (["--config", "llama-3-8b", "--batch", "0"], "--batch is a whole number from 1, not 0"),
        (["--config", "llama-3-8b", "--target", "tpu-v9"], "tpu-v9"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(options, words, capsys):
    assert plan(*options) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "a mixture of experts"),
        ({"model_type": "bert"}, "model_type 'bert' is none of llama"),
        ({"hidden_size": None}, "the config of a Llama says hidden_size"),
        ({"vocab_size": -1}, "vocab_size of the config is a whole number from 1, not -1"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers of the config is a whole number"),
    ],
)
def test_configs_of_other_models_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        sizes.model(SMALL | changes)
