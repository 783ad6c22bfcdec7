"""Code that runs without a chip: the device that it finds, and its programs."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from torch_jax import config, target
from torch_jax.compiler import options
from torch_jax.core import absent
from torch_jax.core.absent import Absent

TPU = "tpu-v5e-1"


def array_of(tensor):
    return tensor.untyped_storage().array


def training():
    """A model of two layers, a jitted step of AdamW, and its batch."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())

    @torch_jax.jit
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, torch.ones(6, 8).to("jax"), torch.zeros(6, dtype=torch.int64).to("jax")


def test_a_training_step_is_one_program_and_nothing_is_computed():
    with torch_jax.compile_for(TPU) as found:
        step, x, y = training()
        losses = [step(x, y).item() for _ in range(3)]
        assert all(type(array_of(one)) is Absent for one in (x, y))
    assert losses == [0.0] * 3
    (program,) = {one for one in found.runs if one.name}
    assert program.name.endswith("step") and program.calls == 3
    assert __file__ in program.line
    memory = program.memory_analysis()
    weights = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert memory.argument_size_in_bytes > 3 * weights  # with both moments
    assert memory.alias_size_in_bytes >= 3 * weights
    assert program.cost_analysis()["flops"] > 2 * 6 * (8 * 16 + 16 * 4)
    assert "f64" not in program.as_text("hlo")  # numbers of the optimizer, too


def test_a_model_larger_than_the_machine_has_a_form():
    with torch_jax.compile_for("gpu-h200") as found, torch.no_grad(), torch.device("jax"):
        model = nn.Linear(1 << 20, 1 << 20)
        out = model(torch.empty(2, 1 << 20))
        assert out.shape == (2, 1 << 20) and out.abs().sum().item() == 0.0
    assert found.outside > 3 and len(found.programs) >= 1


def test_ordinary_work_goes_on_before_and_after():
    before = torch.ones(3, device="jax")
    here = target.platform()
    with torch_jax.compile_for(TPU):
        assert target.platform() == "tpu"
        assert (before + 1).shape == (3,)
    assert target.platform() == here and config.get("target") == "here"
    assert (before + 1).tolist() == [2.0] * 3


def test_single_numbers_are_zero_and_noted_with_their_line():
    with torch_jax.compile_for(TPU):
        x = torch.ones(2, device="jax")
        assert x.sum().item() == 0.0 and not x.any() and int(x.argmax()) == 0
        assert x[1].item() == 0.0
        looks = dict(absent.LOOKS)
    assert len(looks) == 2 and all(__file__ in line for line in looks)


@pytest.mark.parametrize(
    "look",
    [torch.Tensor.cpu, torch.Tensor.tolist, torch.nonzero, lambda x: x[x > 1], torch.unique],
)
def test_more_than_a_number_is_refused_with_the_line(look):
    with torch_jax.compile_for(TPU):
        x = torch.ones(4, device="jax")
        with pytest.raises(
            torch_jax.DataDependentError, match=rf"nothing is computed .* {TPU} \({__file__}"
        ):
            look(x)


def test_a_jitted_model_and_its_backward_pass_are_programs_of_their_own():
    with torch_jax.compile_for(TPU) as found:
        model = torch_jax.jit(nn.Linear(4, 4).to("jax"))
        for _ in range(2):
            model(torch.ones(2, 4, device="jax")).square().sum().backward()
    assert {one.name for one in found.programs} == {"Linear", "backward pass", ""}


def test_graphs_of_torch_compile_are_programs():
    with torch_jax.compile_for(TPU) as found:
        double = torch.compile(lambda x: (x * 2).relu(), backend="jax", fullgraph=True)
        assert double(torch.ones(2, 3, device="jax")).shape == (2, 3)
    assert [one.operators for one in found.programs if one.name] == [2]


def test_a_pure_function_is_recorded():
    with torch_jax.compile_for(TPU) as found:
        double = torch_jax.jit(lambda x: x * 2, pure=True)
        for _ in range(4):
            double(torch.ones(2, device="jax"))
    assert [one.calls for one in found.programs if one.name] == [4]


def test_a_program_is_compiled_for_its_chips_also_behind_the_block(monkeypatch):
    seen = []
    monkeypatch.setattr(options, "of_lowered", lambda lowered: seen.append(target.platform()) or {})
    with torch_jax.compile_for("gpu-h200") as found:
        torch_jax.jit(lambda x: x * 2)(torch.ones(2, device="jax"))
    assert found.programs[0].compiled is not None
    assert seen == ["gpu"] and target.chosen() is None


def test_a_factorization_is_compiled_where_nothing_says_whether_it_fails():
    with torch_jax.compile_for(TPU) as found:
        for call in (torch_jax.jit(torch.linalg.inv), torch.linalg.cholesky):
            assert call(torch.ones(2, 2, device="jax")).shape == (2, 2)
    assert found.runs[0].name


def test_a_deviation_of_float32_is_computed_in_it():
    with torch_jax.compile_for(TPU) as found:
        torch_jax.jit(lambda x: x.std(correction=1))(torch.ones(3, device="jax"))
    assert "f64" not in found.runs[-1].as_text("hlo")


