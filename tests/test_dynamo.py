"""``torch.compile(backend="jax")``, held against eager PyTorch on the CPU."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.compare import assert_same, to_cpu, to_jax
from torch_jax import DataDependentError
from torch_jax.executable import Executable


@pytest.fixture(autouse=True)
def fresh():
    """Dynamo remembers how often code was compiled, and gives up after a while."""
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="jax", **({"fullgraph": True} | options))


def check(function: Callable[..., Any], *args: Any, calls: int = 2, **options: Any) -> None:
    """A function of tensors, on the CPU and compiled: results, written inputs, gradients."""
    run = compiled(function, **options)
    for _ in range(calls):
        theirs, ours = to_cpu(args), to_jax(args)
        leaves = [[t for t in side if isinstance(t, torch.Tensor)] for side in (theirs, ours)]
        expected, actual = function(*theirs), run(*ours)
        assert_same(actual, expected)
        assert_same(leaves[1], leaves[0])
        outputs = [
            [t for t in (r if isinstance(r, list | tuple) else [r]) if is_differentiable(t)]
            for r in (expected, actual)
        ]
        if outputs[0]:
            wanted = [
                torch.autograd.grad(
                    [o.float().square().sum() for o in side],
                    [t for t in inputs if t.requires_grad and t.is_leaf],
                    allow_unused=True,
                )
                for side, inputs in zip(outputs, leaves, strict=True)
            ]
            assert_same(list(wanted[1]), list(wanted[0]), strides=False, scale=5)


def is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def check_model(model: nn.Module, *inputs: Any, scale: float = 10.0) -> None:
    """A model in training and in evaluation: outputs, gradients and statistics."""
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours)
    for training in (True, False):
        model.train(training), ours.train(training)
        expected, actual = first(model(*inputs)), first(run(*to_jax(inputs)))
        assert_same(actual, expected, strides=False, scale=scale)
        expected.square().mean().backward()
        actual.square().mean().backward()
        for p, q in zip(ours.parameters(), model.parameters(), strict=True):
            assert_same(p.grad, q.grad, strides=False, scale=scale)
        for p, q in zip(ours.buffers(), model.buffers(), strict=True):
            assert_same(p, q, scale=scale)
        with torch.no_grad():
            assert_same(first(run(*to_jax(inputs))), first(model(*inputs)), False, scale)


def first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


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


@pytest.mark.parametrize("model, inputs", MODELS.values(), ids=MODELS)
def test_models_in_training_and_evaluation(model, inputs):
    check_model(model(), inputs())


@pytest.mark.slow
def test_lstm():
    """Dynamo breaks the graph at RNNs, unless told not to."""
    with torch._dynamo.config.patch(allow_rnn=True):
        check_model(nn.LSTM(4, 5, batch_first=True), torch.randn(2, 3, 4))


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
        run(torch.randn(3, 4, device="jax")).sum().backward()
    assert made == ["forward)", "backward)"]
    with torch.no_grad():
        run(torch.randn(3, 4, device="jax"))
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


# --- views, writes and aliases --------------------------------------------------------------------


def writes_an_input(x, y):
    x.mul_(2)
    y[:, 0] = 7
    return x + y


def writes_a_view(x, y):
    x.view(-1)[1:3].add_(y.sum())
    return x.t()


def returns_inputs_and_views(x, y):
    return x, x.view(-1), y.t(), y[0], (x + y).unbind(0)[0]


def returns_aliases_of_one_result(x, y):
    z = x * y
    return z, z.view(-1), z[:, 1]


def resizes_dtype(x, y):
    return x.to(torch.float64), y.to(torch.bfloat16), (x > 0), x.long()


EFFECTS = [
    writes_an_input, writes_a_view, returns_inputs_and_views, returns_aliases_of_one_result,
    resizes_dtype,
]  # fmt: skip


@pytest.mark.parametrize("function", EFFECTS)
def test_writes_and_views(function):
    check(function, torch.randn(3, 4), torch.randn(3, 4))


def test_inputs_that_are_views_are_read_through_them():
    base = torch.randn(4, 6)
    for make in (
        lambda b: b.t(), lambda b: b[:, 1:3], lambda b: b[::2], lambda b: b[1].expand(3, 6),
        lambda b: b.view(2, 2, 6).transpose(0, 1),
    ):  # fmt: skip

        def function(x):
            return x.sin(), x.reshape(-1) * 2

        run = compiled(function)
        for scale in (1.0, 2.0):
            theirs, ours = make(base * scale), make(to_jax(base * scale))
            assert_same(run(ours), function(theirs), strides=False)


def test_a_write_through_a_view_of_an_input_shows_in_its_base():
    def function(x):
        x.add_(1)
        return x * 2

    base, ours = torch.zeros(3, 4), torch.zeros(3, 4, device="jax")
    run = compiled(function)
    for _ in range(2):
        assert_same(run(ours[:, 1]), function(base[:, 1]))
        assert_same(ours, base)


def test_two_inputs_that_share_memory():
    def function(x, y):
        x.add_(1)
        return x * y

    base, ours = torch.arange(6.0), torch.arange(6.0, device="jax")
    run = compiled(function)
    for _ in range(2):
        assert_same(run(ours[:4], ours[2:]), function(base[:4], base[2:]))
        assert_same(ours, base)


def test_outputs_alias_as_in_eager_mode():
    def function(x):
        y = x + 1
        return x.view(-1), y, y.view(-1)

    x = torch.zeros(2, 3, device="jax")
    of_input, y, of_y = compiled(function)(x)
    of_input.add_(5)
    of_y.mul_(3)
    assert_same(x, torch.full((2, 3), 5.0))
    assert_same(y, torch.full((2, 3), 3.0))


def test_written_memory_is_donated_unless_somebody_else_has_it():
    def function(x):
        x.add_(1)

    x = torch.zeros(64, device="jax")
    copied, run = x.clone(), compiled(function)
    version = x._version
    run(x)
    assert x._version > version
    assert_same(copied, torch.zeros(64))  # it shared the memory until now
    before = x.untyped_storage().array
    run(x)
    assert not before.is_deleted()  # we hold it
    assert_same(x, torch.full((64,), 2.0))
    pointer = x.untyped_storage().array.unsafe_buffer_pointer()
    del before
    run(x)
    assert x.untyped_storage().array.unsafe_buffer_pointer() == pointer
    kept = compiled(function, options={"donate": False})
    pointer = x.untyped_storage().array.unsafe_buffer_pointer()
    kept(x)
    assert x.untyped_storage().array.unsafe_buffer_pointer() != pointer
    assert_same(x, torch.full((64,), 4.0))


def test_a_graph_can_be_kept_for_a_second_backward_unless_saved_memory_is_donated():
    def function(x):
        return x.sin().exp().sum()

    x = torch.randn(5)
    theirs, ours = x.clone().requires_grad_(), to_jax(x).requires_grad_()
    function(theirs).backward()
    loss = compiled(function)(ours)
    loss.backward(retain_graph=True)
    assert_same(ours.grad, theirs.grad)
    loss.backward()
    assert_same(ours.grad, theirs.grad * 2)
    ours.grad = None
    torch._dynamo.reset()
    loss = compiled(function, options={"donate": True})(ours)
    loss.backward()
    assert_same(ours.grad, theirs.grad)


# --- randomness -----------------------------------------------------------------------------------


def masked(x):
    return F.dropout(x, 0.5), x * (torch.rand(x.shape, device=x.device) > 0.5)


def test_draws_are_those_of_eager_mode_fresh_and_replayed_backwards():
    run = compiled(masked)
    seen = []
    for seed in (0, 0, 1, None):  # None: going on from there
        results = []
        if seed is not None:
            torch.manual_seed(seed)
        state = torch.jax.get_rng_state()
        for function in (masked, run):
            torch.jax.set_rng_state(state)
            x = torch.ones(32, device="jax", requires_grad=True)
            dropped, chosen = function(x)
            gradient = torch.autograd.grad((dropped + 3 * chosen).sum(), x)[0]
            results.append((dropped.detach().cpu(), chosen.detach().cpu(), gradient.cpu()))
        for mine, its in zip(*results, strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=0)
        dropped, chosen, gradient = results[1]
        torch.testing.assert_close(gradient, dropped + 3 * chosen)
        seen.append(torch.cat([dropped, chosen]))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2]) and not torch.equal(seen[2], seen[3])


def test_a_checkpoint_repeats_its_draws():
    def part(x):
        return F.dropout(x.sin(), 0.5) * 2

    def function(x):
        return checkpoint(part, x, use_reentrant=False).sum()

    x = torch.randn(64, device="jax", requires_grad=True)
    run = compiled(function)
    for _ in range(2):
        torch.manual_seed(5)
        (gradient,) = torch.autograd.grad(run(x), x)
        torch.manual_seed(5)
        (expected,) = torch.autograd.grad(part(x).sum(), x)
        assert_same(gradient, expected.cpu())


# --- shapes and types -----------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True])
def test_changing_sizes_are_specialised_and_logged(dynamic, caplog):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours, dynamic=dynamic)
    with caplog.at_level(logging.INFO, "torch_jax"):
        for rows in (3, 5, 7, 5, 9):
            x = torch.randn(rows, 4)
            actual, expected = run(to_jax(x)), model(x)
            assert_same(actual, expected)
            actual.sum().backward()
            expected.sum().backward()
    for p, q in zip(ours.parameters(), model.parameters(), strict=True):
        assert_same(p.grad, q.grad, scale=10)
    lines = [r.getMessage() for r in caplog.records if "specialised" in r.getMessage()]
    assert sum("forward" in line and "float32[9,4]" in line for line in lines) == 1
    assert sum("forward" in line and "float32[5,4]" in line for line in lines) == 1


def test_sizes_in_the_program_and_among_its_results():
    def function(x):
        rows = x.shape[0]
        return x.view(-1) / rows, torch.arange(rows, device=x.device), rows * 2

    run = compiled(function, dynamic=True)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 2)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(run(to_jax(x)), function(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(dtype):
    x = torch.randn(3, 3).to(dtype).requires_grad_()
    check(lambda x: x * 2 + x.t(), x)
    check(lambda x: (x > 1, x.long().sum()) if not dtype.is_complex else x.conj().abs(), x.detach())


def test_python_numbers_and_empty_tensors():
    check(lambda x, n, f: (x * n + f, x[:0].sum(0)), torch.randn(3, 2), 3, 0.5)
    check(lambda x: x.sum(0), torch.randn(0, 2))


# --- graph breaks and what cannot be compiled -----------------------------------------------------


def breaks(function: Any, *args: Any) -> int:
    return torch._dynamo.explain(function)(*args).graph_break_count


def test_item_breaks_the_graph():
    def function(x):
        y = x.sin()
        return y * 2 if y.sum().item() > 0 else y - 1

    check(function, torch.ones(3), fullgraph=False)
    check(function, -torch.ones(3), fullgraph=False)
    assert breaks(function, torch.ones(3, device="jax")) == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.UserError, match=r"data-dependent"):
        compiled(function)(torch.ones(3, device="jax"))


def test_sizes_that_depend_on_data_break_the_graph_or_are_explained():
    def function(x):
        return (x + 1)[x > 0] * 2

    check(function, torch.tensor([1.0, -1.0, 2.0]), fullgraph=False)
    torch._dynamo.reset()
    with pytest.raises(DataDependentError, match="Instead, use torch.where"):
        compiled(function)(torch.ones(3, device="jax"))


def test_an_index_out_of_range_is_an_error():
    table = torch.randn(4, 2)
    run = compiled(F.embedding)
    assert_same(run(torch.tensor([3], device="jax"), to_jax(table)), table[3:])
    with pytest.raises(IndexError):
        run(torch.tensor([4], device="jax"), to_jax(table))


def test_options_and_modes_are_checked():
    x = torch.ones(3, device="jax")
    options = {"xla": {"xla_cpu_enable_fast_math": True}}
    assert_same(compiled(torch.sin, options=options)(x), torch.ones(3).sin())
    assert_same(compiled(torch.cos, mode="reduce-overhead")(x), torch.ones(3).cos())
    for wrong in ({"options": {"dnoate": True}}, {"mode": "fastest"}):
        with pytest.raises(
            Exception, match="torch.compile\\(backend='jax'\\) knows|Unrecognized mode"
        ):
            compiled(torch.tan, **wrong)(x)


# --- contexts -------------------------------------------------------------------------------------


def test_no_grad_and_inference_mode():
    model = nn.Linear(3, 2)
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours)
    x = torch.randn(4, 3)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            result = run(to_jax(x))
            assert result.requires_grad == (context is torch.enable_grad)
            assert result.is_inference() == (context is torch.inference_mode)
            assert_same(result, model(x))


def test_autocast():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to("jax")
    run = compiled(model)
    x = torch.randn(3, 4, device="jax")
    for _ in range(2):
        with torch.autocast("jax", torch.bfloat16):
            expected, actual = model(x), run(x)
        assert actual.dtype == torch.bfloat16
        assert_same(actual, expected.detach().cpu(), scale=2)
        gradients = [
            torch.autograd.grad(r.float().sum(), model[0].weight)[0] for r in (expected, actual)
        ]
        assert_same(gradients[1], gradients[0].cpu(), scale=1000)
    assert_same(run(x), model(x).detach().cpu())


def test_without_a_backend_named_this_one_is_taken():
    model = nn.Linear(3, 2)
    ours = copy.deepcopy(model).to("jax")
    x = torch.randn(4, 3)
    assert_same(torch.compile(ours)(to_jax(x)), model(x))
    assert_same(torch.compile(ours, mode="reduce-overhead")(to_jax(x)), model(x))


def test_a_mixed_graph_keeps_cpu_tensors_on_the_cpu():
    def function(x, scale):
        y = x * scale
        return y, scale + 1

    x, scale = torch.randn(3), torch.tensor(2.0)
    y, more = compiled(function)(to_jax(x), scale)
    assert_same(y, x * 2)
    assert more.device.type == "cpu" and more.item() == 3


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["eager", "compiled"])
def test_compiled_autograd(forward):
    """The backward pass itself is caught by Dynamo, and becomes one graph."""
    from torch._dynamo import compiled_autograd

    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    ours = copy.deepcopy(model).to("jax")
    model(x).square().sum().backward()
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="jax")):
        run = ours if forward == "eager" else compiled(ours)
        run(to_jax(x)).square().sum().backward()
    for ours_, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert_same(ours_.grad, theirs.grad, strides=False)


def test_within_a_function_under_torch_jax_jit():
    import torch_jax

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours)
    x = torch.randn(2, 4)
    run(to_jax(x))
    assert_same(torch_jax.jit(lambda x: run(x) * 2)(to_jax(x)), model(x) * 2)


def test_the_backend_is_found_without_an_import_and_dynamo_is_not_imported_for_it():
    code = """
import sys, torch
assert "torch._dynamo" not in sys.modules and "jax" not in sys.modules
x = torch.ones(3, device="jax")
assert "torch._dynamo" not in sys.modules
assert "jax" in torch._dynamo.list_backends()
print(torch.compile(lambda x: x + 1, backend="jax")(x).cpu().tolist())
from torch._dynamo.device_interface import get_interface_for_device
assert get_interface_for_device("jax").device_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[2.0, 2.0, 2.0]\n", done.stderr


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
