"""Exported models: their results, their files, and that these need JAX only."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import torch_jax
from tests.support.models import Function
from tests.support.processes import ROOT, output
from torch_jax.core.tracers import DataDependentError, NotTraceableError
from torch_jax.exporting import export as exporting
from torch_jax.exporting import exported_file


def transformers():
    """The library, which takes seconds to import."""
    return pytest.importorskip("transformers")


def ids() -> torch.Tensor:
    """A batch of token ids."""
    return torch.arange(18).view(2, 9) * 7 % 64


def mask() -> torch.Tensor:
    """An attention mask: the first of two sequences ends early."""
    return (torch.arange(9) < torch.tensor([[6], [9]])).long()


SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32}


def bert() -> nn.Module:
    """A small BERT."""
    library = transformers()
    return library.BertModel(library.BertConfig(**SMALL))


def gpt2() -> nn.Module:
    """A small GPT-2."""
    library = transformers()
    sizes = {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    sizes |= {"bos_token_id": 0, "eos_token_id": 0}
    return library.GPT2LMHeadModel(library.GPT2Config(**sizes, use_cache=False))


def llama() -> nn.Module:
    """A small Llama."""
    library = transformers()
    return library.LlamaForCausalLM(library.LlamaConfig(**SMALL, use_cache=False))


def t5() -> nn.Module:
    """The encoder of a small T5."""
    library = transformers()
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32}
    return library.T5EncoderModel(library.T5Config(**sizes, num_layers=2, num_heads=2))


def umt5() -> nn.Module:
    """The encoder of a small UMT5, whose layers have position biases of their own."""
    library = transformers()
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32}
    return library.UMT5EncoderModel(library.UMT5Config(**sizes, num_layers=2, num_heads=2))


def resnet() -> nn.Module:
    """A small ResNet."""
    library = transformers()
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]}
    return library.ResNetForImageClassification(library.ResNetConfig(**sizes, layer_type="basic"))


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))


def conv() -> nn.Module:
    """Convolution, batch norm, pooling."""
    parts = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 2))


def attention() -> nn.Module:
    """A transformer's layer."""
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


MODELS = {
    "mlp": (mlp, lambda: (torch.randn(5, 3),), {}),
    "conv": (conv, lambda: (torch.randn(2, 3, 8, 8),), {}),
    "lstm": (lambda: nn.LSTM(4, 5, 2, batch_first=True), lambda: (torch.randn(2, 7, 4),), {}),
    "attention": (attention, lambda: (torch.randn(2, 7, 8),), {}),
    "bert": (bert, lambda: (ids(),), {"attention_mask": mask}),
    "gpt2": (gpt2, lambda: (ids(),), {"attention_mask": mask}),
    "llama": (llama, lambda: (ids(),), {"attention_mask": mask}),
    "t5": (t5, lambda: (ids(),), {"attention_mask": mask}),
    "umt5": (umt5, lambda: (ids(),), {"attention_mask": mask}),
    "resnet": (resnet, lambda: (torch.randn(2, 3, 32, 32),), {}),
}


def made(name: str):
    """A model in evaluation, its arguments, and what it computes on the CPU."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]
    model, args = model().eval(), args()
    kwargs = {key: value() for key, value in kwargs.items()}
    with torch.no_grad():
        return model, args, kwargs, pytree.tree_leaves(model(*args, **kwargs))


def assert_close(results, expected) -> None:
    """Arrays or tensors, compared with the CPU's."""
    for result, wanted in zip(pytree.tree_leaves(results), expected, strict=True):
        result = torch.tensor(np.asarray(result)) if isinstance(result, jax.Array) else result
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


def some_slow(names, *slow: str) -> list:
    """Parameters of a test, of which some take seconds."""
    return [pytest.param(n, marks=[pytest.mark.slow] * (n in slow)) for n in names]


