"""``torch_jax.jit`` on anything that can be called, and what can be asked of it."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import io
import threading
from typing import Any

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.values import ones

# --- functions, methods, modules ------------------------------------------------------------------


def test_a_decorated_function_keeps_its_name_and_docs():
    @torch_jax.jit
    def double(x):
        """Twice."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert double(ones()).tolist() == [2, 2, 2]


class Scaler:
    def __init__(self, scale: float):
        self.scale = scale

    @torch_jax.jit
    def scaled(self, x):
        return x * self.scale

    @torch_jax.jit(traced=("shift",))
    def shifted(self, x, shift=1.0):
        return x * self.scale + shift

    @staticmethod
    @torch_jax.jit
    def doubled(x):
        return x * 2

    @classmethod
    @torch_jax.jit
    def named(cls, x):
        return x * len(cls.__name__)


def test_methods_of_two_objects_are_apart():
    two, three = Scaler(2.0), Scaler(3.0)
    for _ in range(2):
        assert two.scaled(ones()).tolist() == [2, 2, 2]
        assert three.scaled(ones()).tolist() == [3, 3, 3]
        assert Scaler.scaled(three, ones()).tolist() == [3, 3, 3]
    two.scale = 5.0
    assert two.scaled(ones()).tolist() == [5, 5, 5]
    assert two.scaled.explain().traces == 2
    assert three.scaled.explain().traces == 1
    assert two.shifted(ones(), 4.0).tolist() == [9, 9, 9]
    assert two.shifted(ones(), shift=5.0).tolist() == [10, 10, 10]
    assert two.shifted.explain().traces <= 2  # by place and by name


def test_static_and_class_methods():
    assert Scaler.doubled(ones()).tolist() == [2, 2, 2]
    assert Scaler(1.0).doubled(ones()).tolist() == [2, 2, 2]
    assert Scaler.named(ones()).tolist() == [6, 6, 6]


def test_objects_with_compiled_methods_are_copied():
    one = Scaler(2.0)
    one.scaled(ones())
    other = copy.copy(one)
    other.scale = 7.0
    assert other.scaled(ones()).tolist() == [7, 7, 7]
    deep = copy.deepcopy(one)
    deep.scale = 9.0
    assert deep.scaled(ones()).tolist() == [9, 9, 9]
    assert one.scaled(ones()).tolist() == [2, 2, 2]


class Slotted:
    __slots__ = ("scale",)

    @torch_jax.jit
    def scaled(self, x):
        return x * self.scale


def test_methods_of_objects_without_a_dict():
    one, two = Slotted(), Slotted()
    one.scale, two.scale = 2.0, 3.0
    for _ in range(2):
        assert one.scaled(ones()).tolist() == [2, 2, 2]
        assert two.scaled(ones()).tolist() == [3, 3, 3]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.drop(self.norm(self.linear(x))) * scale


class Compiled(Net):
    @torch_jax.jit
    def forward(self, x, scale=1.0):
        return super().forward(x, scale)


def make(kind: type[nn.Module], compile: bool) -> nn.Module:
    torch.manual_seed(0)
    model = kind().to("jax")
    return torch_jax.jit(model) if compile else model


@pytest.mark.parametrize("kind, compile", [(Net, True), (Compiled, False)])
class TestModules:
    @pytest.mark.slow
    def test_training_and_evaluation(self, kind, compile):
        plain, model = make(Net, False), make(kind, compile)
        assert isinstance(model, kind)
        x = torch.arange(15.0, device="jax").view(5, 3)
        for mode in (True, True, False, False, True):
            plain.train(mode), model.train(mode)
            torch.manual_seed(1)
            theirs = plain(x, scale=2.0)
            torch.manual_seed(1)
            ours = model(x, scale=2.0)
            torch.testing.assert_close(ours.cpu(), theirs.cpu())
        torch.testing.assert_close(model.norm.running_mean.cpu(), plain.norm.running_mean.cpu())

    def test_state_dict_and_parameters(self, kind, compile):
        plain, model = make(Net, False), make(kind, compile)
        model(ones(5, 3))
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
        model.load_state_dict(plain.state_dict())
        plain.eval(), model.eval()
        torch.testing.assert_close(model(ones(5, 3)).cpu(), plain(ones(5, 3)).cpu())

    def test_saved_and_loaded(self, kind, compile):
        model = make(kind, compile).eval()
        expected = model(ones(5, 3)).cpu()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert type(loaded) is kind
        torch.testing.assert_close(loaded(ones(5, 3)).cpu(), expected)

    def test_a_copy_is_another_model(self, kind, compile):
        model = make(kind, compile).eval()
        expected = model(ones(5, 3)).cpu()
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.norm.bias.fill_(100.0)
        assert other(ones(5, 3)).mean().item() > 50
        torch.testing.assert_close(model(ones(5, 3)).cpu(), expected)

    def test_hooks_run(self, kind, compile):
        model = make(kind, compile).eval()
        expected = model(ones(5, 3)).cpu()
        handle = model.register_forward_hook(lambda module, args, out: out * 2)
        inner = model.linear.register_forward_hook(lambda module, args, out: out + 0)
        torch.testing.assert_close(model(ones(5, 3)).cpu(), expected * 2)
        handle.remove(), inner.remove()
        torch.testing.assert_close(model(ones(5, 3)).cpu(), expected)

    def test_gradients_flow_to_parameters_and_inputs(self, kind, compile):
        plain, model = make(Net, False).eval(), make(kind, compile).eval()
        for value in (1.0, 2.0):
            found = []
            for net in (plain, model):
                net.zero_grad()
                x = (ones(5, 3) * value).requires_grad_()
                net(x).square().sum().backward()
                found.append([x.grad.cpu(), *(p.grad.cpu() for p in net.parameters())])
            torch.testing.assert_close(found[1], found[0])


