"""``python -m torch_jax ops``: the rung of an operator, and the operators that a call runs."""

import subprocess
import sys

import pytest

from torch_jax.observe import cli, operators


def answer(capsys, *arguments):
    assert cli.main(["ops", *arguments]) == 0
    return capsys.readouterr().out


def test_the_list_has_every_operator_with_its_rung(capsys):
    said = answer(capsys).splitlines()
    lines = [line.split() for line in said if not line.startswith("#")]
    legend = {line.split()[1] for line in said if line.startswith("#   ")}
    assert legend == set(operators.RUNGS)
    rungs = {line[0]: line[1] for line in lines}
    assert len(rungs) > 2500
    assert set(rungs.values()) <= set(operators.RUNGS)
    assert rungs["aten.relu.default"] == "table"
    assert rungs["aten.relu_.default"] == "variant"
    assert rungs["aten.dropout.default"] == "composite"
    assert rungs["aten.copy_.default"] == "kernel"
    assert rungs["aten.permute.default"] == "view"


def test_dropout_in_training_and_in_inference(capsys):
    x = "torch.ones(3, device='jax', requires_grad=True)"
    training = answer(capsys, "--call", f"F.dropout({x}, training=True)")
    assert "aten.native_dropout.default" in training
    assert "aten.native_dropout_backward.default" in training
    assert "torch_jax/ops/dropout.py" in training
    assert "dropout." not in answer(capsys, "--call", f"F.dropout({x}, training=False)")


def test_a_call_of_ones_own_with_its_gradient(capsys):
    text = answer(capsys, "--call", "F.silu(torch.ones(3, device='jax', requires_grad=True))")
    forward, backward = text.split("backward:")
    assert "aten.silu.default" in forward
    assert "aten.silu_backward.default" in backward


def test_an_operator_without_a_derivative_says_so(capsys):
    x = "torch.ones(3, device='jax', requires_grad=True)"
    call = f"torch.ops.aten.silu_backward({x}, {x})"
    assert "is not implemented" in answer(capsys, "--call", call)


def test_an_unknown_operator_is_an_error(capsys):
    assert cli.main(["ops", "no_such_operator"]) == 1
    assert "no operator aten.no_such_operator" in capsys.readouterr().err


@pytest.mark.slow
def test_the_list_may_be_cut_short():
    command = f"{sys.executable} -m torch_jax ops | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("# rungs") and not done.stderr


def test_a_family_alone(capsys):
    lines = [line for line in answer(capsys, "--family", "ctc").splitlines() if line[0] != "#"]
    assert len(lines) > 4 and all("torch_jax/ops/ctc.py" in line for line in lines)
    assert cli.main(["ops", "--family", "nope"]) == 1
    assert "no family 'nope': they are activation, " in capsys.readouterr().err


def test_no_command_is_help(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert all(row.help in text for row in cli.COMMANDS.values())