@pytest.mark.parametrize("name", some_slow(MODELS, "gpt2", "llama", "t5", "umt5", "resnet"))
@pytest.mark.slow
def test_round_trips(name):
    model, args, kwargs, expected = made(name)
    blob = torch_jax.export(model, args, kwargs).serialize()
    loaded = exporting.load(blob)
    assert loaded.header["platforms"] == ["cpu", "cuda", "tpu"]
    results = loaded.call(*args, **kwargs)
    assert all(leaf.device.type == "cpu" for leaf in pytree.tree_leaves(results))
    assert_close(results, expected)
    arrays = [jnp.asarray(arg.numpy()) for arg in args]  # 32-bit integers, as JAX makes them
    named = {key: value.numpy() for key, value in kwargs.items()}
    assert_close(jax.jit(exported_file.load(blob).call)(*arrays, **named), expected)


@pytest.mark.parametrize("name", ["mlp", "conv", "attention", "lstm"])
def test_graphs_of_torch_export(name):
    model, args, kwargs, expected = made(name)
    graph = torch.export.export(model, args, kwargs)
    assert_close(torch_jax.export(graph).call(*args, **kwargs), expected)


def test_models_on_the_device_and_functions():
    model, (x,), _, (expected,) = made("mlp")
    on_device = torch_jax.export(model.to("jax"), (x.to("jax"),))
    result = on_device.call(x.to("jax"))
    assert result.device.type == "jax"
    assert_close(result.cpu(), [expected])
    scaled = torch_jax.export(lambda x, by, up: x * by + up, (x, 2.0), {"up": torch.ones(3)})
    assert_close(scaled.call(x, 2.0, up=torch.ones(3)), [x * 2 + 1])
    with pytest.raises(ValueError, match=r"args\[1\] was exported as 2.0 and cannot be 3.0"):
        scaled.call(x, 3.0, up=torch.ones(3))


def test_trees_of_arguments_and_results():
    def function(pairs, *, scale=None, flag=True):
        first, second = pairs["a"], pairs["b"][0]
        return {"sum": first + second, "more": (first.bool(), [second.double()], None), "n": 3}

    x, y = torch.arange(3), torch.ones(3)
    given = {"a": x, "b": [y]}
    exported = torch_jax.export(function, (given,), {"flag": True})
    loaded = exporting.load(exported.serialize())
    result = loaded.call(given, flag=True)
    assert list(result) == ["more", "n", "sum"]
    assert result["more"][2] is None and result["n"].item() == 3
    assert_close(
        (result["sum"], result["more"][0], result["more"][1]), [x + y, x.bool(), y.double()]
    )
    assert_close(loaded.call(given)["sum"], [x + y])
    with pytest.raises(ValueError, match="was exported as True"):
        loaded.call(given, flag=False)
    with pytest.raises(ValueError, match="do not fit"):
        loaded.call({"a": x})
    with pytest.raises(ValueError, match="float32 where the program takes int64"):
        loaded.call({"a": y, "b": [y]})
    with pytest.raises(ValueError, match=r"shape \[4\] where the program takes int64\[3\]"):
        loaded.call({"a": torch.arange(4), "b": [y]})


def test_tied_weights_and_buffers_are_there_once():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("offset", torch.ones(8))
    exported = torch_jax.export(model, (torch.arange(3),))
    assert sorted(exported.weights) == ["0.weight", "offset"]
    assert_close(exported.call(torch.arange(3)), [model(torch.arange(3)).detach()])


def test_the_text_is_stablehlo():
    model, args, _, _ = made("mlp")
    assert "stablehlo.dot_general" in torch_jax.export(model, args).mlir()
    on_cpu = torch_jax.export(model, args, platforms=("cpu",))
    assert on_cpu.header["platforms"] == ["cpu"] and "float32[5,3]" in repr(on_cpu)


# --- sizes that may change ------------------------------------------------------------------------