def test_a_compiled_function_inside_another():
    inner = torch_jax.jit(lambda x: x * 2)
    outer = torch_jax.jit(lambda x: inner(x) + 1)
    for _ in range(2):
        assert outer(ones()).tolist() == [3, 3, 3]
    assert inner.explain().traces == 0
    assert outer.explain().traces == 1
    assert inner(ones()).tolist() == [2, 2, 2]


def test_a_compiled_module_inside_a_compiled_step():
    model = make(Net, True)
    step = torch_jax.jit(lambda x: model(x).sum().backward())
    step(ones(5, 3))
    assert model.linear.weight.grad is not None


def test_calls_from_many_threads():
    total = torch.zeros((), device="jax")

    @torch_jax.jit
    def add(x):
        total.add_(x.sum())
        return x * 2

    wrong: list[Any] = []

    def work(index: int) -> None:
        for _ in range(5):
            size = 2 + index % 3
            if add(ones(size) * index).tolist() != [2.0 * index] * size:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert total.item() == 5 * sum(i * (2 + i % 3) for i in range(8))
    assert add.explain().traces == 3


def test_generators_of_two_threads_do_not_mix():
    function = torch_jax.jit(lambda x: x + torch.rand(3, device="jax"))
    found: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(function(ones()).cpu())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(t.tolist()) for t in found}) == 6


# --- arguments ------------------------------------------------------------------------------------


def test_nested_containers_and_keywords():
    Pair = collections.namedtuple("Pair", "one two")

    @torch_jax.jit
    def function(batch, *more, scale, pair=None):
        total = batch["x"] * scale + sum(more)
        total = total + batch["deep"][0][1]
        return {"total": total, "pair": Pair(pair.one + 1, None), "n": len(more), "s": "text"}

    for scale in (2, 3):
        batch = {"x": ones(), "deep": [(1, ones())]}
        out = function(batch, ones(), ones(), scale=scale, pair=Pair(ones(), two="two"))
        assert out["total"].tolist() == [scale + 3] * 3
        assert out["pair"].one.tolist() == [2, 2, 2]
        assert (out["pair"].two, out["n"], out["s"]) == (None, 2, "text")


def test_keywords_in_any_order_are_one_trace():
    function = torch_jax.jit(lambda a, b: a * 2 + b)
    assert function(a=ones(), b=ones()).tolist() == [3, 3, 3]
    assert function(b=ones() * 2, a=ones()).tolist() == [4, 4, 4]
    assert function.explain().traces == 1


def test_dicts_with_keys_of_many_kinds():
    function = torch_jax.jit(lambda d: d[1] * 2 + d["a"] + d[None])
    for _ in range(2):
        assert function({1: ones(), "a": ones(), None: ones()}).tolist() == [4, 4, 4]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0


def test_dataclasses_as_arguments_and_results():
    function = torch_jax.jit(lambda batch: Batch(batch.x * batch.scale, batch.scale + 1))
    for value in (1.0, 2.0, 3.0):
        result = function(Batch(ones() * value))
        assert result.x.tolist() == [2 * value] * 3
        assert result.scale == 3.0
    batch = Batch(ones())
    function(batch)
    batch.x, batch.scale = ones() * 5, 4.0
    assert function(batch).x.tolist() == [20, 20, 20]


@pytest.mark.slow
@pytest.mark.traced_at_once(fallback="record")
def test_outputs_of_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).to("jax").eval()

    def run(tokens, mask):
        return model(input_ids=tokens, attention_mask=mask, use_cache=False)

    compiled, mask = torch_jax.jit(run), torch.ones(1, 3, dtype=torch.int64, device="jax")
    with torch.no_grad():
        for start in range(4):
            tokens = torch.tensor([[1, 2, 3 + start]], device="jax")
            theirs, ours = run(tokens, mask), compiled(tokens, mask)
            torch.testing.assert_close(ours.logits.cpu(), theirs.logits.cpu(), rtol=1e-4, atol=1e-5)
    assert compiled.explain().traces == 1, compiled.explain()


class Mode(enum.Enum):
    UP = 1
    DOWN = -1


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


