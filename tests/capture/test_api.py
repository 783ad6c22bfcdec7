"""``torch_jax.jit`` on anything that can be called, with arguments of any kind."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import torch_jax
from tests.support.jitted import assert_run, assert_skipped, both
from tests.support.values import ones, randn

# --- functions, methods, modules ------------------------------------------------------------------


def _scaled(self, x):
    return x * self.scale


class Scaler:
    scaled, fixed = torch_jax.jit(_scaled), torch_jax.jit(_scaled, pure=True)
    doubled = staticmethod(torch_jax.jit(lambda x: x * 2))
    named = classmethod(torch_jax.jit(lambda cls, x: x * len(cls.__name__)))

    def __init__(self, scale: float):
        self.scale = scale


class Slotted:
    __slots__ = ("scale",)
    __init__, scaled = Scaler.__init__, torch_jax.jit(_scaled)
    fixed = torch_jax.jit(_scaled, pure=True)


@pytest.mark.parametrize("kind", [Scaler, Slotted])
def test_methods_of_two_objects_are_apart(kind):
    two, three = kind(2.0), kind(3.0)
    for _ in range(3):
        for one, scale in ((two, 2), (three, 3)):
            assert one.scaled(ones()).tolist() == one.fixed(ones()).tolist() == [scale] * 3
        assert kind.scaled(three, ones()).tolist() == [3, 3, 3]
    two.scale = 5.0
    assert two.scaled(ones()).tolist() == [5, 5, 5]


def test_methods_are_counted_by_objects_and_copied_with_them():
    two, three = Scaler(2.0), Scaler(3.0)
    for one, times in ((two, 4), (three, 3)):
        for _ in range(times):
            one.scaled(ones()), one.fixed(ones())
        assert one.scaled.explain().recorded == times
        assert_skipped(one.fixed)
    for make, scale in ((copy.copy, 7), (copy.deepcopy, 9)):
        other = make(two)
        other.scale = float(scale)
        assert other.scaled(ones()).tolist() == other.fixed(ones()).tolist() == [scale] * 3
    assert two.scaled(ones()).tolist() == two.fixed(ones()).tolist() == [2, 2, 2]
    assert Scaler.doubled(ones()).tolist() == two.doubled(ones()).tolist() == [2, 2, 2]
    assert Scaler.named(ones()).tolist() == [6, 6, 6]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return self.drop(self.norm(self.linear(x))) * scale


class Compiled(Net):
    forward = torch_jax.jit(Net.forward)


def make(kind: type[nn.Module], options: dict | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = kind().to("jax")
    return model if options is None else torch_jax.jit(model, **options)


KINDS = {"module": (Net, {}), "pure": (Net, {"pure": True}), "forward": (Compiled, None)}


@pytest.mark.parametrize("kind, options", KINDS.values(), ids=KINDS)
class TestModules:
    @pytest.mark.slow
    def test_training_and_evaluation(self, kind, options):
        plain, model = make(Net), make(kind, options)
        assert isinstance(model, kind)
        for mode in (True, True, False, False, True, False, True):
            found = []
            for net in (model, plain):
                torch.manual_seed(1)
                net.train(mode)
                x = randn(5, 3, requires_grad=True)
                net.zero_grad()
                y = net(x, scale=2.0)
                y.sin().sum().backward()
                tensors = (y, x.grad, *(p.grad for p in net.parameters()), net.norm.running_mean)
                found.append([one.detach().cpu().clone() for one in tensors])
            torch.testing.assert_close(*found)
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


@contextlib.contextmanager
def _another_forward(layer):
    layer.forward = lambda x: torch.nn.Linear.forward(layer, x) * 2
    yield
    del layer.forward


@contextlib.contextmanager
def _a_hook_of_all(_layer):
    hook = register_module_forward_hook(lambda module, args, out: out * 2)
    yield
    hook.remove()


@pytest.mark.parametrize("doubled", [_another_forward, _a_hook_of_all])
def test_another_forward_of_a_module_is_noticed(doubled):
    layer = torch.nn.Linear(3, 2, device="jax")
    compiled = torch_jax.jit(lambda x: layer(x), pure=True)
    for _ in range(9):  # the next call is no audit
        before = compiled(ones(3))
    with doubled(layer):
        for _ in range(3):
            torch.testing.assert_close(compiled(ones(3)), before * 2)
    torch.testing.assert_close(compiled(ones(3)), before)


@both
def test_a_compiled_function_or_module_inside_another(pure):
    inner, model = torch_jax.jit(lambda x: x * 2, pure=pure), make(Net, {"pure": pure})
    outer = torch_jax.jit(lambda x: model(inner(x)).sum().backward(), pure=pure)
    for _ in range(3):
        model.zero_grad()
        outer(ones(5, 3))
        assert model.linear.weight.grad is not None
    assert inner.explain().observed == inner.explain().recorded == 0
    assert inner(ones()).tolist() == [2, 2, 2]


# --- arguments ------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "one two")


def nested_containers_and_keywords(compile):
    def function(batch, *more, scale, pair=None):
        total = batch["x"] * scale + sum(more)
        total = total + batch["deep"][0][1] * batch[None]
        return {"total": total, "pair": Pair(pair.one + 1, None), "n": len(more), 1: "text"}

    function = compile(function)
    for scale in (2, 3, 2, 3):
        batch = {"x": ones(), "deep": [(1, ones())], None: ones()}
        yield function(batch, ones(), ones(), scale=scale, pair=Pair(ones(), two="two"))


def keywords_in_any_order(compile):
    function = compile(lambda a, b: a * 2 + b)
    for _ in range(2):
        yield function(a=ones(), b=ones()), function(b=ones() * 2, a=ones())


def lengths_in_buckets(compile):
    def mean(x, y, x_mask=None):
        mask = torch.ones(len(x), device="jax") if x_mask is None else x_mask
        return (x * mask.unsqueeze(1)).sum(0) / mask.sum() + y.sum()

    mean = compile(mean, dynamic={"x": {0: (4, 8, 16)}, "y": {0: (2,), 1: (4,)}})
    for length in (1, 3, 4, 5, 8, 9, 16, 2):
        x = torch.arange(2.0 * length).view(length, 2).to("jax")
        yield mean(x, ones(1, 3)), mean(x=x, y=ones(2, 4))


ARGUMENTS = {  # and how many kinds of call there are
    nested_containers_and_keywords: 2, keywords_in_any_order: 1, lengths_in_buckets: 3,
}  # fmt: skip


@pytest.mark.parametrize("program", ARGUMENTS, ids=lambda program: program.__name__)
def test_arguments(program, agree):
    agree(program, ARGUMENTS[program])


def test_forms_of_tensors(agree_on_calls):
    def made():
        return [
            ones(3), ones(4), ones(2, 3), ones(3, 2).t(), ones(3).double(), ones(3).int(),
            ones(6)[::2], ones(1).expand(3), ones(3).requires_grad_(), ones(0),
        ]  # fmt: skip

    agree_on_calls(lambda x: x * 2 + x.sum(), lambda: [(x,) for x in made() * 3], kinds=10)


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
    for function, given, at in ((append, [ones()], 1), (put, {"h": ones()}, "h")):
        torch_jax.jit(function)(given)
        assert given[at][0].item() == 2
        with pytest.warns(UserWarning, match="among its arguments"):
            torch_jax.jit(function, pure=True)(given)


@both
def test_what_is_longer_than_all_buckets(pure):
    function = torch_jax.jit(lambda x: x * 2, pure=pure, dynamic={"x": {0: (4, 16)}})
    with pytest.raises(ValueError, match=r"'x' has size 17 in dim 0.*16"):
        function(ones(17, 2))
    assert_run(function, pure, kinds=0)


def test_a_mask_that_is_given_may_be_padded_too():
    @torch_jax.jit(dynamic={"x": {0: (4,)}, "x_mask": {0: (4,)}})
    def function(x, x_mask=None):
        return (x * x_mask).sum()

    assert function(ones(3), torch.tensor([True, False, True], device="jax")).item() == 2


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
