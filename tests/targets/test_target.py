"""Names of chips, and questions about the platform."""

from types import SimpleNamespace

import pytest

from torch_jax import config, target
from torch_jax.compiler import options
from torch_jax.distributed import mesh
from torch_jax.ops import attention_forms


@pytest.mark.parametrize(
    ("name", "shape", "chips"),
    [
        ("tpu-v5e", (1, 1), 1),
        ("tpu-v5e-1", (1, 1), 1),
        ("tpu-v5e-8", (2, 4), 8),
        ("tpu-v5e-4x4", (4, 4), 16),
        ("tpu-v6e-256", (16, 16), 256),
        ("tpu-v5e-16x16-2slices", (16, 16), 512),
        ("tpu-v5p-2", (1, 1, 1), 1),
        ("tpu-v5p-8", (2, 2, 1), 4),
        ("tpu-v5p-64", (2, 4, 4), 32),
        ("tpu-v5p-4x4x8", (4, 4, 8), 128),
        ("gpu-h100", (1, 1), 1),
        ("gpu-h200-8", (1, 8), 8),
        ("gpu-b200-2x8", (2, 8), 16),
    ],
)
def test_a_name_stands_for_chips(name, shape, chips):
    found = target.parse(name)
    assert (found.shape, found.chips) == (shape, chips)


@pytest.mark.parametrize(
    "name",
    ["", "tpu", "tpu-v5x", "gpu-v5e", "tpu-h100", "v5e-4x4", "cpu", "tpu-v5e-4x4 "],
)
def test_unknown_chips_are_refused_with_the_list(name):
    with pytest.raises(ValueError, match=r"is unknown\. Targets are written like tpu-v5e-4x4"):
        target.parse(name)


@pytest.mark.parametrize(
    "name",
    ["tpu-v5e-3", "tpu-v5e-2", "tpu-v5e-0", "tpu-v5e-4x4x4", "tpu-v5e-3x3", "tpu-v5p-3",
     "tpu-v5p-4x4", "gpu-h100-0", "gpu-h100-2x2x2", "gpu-h100-8-2slices", "tpu-v5e-4x4-1slices"],
)  # fmt: skip
def test_chips_that_cannot_be_arranged_are_refused(name):
    with pytest.raises(ValueError, match="no such arrangement"):
        target.parse(name)


def test_forms_and_checks_ask_the_target():
    from torch_jax.core import policies
    from torch_jax.memory import shared

    def asked():
        return target.platform(), policies.waits_for_checks(), shared.SETTING.by_torch

    here = asked()
    for name in ("tpu-v5e-1", "gpu-h100"):
        with config.temporarily("target", name):
            assert asked() == (name[:3], False, False)
            assert target.platform() in attention_forms.SIZES
    assert asked() == here


def test_programs_for_gpus_round_where_a_program_says_so():
    with config.temporarily("target", "gpu-h200"):
        assert options.operator()["xla_allow_excess_precision"] is False
        assert options.whole()["xla_allow_excess_precision"] is False


def test_only_products_of_half_types_are_compiled_by_triton():
    line = "stablehlo.dot_general %0, %1, precision = [HIGHEST, HIGHEST] : (tensor<8x4xf32>, )\n"
    half = line.replace("f32", "bf16")
    with config.temporarily("target", "gpu-h200"):
        chosen = [options.whole(one) for one in (line, line + half, line.replace("HIGH", "LOW"))]
        given = [one.get("xla_gpu_enable_triton_gemm") for one in (*chosen, options.operator())]
    assert given == [False, None, None, False]


def test_a_missing_compiler_is_named_with_the_command(monkeypatch):
    monkeypatch.undo()

    def fails(_target):
        raise RuntimeError("no plug-in\nmore of it")

    monkeypatch.setattr(target, "_tpus", fails)
    target._topology.cache_clear()
    with (
        config.temporarily("target", "tpu-v5e-2x4"),
        pytest.raises(target.NoCompiler, match=r"\(no plug-in\)\. It comes with: pip install"),
    ):
        target.devices()


def test_a_plug_in_that_jax_left_out_without_a_card_is_registered(monkeypatch):
    calls = []

    def describe(**_options):
        calls.append("describe")
        if "register" not in calls:
            raise NotImplementedError("topology not implemented for cuda")
        return "devices"

    monkeypatch.setattr(target.topologies, "get_topology_desc", describe)
    monkeypatch.setattr(target, "_register_without_a_card", lambda: calls.append("register"))
    assert target._gpus(target.parse("gpu-h100")) == "devices"
    assert calls == ["describe", "register", "describe"]


def chips_of_slices(count, each):
    """Return what JAX says of the chips of some slices."""
    return [
        SimpleNamespace(id=at, slice_index=at // each, process_index=0, platform="", device_kind="")
        for at in range(count * each)
    ]


def test_the_first_axis_of_a_mesh_joins_slices():
    grid = mesh._over_slices((4, 2), 2, chips_of_slices(2, 4))
    assert [[one.id for one in row] for row in grid] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    grid = mesh._over_slices((2, 4), 2, chips_of_slices(2, 4))
    assert [{one.slice_index for one in row} for row in grid] == [{0}, {1}]


def test_an_axis_that_slices_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="multiple of 2, not 1"):
        mesh._over_slices((1, 8), 2, chips_of_slices(2, 4))


def test_slices_are_counted_of_tpus_only():
    chips = chips_of_slices(2, 4)
    assert mesh._slices(chips) == 0  # cards and CPUs
    for one in chips:
        one.platform = "tpu"
    assert mesh._slices(chips) == 2 and mesh._slices(chips[:4]) == 1
    for one in chips:
        del one.slice_index  # as targets of one slice have it
    assert mesh._slices(chips) == 1
