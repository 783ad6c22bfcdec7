"""``torch_jax.plan`` against what XLA says of the partitioned programs, and its command line."""

from __future__ import annotations

import argparse
import json
from collections import Counter

import pytest

import torch_jax
from tests.support import processes
from torch_jax.observe import cli
from torch_jax.observe.planning import page, sizes
from torch_jax.observe.planning import plan as planning

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
BATCH = {"batch": 16, "length": 128}


def case(mesh: dict[str, int], remat: str, scan: bool) -> dict:
    return {"config": SMALL, "mesh": mesh, "remat": remat, "scan": scan, **BATCH}


QUICK = [
    case({"fsdp": 4, "tensor": 2}, "layer", True),
    case({"data": 2, "fsdp": 4}, "none", False),
]
MESHES = (
    {"fsdp": 4, "tensor": 2},
    {"data": 2, "fsdp": 4},
    {"data": 2, "tensor": 4},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"data": 8},
)
SLOW = [
    *(case(mesh, remat, True) for mesh in MESHES for remat in ("dots", "layer")),
    *(case(MESHES[0], remat, False) for remat in planning.REMAT),
]


def agrees(cases: list[dict]) -> None:
    """What is planned for the cases is what XLA says of them, with 8 devices."""
    said = processes.output("-m", "tests.support.planned_step", "8", json.dumps(cases))
    for one, found in zip(cases, json.loads(said.splitlines()[-1]), strict=True):
        planned = torch_jax.plan(**one, dtype="f32", flash=False)
        check_memory(planned, found, one)
        check_collectives(planned, found, one)
        if not one["scan"]:  # XLA counts one round of a loop
            assert planned.flops == pytest.approx(found["flops"], rel=0.02), one


def check_memory(planned: planning.Plan, found: dict, one: dict) -> None:
    kept = planned.memory["parameters"] + planned.memory["optimizer"]
    assert kept == pytest.approx(found["arguments"], rel=0.001), one
    if one["scan"] and one["remat"] != "none":  # in other programs XLA's CPU keeps more
        assert planned.total - kept == pytest.approx(found["temporaries"], rel=0.15), one


def check_collectives(planned: planning.Plan, found: dict, one: dict) -> None:
    """XLA's CPU has no reduce-scatter: it reduces all of a gradient, of which each keeps a part."""
    expected: Counter[str] = Counter()
    for each in planned.collectives:
        expected[each.kind.replace("reduce-scatter", "all-reduce")] += each.bytes
    actual: Counter[str] = Counter()
    for kind, _, size in found["collectives"]:
        actual[kind] += size
    assert set(expected) == set(actual), one
    assert expected["all-reduce"] == pytest.approx(actual["all-reduce"], rel=0.02), one
    if len(one["mesh"]) < 3:  # over three axes, a weight is gathered once more than it need be
        assert expected["all-gather"] == actual["all-gather"], one
    else:
        most = 1.4 * expected["all-gather"]
        assert expected["all-gather"] <= actual["all-gather"] <= most, one


@pytest.mark.slow
def test_plans_agree_with_partitioned_programs():
    agrees(QUICK)


@pytest.mark.slow
def test_more_plans_agree_with_partitioned_programs():
    agrees(SLOW)


def plan(config="llama-3-8b", mesh=None, batch=8, **options):
    return torch_jax.plan(config, mesh or {"fsdp": 8}, batch=batch, **options)


@pytest.mark.parametrize("name, count", [("llama-3-8b", 8030261248), ("llama-3-70b", 70553706496)])
def test_parameters_are_those_that_are_published(name, count):
    assert sizes.model(name).parameters == count


def test_a_config_is_a_file_or_a_dict(tmp_path):
    config = sizes.MODELS["llama-3-8b"] | {"rope_theta": 5e5, "tie_word_embeddings": None}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert plan(str(file)) == plan(config) == plan()
    tied = plan(config | {"tie_word_embeddings": True})
    assert plan().parameters - tied.parameters == 128256 * 4096
    with pytest.raises(ValueError, match="intermediate_size"):
        plan({"hidden_size": 8})
    with pytest.raises(ValueError, match="neither one of llama-3-8b"):
        plan("no-such-model")


def test_what_makes_a_step_leaner():
    memory = plan(remat="none").memory
    for remat in ("dots", "layer"):
        less = plan(remat=remat).memory
        assert less["activations"] < memory["activations"]
        memory = less
    assert plan(batch=16, accumulate=2).memory["logits"] == plan(batch=8).memory["logits"]
    whole = plan(mesh={"fsdp": 4, "tensor": 2})
    split = plan(mesh={"fsdp": 4, "tensor": 2}, split_length=True)
    assert split.memory["activations"] == whole.memory["activations"] // 2
    assert plan(dtype="bf16-only").memory["optimizer"] == plan().memory["optimizer"] // 3