BATCH, LENGTH = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=32)
TOKENS = {"input_ids": {0: BATCH, 1: LENGTH}, "attention_mask": {0: BATCH, 1: LENGTH}}


def tokens(batch: int, length: int) -> tuple[tuple, dict]:
    """Arguments of a language model; the first sequence is shorter."""
    ids = torch.arange(batch * length).view(batch, length) * 7 % 64
    mask = (torch.arange(length) < torch.tensor([[length - 1], *[[length]] * (batch - 1)])).long()
    return (ids,), {"attention_mask": mask}


def images(batch: int) -> tuple[tuple, dict]:
    """A batch of small images."""
    return (torch.randn(batch, 3, 8, 8),), {}


def sequences(width: int):
    """Batches of sequences of any length."""
    return lambda batch, length: ((torch.randn(batch, length, width),), {})


SIZES = [(3, 9), (2, 5), (1, 12)]
DYNAMIC = {
    "mlp": (mlp, ({0: BATCH},), lambda batch: ((torch.randn(batch, 3),), {}), [(5,), (1,), (9,)]),
    "conv": (conv, ({0: BATCH},), images, [(2,), (5,)]),
    "lstm": (
        lambda: nn.LSTM(4, 5, batch_first=True), ({0: BATCH},),
        lambda batch: ((torch.randn(batch, 7, 4),), {}), [(3,), (2,)],
    ),
    "attention": (attention, ({0: BATCH, 1: LENGTH},), sequences(8), SIZES),
    "bert": (bert, TOKENS, tokens, SIZES),
    "gpt2": (gpt2, TOKENS, tokens, SIZES),
    "llama": (llama, TOKENS, tokens, SIZES),
    "t5": (t5, TOKENS, tokens, SIZES),
}  # fmt: skip


@pytest.mark.parametrize("name", some_slow(DYNAMIC, "lstm", "bert", "gpt2", "llama", "t5"))
@pytest.mark.slow
def test_sizes_that_may_change(name):
    torch.manual_seed(0)
    make, shapes, arguments, sizes = DYNAMIC[name]
    model = make().eval()
    args, kwargs = arguments(*sizes[0])
    exported = torch_jax.export(model, args, kwargs, dynamic_shapes=shapes)
    loaded = exporting.load(exported.serialize())
    assert loaded.header["platforms"] == ["cpu", "cuda", "tpu"]
    for size in sizes:
        args, kwargs = arguments(*size)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(*args, **kwargs))
        assert_close(loaded.call(*args, **kwargs), expected)


class Pair(nn.Module):
    """Of two arguments of one size."""

    def forward(self, x, y):
        return x + y