STATIC = [
    1, 1.0, True, 0.0, -0.0, 2, "up", "down", None, Mode.UP, Mode.DOWN, (1, 2), [3], range(4),
    torch.float16, Frozen(2.0), Frozen(3.0), torch.Size([2]), slice(1, 2), 1j, len,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.traced_at_once(fallback="record")
def test_python_arguments_are_fixed_by_value_and_type():
    def function(x, how):
        return x * (len(repr(how)) + 10 * len(type(how).__name__)), repr(how)

    compiled = torch_jax.jit(function)
    for value in STATIC + STATIC[::-1]:
        ours, theirs = compiled(ones(), value), function(ones(), value)
        assert (ours[0].tolist(), ours[1]) == (theirs[0].tolist(), theirs[1]), value


def test_an_object_as_an_argument_may_change():
    settings = Scaler(2.0)
    function = torch_jax.jit(lambda x, settings: x * settings.scale)
    assert function(ones(), settings).tolist() == [2, 2, 2]
    settings.scale = 3.0
    assert function(ones(), settings).tolist() == [3, 3, 3]
    assert function(ones(), Scaler(4.0)).tolist() == [4, 4, 4]


def test_a_list_or_dict_among_the_arguments_is_not_changed_silently():
    append = torch_jax.jit(lambda values: values.append(values[0] * 2))
    put = torch_jax.jit(lambda state: state.update(h=state["h"] + 1))
    for function, given in ((append, [ones()]), (put, {"h": ones()})):
        with pytest.raises(torch_jax.NotTraceableError, match="among its arguments"):
            function(given)


@pytest.mark.slow
def test_tensors_of_another_form_are_another_program():
    function = torch_jax.jit(lambda x: x * 2 + x.sum())
    made = [
        ones(3), ones(4), ones(2, 3), ones(3, 2).t(), ones(3).double(), ones(3).int(),
        torch.ones(3), ones(6)[::2], ones(1).expand(3), ones(3).requires_grad_(), ones(0),
    ]  # fmt: skip
    for _ in range(2):
        for x in made:
            expected = (x.detach().cpu() * 2 + x.detach().cpu().sum()).double()
            result = function(x).detach()
            assert torch.equal(result.cpu().double(), expected)
            assert result.dtype == x.dtype
            assert result.device.type == x.device.type
    assert function.explain().traces == len(made)


def test_numbers_that_are_traced():
    function = torch_jax.jit(lambda x, scale: x * scale + scale**2, traced="scale")
    for scale in (0.5, 1.0, -2.0, 1e10):
        assert function(ones(), scale)[0].item() == pytest.approx(scale + scale**2)
        assert function(ones(), scale=scale)[0].item() == pytest.approx(scale + scale**2)
    assert function.explain().traces <= 2
    assert function(ones(), 2).tolist() == [6, 6, 6]  # an int is fixed
    assert function(ones().int(), 0.5).dtype == torch.float32


def test_traced_numbers_that_are_compared():
    def function(x, scale):
        return x * scale if scale > 1 else x - scale

    compiled = torch_jax.jit(function, traced=("scale",))
    for scale in (2.0, 3.0, 0.5, 0.25, 2.5, 1.0, 0.75):
        torch.testing.assert_close(compiled(ones(), scale).cpu(), function(ones(), scale).cpu())
    assert compiled.explain().traces == 2


def test_two_traced_numbers_of_one_value():
    function = torch_jax.jit(lambda x, a, b: x * a + b, traced=("a",))
    same = 2.0
    assert function(ones(), same, same).tolist() == [4, 4, 4]
    assert function(ones(), 3.0, same).tolist() == [5, 5, 5]
    assert function(ones(), same, 3.0).tolist() == [5, 5, 5]
    assert function(ones(), 5.0, 5.0).tolist() == [10, 10, 10]


# --- buckets --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lengths_are_padded_to_buckets_and_masked():
    def mean(x, x_mask=None):
        if x_mask is None:
            return x.mean(0)
        return (x * x_mask.unsqueeze(1)).sum(0) / x_mask.sum()

    compiled = torch_jax.jit(mean, dynamic={"x": {0: (4, 8, 16)}})
    for length in (1, 3, 4, 5, 8, 9, 16, 2):
        x = torch.arange(2.0 * length, device="jax").view(length, 2)
        torch.testing.assert_close(compiled(x).cpu(), mean(x).cpu())
        torch.testing.assert_close(compiled(x=x).cpu(), mean(x).cpu())
    assert compiled.explain().traces <= 6, compiled.explain()  # by place and by name
    with pytest.raises(ValueError, match=r"'x' has size 17 in dim 0.*16"):
        compiled(ones(17, 2))


def test_a_mask_that_is_given_may_be_padded_too():
    @torch_jax.jit(dynamic={"x": {0: (4,)}, "x_mask": {0: (4,)}})
    def function(x, x_mask=None):
        return (x * x_mask).sum()

    assert function(ones(3), torch.tensor([True, False, True], device="jax")).item() == 2


def test_two_dims_and_two_arguments_in_buckets():
    sizes = {0: (4,), 1: (8,)}
    function = torch_jax.jit(lambda x, y: x.sum() + y.sum(), dynamic={"x": sizes, "y": {0: (2,)}})
    assert function(ones(3, 5), ones(1)).item() == 16
    assert function(ones(4, 8), ones(2)).item() == 34
    assert function.explain().traces == 1