def test_links_within_islands_and_networks_between_them():
    chip = "h100,island=8,link=4e11,network=5e10"

    def seconds(mesh: dict, axis: str) -> float:
        found = torch_jax.plan("llama-3-70b", mesh, batch=64, chip=chip)
        (one,) = (c for c in found.collectives if (c.kind, c.axis) == ("all-gather", axis))
        return one.seconds / one.bytes

    assert seconds({"fsdp": 8}, "fsdp") == pytest.approx(7 / 8 / 4e11)
    # eight chips of an island share what comes from the others; alone in its island, none does
    assert seconds({"fsdp": 64}, "fsdp") == pytest.approx((1 - 8 / 64) / 8 / 5e10)
    assert seconds({"fsdp": 8, "tensor": 8}, "fsdp") == pytest.approx(7 / 8 / 5e10)


def test_what_does_not_fit_says_what_would():
    found = plan("llama-3-70b", batch=8, chip="v5e", remat="none")
    assert not found.fits and found.advice
    check_advice(found, "--config llama-3-70b --length 8192 --chip v5e", "fsdp=8", 8)


def check_advice(found: planning.Plan, options: str, mesh: str, batch: int) -> None:
    """Each of what is advised fits, by the command itself."""
    for advice in found.advice:
        given = f"{options} --mesh {mesh} --batch {batch} {advice}".split()
        parser = argparse.ArgumentParser()
        page.add_arguments(parser)
        assert page.planned(parser.parse_args(given)).fits, advice


def test_advice_is_about_the_chips_that_are_there():
    found = plan("llama-3-405b", {"fsdp": 128}, batch=128, chip="v5p")
    traded, shorter = found.advice
    assert traded == "--mesh fsdp=64,tensor=2 --split-length --accumulate 2"
    assert shorter == "--length 4096"
    check_advice(found, "--config llama-3-405b --chip v5p", "fsdp=128", 128)
    more = plan("llama-3-405b", {"fsdp": 8}, batch=8).advice
    assert more and all("--batch" in one for one in more)


@pytest.mark.parametrize(
    "config, words",
    [
        (
            {"model_type": "mixtral", "num_local_experts": 8},
            "mixtral is a mixture of experts .num_",
        ),
        ({"model_type": "bert"}, "model_type 'bert' is none of llama"),
        ({"num_attention_heads": 0}, "num_attention_heads of the config is a whole number from 1"),
    ],
)
def test_other_models_are_refused(config, words):
    assert plan(SMALL | {"model_type": "qwen2"}, batch=8) == plan(SMALL, batch=8)
    with pytest.raises(ValueError, match=words):
        plan(SMALL | config)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": -8},
        {"length": 0},
        {"accumulate": -1},
        {"accumulate": 0},
        {"efficiency": 3},
        {"efficiency": 0},
        {"efficiency": float("nan")},
        {"batch": 2**40},
        {"chip": 5},
        {"chip": "h100,flops=abc"},
        {"chip": "h100,island=0.5"},
        {"mesh": {"fsdp": -1}},
        {"mesh": {"fsdp": 2.0}},
        {"mesh": {"fsdp": 2**22}, "batch": 2**22},
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(options):
    with pytest.raises(ValueError, match=f"\\(--{next(iter(options))}\\)"):
        plan(**options)


def test_what_cannot_be_split_is_an_error():
    with pytest.raises(ValueError, match="batch 7 is not a multiple of data.*= 8.*; num_att"):
        plan(mesh={"fsdp": 8, "tensor": 3}, batch=7)
    with pytest.raises(ValueError, match="a mesh has the axes"):
        plan(mesh={"rows": 8})
    with pytest.raises(ValueError, match="remat"):
        plan(remat="some")
    with pytest.raises(ValueError, match="a chip is one of"):
        plan(chip="h100,network=0")


def command(*arguments: str) -> int:
    return cli.main(["plan", "--config", "llama-3-8b", "--batch", "16", *arguments])


def test_the_command(capsys):
    assert command("--mesh", "rows=4,model=2", "--fsdp", "rows", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chips"] == 8 and {c["axis"] for c in found["collectives"]} == {"fsdp", "tensor"}
    assert command("--mesh", "tensor=1", "--chip", "v5e") == 0
    said = capsys.readouterr().out
    assert "none\n" in said and "It does not fit" in said
    assert command("--mesh", "rows=4") == 1
    assert "'rows=4' is none of data=, fsdp=, tensor=" in capsys.readouterr().err
    assert command("--mesh", "fsdp=-1") == 1
    assert "length of axis fsdp is a whole number from 1, not '-1'" in capsys.readouterr().err
    assert command("--mesh", "tensor=2,model=2") == 1 and "twice" in capsys.readouterr().err
