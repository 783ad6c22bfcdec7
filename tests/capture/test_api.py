"""``torch_jax.jit`` on anything that can be called, and what can be asked of it."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import io
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.jitted import assert_run, assert_skipped, both
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

    @torch_jax.jit(pure=True)
    def scaled_for_good(self, x):
        return x * self.scale

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
    for _ in range(3):
        for one, scale in ((two, 2), (three, 3)):
            assert one.scaled(ones()).tolist() == [scale] * 3
            assert one.scaled_for_good(ones()).tolist() == [scale] * 3
        assert Scaler.scaled(three, ones()).tolist() == [3, 3, 3]
    two.scale = 5.0
    assert two.scaled(ones()).tolist() == [5, 5, 5]
    assert_skipped(two.scaled_for_good)
    assert two.scaled.explain().recorded == 4 and three.scaled.explain().recorded == 3


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


def make(kind: type[nn.Module], options: dict | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = kind().to("jax")
    return model if options is None else torch_jax.jit(model, **options)


KINDS = [(Net, {}), (Net, {"pure": True}), (Compiled, None)]


@pytest.mark.parametrize("kind, options", KINDS, ids=["module", "pure", "forward"])
class TestModules:
    @pytest.mark.slow
    def test_training_and_evaluation(self, kind, options):
        plain, model = make(Net), make(kind, options)
        assert isinstance(model, kind)
        x = torch.arange(15.0, device="jax").view(5, 3)
        for mode in (True, True, False, False, True, False, True):
            plain.train(mode), model.train(mode)
            torch.manual_seed(1)
            theirs = plain(x, scale=2.0)
            torch.manual_seed(1)
            ours = model(x, scale=2.0)
            torch.testing.assert_close(ours.cpu(), theirs.cpu())
        torch.testing.assert_close(model.norm.running_mean.cpu(), plain.norm.running_mean.cpu())
        if options:
            assert_skipped(model, kinds=2)

    def test_state_dict_parameters_files_and_copies(self, kind, options):
        plain, model = make(Net), make(kind, options)
        model(ones(5, 3))
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
        model.load_state_dict(plain.state_dict())
        plain.eval(), model.eval()
        expected = plain(ones(5, 3)).cpu()
        torch.testing.assert_close(model(ones(5, 3)).cpu(), expected)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert type(loaded) is kind
        torch.testing.assert_close(loaded(ones(5, 3)).cpu(), expected)
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.norm.bias.fill_(100.0)
        assert other(ones(5, 3)).mean().item() > 50
        torch.testing.assert_close(model(ones(5, 3)).cpu(), expected)

    def test_hooks_run(self, kind, options):
        model = make(kind, options).eval()
        handle = model.register_forward_hook(lambda module, args, out: out * 2)
        expected = make(Net).eval()(ones(5, 3)).cpu()
        inner = model.linear.register_forward_hook(lambda module, args, out: out + 0)
        for _ in range(3):
            torch.testing.assert_close(model(ones(5, 3)).cpu(), expected * 2)
        handle.remove(), inner.remove()

    def test_gradients_flow_to_parameters_and_inputs(self, kind, options):
        plain, model = make(Net).eval(), make(kind, options).eval()
        for value in (1.0, 2.0, 3.0):
            found = []
            for net in (plain, model):
                net.zero_grad()
                x = (ones(5, 3) * value).requires_grad_()
                net(x).square().sum().backward()
                found.append([x.grad.cpu(), *(p.grad.cpu() for p in net.parameters())])
            torch.testing.assert_close(found[1], found[0])
        if options:
            assert_skipped(model)


@both
def test_a_compiled_function_or_module_inside_another(pure):
    inner = torch_jax.jit(lambda x: x * 2, pure=pure)
    model = make(Net, {"pure": pure})
    outer = torch_jax.jit(lambda x: model(inner(x)).sum().backward(), pure=pure)
    for _ in range(3):
        model.zero_grad()
        outer(ones(5, 3))
        assert model.linear.weight.grad is not None
    assert inner.explain().observed == inner.explain().recorded == 0
    assert inner(ones()).tolist() == [2, 2, 2]


@both
def test_calls_from_many_threads(pure):
    @torch_jax.jit(pure=pure)
    def double(x):
        return x * 2, torch.rand(3, device="jax")

    wrong: list[Any] = []
    drawn: list[Any] = []

    def work(index: int) -> None:
        for _ in range(5):
            size = 2 + index % 3
            result, random = double(ones(size) * index)
            drawn.append(tuple(random.tolist()))
            if result.tolist() != [2.0 * index] * size:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(set(drawn)) == 40
    assert_run(double, pure, kinds=double.explain().observed)


# --- arguments ------------------------------------------------------------------------------------


@both
def test_nested_containers_and_keywords(pure):
    Pair = collections.namedtuple("Pair", "one two")

    @torch_jax.jit(pure=pure)
    def function(batch, *more, scale, pair=None):
        total = batch["x"] * scale + sum(more)
        total = total + batch["deep"][0][1]
        return {"total": total, "pair": Pair(pair.one + 1, None), "n": len(more), "s": "text"}

    for scale in (2, 3, 2, 3):
        batch = {"x": ones(), "deep": [(1, ones())]}
        out = function(batch, ones(), ones(), scale=scale, pair=Pair(ones(), two="two"))
        assert out["total"].tolist() == [scale + 3] * 3
        assert out["pair"].one.tolist() == [2, 2, 2]
        assert (out["pair"].two, out["n"], out["s"]) == (None, 2, "text")
    assert_run(function, pure, kinds=2)


def test_keywords_in_any_order_are_one_kind():
    function = torch_jax.jit(lambda a, b: a * 2 + b, pure=True)
    for _ in range(2):
        assert function(a=ones(), b=ones()).tolist() == [3, 3, 3]
        assert function(b=ones() * 2, a=ones()).tolist() == [4, 4, 4]
    assert_skipped(function)


@both
def test_dicts_with_keys_of_many_kinds(pure):
    function = torch_jax.jit(lambda d: d[1] * 2 + d["a"] + d[None], pure=pure)
    for _ in range(3):
        assert function({1: ones(), "a": ones(), None: ones()}).tolist() == [4, 4, 4]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0


@both
def test_dataclasses_as_arguments_and_results(pure):
    """A dataclass is one object: a pure function runs its Python for each."""
    function = torch_jax.jit(lambda b: Batch(b.x * b.scale, b.scale + 1), pure=pure)
    for value in (1.0, 2.0, 3.0):
        result = function(Batch(ones() * value))
        assert result.x.tolist() == [2 * value] * 3
        assert result.scale == 3.0


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
@both
def test_python_arguments_are_fixed_by_value_and_type(pure):
    def function(x, how):
        return x * (len(repr(how)) + 10 * len(type(how).__name__)), repr(how)

    compiled = torch_jax.jit(function, pure=pure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python runs for each
        for value in STATIC + STATIC[::-1]:
            ours, theirs = compiled(ones(), value), function(ones(), value)
            assert (ours[0].tolist(), ours[1]) == (theirs[0].tolist(), theirs[1]), value


def test_a_list_or_dict_among_the_arguments_that_is_changed():
    append = lambda values: values.append(values[0] * 2)  # noqa: E731
    put = lambda state: state.update(h=state["h"] + 1)  # noqa: E731
    for function, given in ((append, [ones()]), (put, {"h": ones()})):
        torch_jax.jit(function)(given)
        assert (given[1] if function is append else given["h"])[0].item() == 2
        with pytest.warns(UserWarning, match="among its arguments"):
            torch_jax.jit(function, pure=True)(given)


@pytest.mark.slow
@both
def test_tensors_of_another_form_are_another_kind(pure):
    function = torch_jax.jit(lambda x: x * 2 + x.sum(), pure=pure)
    made = [
        ones(3), ones(4), ones(2, 3), ones(3, 2).t(), ones(3).double(), ones(3).int(),
        ones(6)[::2], ones(1).expand(3), ones(3).requires_grad_(), ones(0),
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in made * 3:
            expected = (x.detach().cpu() * 2 + x.detach().cpu().sum()).double()
            result = function(x).detach()
            assert torch.equal(result.cpu().double(), expected)
            assert result.dtype == x.dtype
    assert_run(function, pure, kinds=len(made))


# --- buckets --------------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_lengths_are_padded_to_buckets_and_masked(pure):
    def mean(x, x_mask=None):
        if x_mask is None:
            return x.mean(0)
        return (x * x_mask.unsqueeze(1)).sum(0) / x_mask.sum()

    compiled = torch_jax.jit(mean, pure=pure, dynamic={"x": {0: (4, 8, 16)}})
    for length in (1, 3, 4, 5, 8, 9, 16, 2):
        x = torch.arange(2.0 * length).view(length, 2).to("jax")
        torch.testing.assert_close(compiled(x).cpu(), mean(x).cpu())
        torch.testing.assert_close(compiled(x=x).cpu(), mean(x).cpu())
    assert_run(compiled, pure, kinds=3)
    with pytest.raises(ValueError, match=r"'x' has size 17 in dim 0.*16"):
        compiled(ones(17, 2))


def test_a_mask_that_is_given_may_be_padded_too():
    @torch_jax.jit(dynamic={"x": {0: (4,)}, "x_mask": {0: (4,)}})
    def function(x, x_mask=None):
        return (x * x_mask).sum()

    assert function(ones(3), torch.tensor([True, False, True], device="jax")).item() == 2


def test_two_dims_and_two_arguments_in_buckets():
    sizes = {"x": {0: (4,), 1: (8,)}, "y": {0: (2,)}}
    function = torch_jax.jit(lambda x, y: x.sum() + y.sum(), pure=True, dynamic=sizes)
    assert function(ones(3, 5), ones(1)).item() == 16
    assert function(ones(4, 8), ones(2)).item() == 34
    assert_skipped(function)


def test_options_are_checked():
    with pytest.raises(ValueError, match="audit"):
        torch_jax.jit(lambda x: x, audit="never")
    with pytest.raises(TypeError, match="scale"):
        torch_jax.jit(lambda x: x, scale=1)
    with pytest.raises(TypeError, match="'y'"):
        torch_jax.jit(lambda x: x, dynamic={"y": {0: (4,)}})
    for name in ("traced", "fallback", "verify", "donate"):
        with pytest.warns(DeprecationWarning, match=f"jit.{name}=...."):
            assert torch_jax.jit(lambda x: x * 2, **{name: True})(ones()).tolist() == [2, 2, 2]