def run(found, *tensors):
    """Run the last program, which the CPU has compiled in place of a chip, on these tensors."""
    compiled = found.runs[-1].compiled
    forms = list(compiled.in_avals[0])
    left = [np.asarray(one) for one in tensors]
    given = [np.zeros(form.shape, form.dtype) for form in forms[:3]]
    for form in forms[3:]:
        at = next((i for i, one in enumerate(left) if one.shape == form.shape), None)
        # what is none of the tensors is the gradient of a result
        given.append(np.ones(form.shape, form.dtype) if at is None else left.pop(at))
    with torch_jax.core.x64.x64():
        return [np.asarray(one) for one in compiled(*given)]


@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6), (2, 3, 5, 6), (1, 5, 6), (0, 5, 6)], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_in_the_form_of_tpus_are_those_of_the_cpu(shape, has_bias):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=has_bias)
    x = torch.randn(shape)
    want = F.relu(layer(x * x)).detach()
    with torch_jax.compile_for(TPU) as found, torch.no_grad():
        there = nn.Linear(6, 4, bias=has_bias).to("jax")

        @torch_jax.jit
        def forward(x):
            return F.relu(there(x * x))

        kept = forward(torch.empty(shape, device="jax"))
    assert kept.shape == want.shape
    if want.numel():
        (result,) = run(found, x, *(p.detach() for p in layer.parameters()))
        np.testing.assert_allclose(result.reshape(want.shape), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_in_the_form_of_accelerators_is_that_of_the_cpu(is_causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 200, 8).unbind()
    want = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    with torch_jax.compile_for("gpu-h100") as found:

        @torch_jax.jit
        def attend(qkv):
            return F.scaled_dot_product_attention(*qkv.unbind(), is_causal=is_causal)

        kept = attend(torch.empty(3, 1, 2, 200, 8, device="jax"))
    (result,) = run(found, torch.stack([query, key, value]))
    np.testing.assert_allclose(result.reshape(kept.shape), want, rtol=2e-5, atol=2e-6)


def test_complex_numbers_reach_tpus_in_single_precision():
    """The compiler of TPUs ends the process where it meets complex128."""
    with torch_jax.compile_for(TPU) as found:

        @torch_jax.jit
        def turn(x):
            return x * 2j + 1j, torch.polar(x, x)

        kept = turn(torch.ones(3, device="jax"))
        assert {one.dtype for one in kept} == {torch.complex64}
        assert "complex<f64>" not in found.runs[-1].as_text()
        with pytest.raises(TypeError, match="TPUs compute no complex128"):
            torch.ones(3, device="jax").cdouble()


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 4, 3)], ids=str)
def test_singular_values_in_the_form_of_tpus_are_those_of_the_cpu(shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    with torch_jax.compile_for(TPU) as found:

        @torch_jax.jit
        def again(x):
            u, s, vh = torch.linalg.svd(x, full_matrices=False)
            return s, (u * s[..., None, :]) @ vh

        kept = again(torch.empty(shape, device="jax"))
    results = {one.shape: torch.from_numpy(one.copy()) for one in run(found, x)}
    values, product = (results[tuple(one.shape)] for one in kept)
    torch.testing.assert_close(values, torch.linalg.svdvals(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(product, x, rtol=1e-4, atol=1e-5)


def test_products_in_the_form_of_tpus_are_written_in_place_and_out_of_place():
    with torch_jax.compile_for(TPU):
        x, weight = torch.empty(2, 3, 4, device="jax"), torch.empty(4, 5, device="jax")
        rows = (x + 1).view(6, 4)
        total = torch.empty(6, 5, device="jax").addmm_(rows, weight)
        out = torch.mm(rows, weight, out=torch.empty(6, 5, device="jax"))
        half = torch.mm(rows.bfloat16(), weight.bfloat16())
        several = torch.addmm(torch.empty(6, 1, device="jax"), rows, weight)
        torch_jax.sync()
        shapes = {one.shape for one in (total, out, half, several)}
        assert shapes == {(6, 5)} and half.dtype == torch.bfloat16
        assert array_of(half).dtype == "bfloat16"


def test_products_of_half_types_are_summed_over_a_mesh_as_such():
    """A product that gives float32 would be summed over the mesh in twice the bytes."""
    with torch_jax.compile_for(TPU) as found:
        layer = nn.Linear(8, 4, bias=False).to("jax")

        @torch_jax.jit
        def gradients(x):
            with torch.autocast("jax", torch.bfloat16):
                return torch.autograd.grad(layer(x * x).sum(), layer.weight)

        gradients(torch.ones(2, 8, device="jax"))
    products = re.findall(r"dot_general .*-> (\S+)", found.runs[-1].as_text())
    assert len(products) == 2
    assert all(one.endswith("bf16>") for one in products)


def test_gradients_of_products_in_the_form_of_tpus_are_those_of_the_cpu():
    def gradients(x, weight, bias):
        given = [one.requires_grad_() for one in (x, weight, bias)]
        y = F.linear(given[0] * given[0], *given[1:])
        return torch.autograd.grad((y * y.tanh()).sum(), given)  # without numbers: they are 0

    torch.manual_seed(0)
    given = torch.randn(2, 5, 6), torch.randn(4, 6), torch.randn(4)
    want = gradients(*(one.clone() for one in given))
    with torch_jax.compile_for(TPU) as found:
        kept = torch_jax.jit(gradients)(*(torch.empty_like(one, device="jax") for one in given))
        assert [one.shape for one in kept] == [one.shape for one in given]
    results = {one.size: one for one in run(found, *given)}
    for one in want:
        actual = results[one.numel()].reshape(one.shape)
        np.testing.assert_allclose(actual, one, rtol=1e-4, atol=1e-5)