SYMBOLIC = {
    "slices": lambda x: (x[:, 1:3], x[-1], x[:, ::2], x.narrow(1, 0, 2)),
    "shapes": lambda x: (x.t(), x.flatten(), x[None].expand(2, -1, -1), x.unsqueeze(1).squeeze()),
    "parts": lambda x: (*x.chunk(2, 1), *x.unbind(1), *x.split([2, 3], 1)),
    "joined": lambda x: (torch.cat([x, x * 2]).view(-1, 2, 5).sum(0), torch.stack([x, x], 1)),
    "positions": lambda x: x + torch.arange(x.shape[0])[:, None] + x.shape[0] * 2,
    "masks": lambda x: torch.tril(torch.ones(x.shape[0], x.shape[0])) @ x,
    "reductions": lambda x: (x.mean(0), x.var(0), x.softmax(0), x.cumsum(0), x.logsumexp(0)),
    "order": lambda x: (x.sort(0)[0], x.argmax(0), x.flip(0), x.roll(1, 0)),
    "dtypes": lambda x: (x.double().mean(), x.half() + 1, x.to(torch.int32) * 2, x > 0),
    "loss": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
    "inverse": lambda x: torch.linalg.inv(x.t() @ x + torch.eye(5) * 9),
    "padding": lambda x: F.pad(x, (1, 1)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.slow
def test_operators_on_sizes_that_may_change(name):
    torch.manual_seed(0)
    model = Function(SYMBOLIC[name])
    exported = torch_jax.export(model, (torch.randn(3, 5),), dynamic_shapes=({0: BATCH},))
    for rows in (3, 7, 2):
        x = torch.randn(rows, 5)
        assert_close(exported.call(x), pytree.tree_leaves(model(x)))


@pytest.mark.slow
def test_what_cannot_take_sizes_that_may_change_names_operator_and_line():
    class Largest(nn.Module):  # the line is that of its forward, which PyTorch keeps
        def forward(self, x):
            return x.topk(2, 0)[0]

    def export(model):
        return torch_jax.export(model, (torch.randn(3, 5),), dynamic_shapes=({0: BATCH},))

    with pytest.raises(NotTraceableError, match=r"aten.topk.default \(topk, File .*test_export.py"):
        export(Largest())
    with pytest.raises(NotTraceableError, match="nonzero.*depends on values"):
        export(Function(lambda x: x.nonzero()))
    with pytest.raises(NotTraceableError, match="draws random numbers"):
        export(Function(lambda x: x + torch.rand_like(x)))


@pytest.mark.slow
def test_sizes_are_checked_at_each_call():
    loaded = exporting.load(
        torch_jax.export(
            Function(lambda x: x @ x.mT), (torch.randn(3, 2, 5),),
            dynamic_shapes=({0: BATCH, 1: LENGTH},),
        ).serialize()
    )  # fmt: skip
    for shape in ((65, 2, 5), (3, 1, 5), (3, 2, 6), (3, 2)):
        with pytest.raises(ValueError, match=r"where the program takes float32\[s.* from 1 to 64"):
            loaded.call(torch.ones(shape))
    same = torch_jax.export(Pair(), (torch.ones(3), torch.ones(3)), dynamic_shapes=[{0: BATCH}] * 2)
    with pytest.raises(ValueError, match=r"shape \[4\]"):
        same.call(torch.ones(3), torch.ones(4))


@pytest.mark.slow
def test_gradients_where_sizes_may_change():
    model, (x,), _, _ = made("mlp")
    exported = torch_jax.export(model, (x,), dynamic_shapes=({0: BATCH},))
    loaded = exporting.load(exported.serialize(vjp_order=1))
    x = torch.randn(7, 3, requires_grad=True)
    model(x).square().sum().backward()
    found = jax.grad(lambda x: (loaded.call(x) ** 2).sum())(x.detach().numpy())
    assert_close(found, [x.grad])


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradients_of_arrays_and_of_tensors():
    model, (x,), _, _ = made("mlp")
    loaded = exporting.load(torch_jax.export(model, (x,)).serialize(vjp_order=1))
    x.requires_grad_()
    model(x).square().sum().backward()

    def loss(weights, x):
        return (loaded.call_with(weights, x) ** 2).sum()

    by_weights, by_x = jax.grad(loss, argnums=(0, 1))(dict(loaded.weights), x.detach().numpy())
    assert_close(by_x, [x.grad])
    for name, parameter in model.named_parameters():
        assert_close(by_weights[name], [parameter.grad])
    for device in ("cpu", "jax"):
        y = x.detach().to(device).requires_grad_()
        loaded.call(y).square().sum().backward()
        assert_close(y.grad.cpu(), [x.grad])


def test_a_file_without_gradients_says_so():
    model, (x,), _, _ = made("mlp")
    loaded = exported_file.load(torch_jax.export(model, (x,)).serialize())
    with pytest.raises(ValueError, match="VJP"):
        jax.grad(lambda x: loaded.call(x).sum())(x.numpy())


# --- what cannot be exported ----------------------------------------------------------------------


def test_what_cannot_be_exported_says_why():
    x = torch.ones(3)
    with pytest.raises(NotTraceableError, match=r"model.eval\(\)"):
        torch_jax.export(nn.Dropout(0.5), (x,))
    with pytest.raises(DataDependentError, match="torch.nonzero_static"):
        torch_jax.export(lambda x: x.nonzero(), (x,))
    with pytest.raises(TypeError, match="returns a set"):
        torch_jax.export(lambda x: {x}, (x,))
    graph = torch.export.export(mlp(), (torch.ones(5, 3),))
    with pytest.raises(TypeError, match="give none"):
        torch_jax.export(graph, (x,))


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported():
    """An exported model."""
    model, args, _, _ = made("mlp")
    return torch_jax.export(model, args)


def test_weights_beside_the_file(exported, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    x = torch.ones(5, 3)
    path, weights = tmp_path / "model.zip", tmp_path / "model.zip.safetensors"
    exported.save(path, weights="beside")
    beside = safetensors.load_file(weights)
    assert_close(exporting.load(path).call(x), [exported.call(x)])
    safetensors.save_file({k: 2 * v for k, v in beside.items()}, weights)
    doubled = exported.call_with({k: 2 * v for k, v in exported.weights.items()}, x.numpy())
    np.testing.assert_array_equal(exporting.load(path).call(x.numpy()), doubled)
    assert {entry.name for entry in tmp_path.iterdir()} == {"model.zip", "model.zip.safetensors"}
    safetensors.save_file({"0.weight": beside["0.weight"].T.copy()}, weights)
    with pytest.raises(
        ValueError, match=r"'0.bias' is nothing where the program takes float32\[4\]"
    ):
        exporting.load(path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="model.zip.safetensors"):
        exporting.load(path)
    with pytest.raises(ValueError, match="'inside' or 'beside'"):
        exported.save(path, weights="elsewhere")


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int64, torch.bool],
)
def test_weights_of_all_dtypes(dtype):
    module = nn.Module()
    module.register_buffer("held", torch.tensor([[0, 1, 1]]).to(dtype))
    module.forward = lambda x: torch.where(x > 0, module.held, module.held)
    loaded = exporting.load(torch_jax.export(module, (torch.ones(3),)).serialize())
    assert_close(loaded.call(torch.ones(3)), [module.held])


NAMES = {"header": "header.json", "program": "program", "weights": "weights.safetensors"}


def changed(blob: bytes, **entries: bytes | None) -> bytes:
    """The archive with other entries (None: without)."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(blob)) as old, zipfile.ZipFile(file, "w") as new:
        contents = {name: old.read(name) for name in old.namelist()}
        contents |= {NAMES[name]: content for name, content in entries.items()}
        for name, content in contents.items():
            if content is not None:
                new.writestr(name, content)
    return file.getvalue()


def header(**entries) -> bytes:
    """A header of the right kind, but for these."""
    return json.dumps({"format": "torch_jax.export", "version": 1, "jax": "9.9"} | entries).encode()


DAMAGED = {
    "empty": (lambda blob: b"", "no exported model, or damaged"),
    "cut off": (lambda blob: blob[:-100], "no exported model, or damaged"),
    "one bit": (lambda blob: blob[:900] + bytes([blob[900] ^ 1]) + blob[901:], "CRC"),
    "foreign": (lambda blob: b"\x89PNG\r\n" + bytes(500), "not a zip"),
    "another archive": (lambda blob: changed(blob, header=None), "it holds"),
    "another kind": (lambda blob: changed(blob, header=header(format="onnx")), "but 'onnx'"),
    "newer": (lambda blob: changed(blob, header=header(version=2)), "versions up to 1"),
    "no program": (lambda blob: changed(blob, program=None), "program"),
    "a program of another JAX": (
        lambda blob: changed(blob, program=b"\0" * 64), f"jax 9.9|by jax {jax.__version__}",
    ),
    "no weights": (lambda blob: changed(blob, weights=None), "weights.safetensors"),
    "damaged weights": (lambda blob: changed(blob, weights=b"\xff" * 40), "are damaged"),
    "fewer weights": (
        lambda blob: changed(blob, weights=(2).to_bytes(8, "little") + b"{}"), "is nothing where",
    ),
    "weights elsewhere": (lambda blob: changed(blob, header=header(weights="../x")), "by its path"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_and_foreign_files(exported, name):
    damage, message = DAMAGED[name]
    with pytest.raises(ValueError, match=message):
        exporting.load(damage(exported.serialize()))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        exporting.load(tmp_path / "no such file")


# --- without torch --------------------------------------------------------------------------------

BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_jax", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
"""


def without_torch(code: str, *arguments: str) -> str:
    """What code prints where torch cannot be imported."""
    return output("-c", BLOCKED + code, *arguments, new=True, JAX_PLATFORMS="cpu")


@pytest.mark.slow
def test_a_process_without_torch(tmp_path):
    model, args, kwargs, expected = made("bert")
    path = str(tmp_path / "model.zip")
    torch_jax.export(model, args, kwargs).save(path, weights="beside")
    np.savez(tmp_path / "given.npz", ids=args[0], mask=kwargs["attention_mask"])
    shutil.copy(exported_file.__file__, tmp_path)
    code = f"""
import numpy as np
sys.path.insert(0, {str(tmp_path)!r})
import exported_file
given = np.load({str(tmp_path / "given.npz")!r})
result = exported_file.load({path!r}).call(given["ids"], attention_mask=given["mask"])
np.save({str(tmp_path / "result.npy")!r}, result["last_hidden_state"])
"""
    without_torch(code)
    script = (
        f"import runpy; runpy.run_path({str(tmp_path / 'exported_file.py')!r}, run_name='__main__')"
    )
    assert "int64[2,9]" in without_torch(script, path)
    assert_close(torch.tensor(np.load(tmp_path / "result.npy")), expected[:1])


@pytest.mark.slow
def test_the_page_and_the_example(tmp_path):
    path = str(tmp_path / "model.zip")
    output("-m", "examples.export.write", path)
    script = str(ROOT / "examples" / "export" / "run.py")
    run = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    told = without_torch(run, path)
    assert "gradients of shape (8, 2); torch imported: False" in told
    page = (ROOT / "docs" / "export.md").read_text()
    snippet = next(b for b in page.split("```python\n") if "zipfile" in b).split("```")[0]
    points = f"(np.load({path + '.npz'!r})['points'],), {{}}"
    code = snippet.replace("model.zip", path)
    code = code.replace('(input_ids,), {"attention_mask": mask}', points)
    assert "(8, 2)" in without_torch(f"{code}\nprint(logits.shape)")


# --- HLO ------------------------------------------------------------------------------------------


@pytest.mark.xla_default
@pytest.mark.parametrize("whole", ["function", "module"])
def test_lower_tells_what_xla_makes(whole):
    model, (x,), _, _ = made("mlp")
    model.to("jax")
    function = model if whole == "module" else lambda x: model(x)
    program = torch_jax.lower(function, x.to("jax"))
    assert "stablehlo.dot_general" in program.as_text()
    assert "HloModule" in program.as_text("hlo")
    assert program.cost_analysis()["flops"] >= 2 * 5 * (3 * 4 + 4 * 2)
    assert program.memory_analysis().output_size_in_bytes >= 5 * 2 * 4
    assert model._compiled_call_impl is None
    with pytest.raises(ValueError, match="dialect"):
        program.as_text("assembler")


def test_a_file_without_flatbuffers_says_what_to_install(monkeypatch):
    exported = torch_jax.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    monkeypatch.setitem(sys.modules, "jax._src.export.serialization", None)  # as JAX's own import
    with pytest.raises(ImportError, match=r"torch_jax\[export\]") as caught:
        exported.serialize()
    assert caught.value.__suppress_context__  # so that JAX's error is not read first
