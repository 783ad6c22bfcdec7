"""``python -m torch_jax check``: the page, and reports on scripts that do not fit."""

import re
import subprocess
import sys
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest

from torch_jax.observe.checking import hlo, page
from torch_jax.observe.checking.costs import costs, of_libraries
from torch_jax.target import NoCompiler

CHECK = """
import sys, jax
from torch_jax import target
target._topology = lambda chosen: jax.local_devices()[:1]
from torch_jax.observe import cli
sys.exit(cli.main(["check", *sys.argv[1:]]))
"""

TRAIN = """
import sys
import torch, torch_jax
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(1000, 1000).to(device)
optimizer = torch.optim.AdamW(model.parameters())

@torch_jax.jit
def train_step(x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

for i in range(1000):
    loss = train_step(torch.randn(64, 1000).to(device))
    print("step", i, loss.item(), *sys.argv[1:])
raise AssertionError("it was to stop before")
"""


def check(folder, source, *arguments):
    """Run the command on a script; what it printed, its errors, and its exit status."""
    (folder / "script.py").write_text(dedent(source))
    command = [sys.executable, "-c", CHECK, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout, done.stderr, done.returncode


def test_the_page_of_a_training_script(tmp_path):
    """A script for CUDA with arguments of its own, which runs two steps."""
    arguments = (
        "script.py",
        "--target",
        "gpu-h100",
        "--json",
        "page.json",
        "--keep",
        "kept",
        "--mine",
    )
    out, err, status = check(tmp_path, TRAIN, *arguments)
    assert status == 0, err
    head, *lines = out.splitlines()
    assert head == "step 0 0.0 --mine" and lines[0] == "step 1 0.0 --mine"
    assert lines[1] == "script.py on gpu-h100: 1 chip of 80.00 GB"
    assert lines[2].startswith("It fits: ")
    assert any(line.startswith("train_step: ") and "2 runs" in line for line in lines)
    assert any("largest arrays" in line and "MB f32[" in line for line in lines)
    assert any(
        line.startswith("read, and given as 0: a float32[] tensor at ")
        and line.endswith("script.py:20, in <module>")
        for line in lines
    )
    assert any(line.endswith(f"{tmp_path / 'kept'}: 1 programs") for line in lines)
    assert len(list((tmp_path / "kept").glob("*.entry"))) == 1
    assert '"fits": true' in (tmp_path / "page.json").read_text()


def test_a_script_that_needs_values_is_told_the_line(tmp_path):
    source = """
        import torch
        x = torch.ones(4, device="cuda")
        print(x.tolist())
    """
    _, err, status = check(tmp_path, source, "--target", "gpu-h100", "script.py")
    assert status == 1
    assert "DataDependentError: the elements of a float32[4] tensor are asked for" in err
    assert "script.py:4, in <module>)" in err


def test_chips_are_asked_for(capsys):
    from torch_jax.observe import cli

    assert cli.main(["check", __file__]) == 2
    assert "--target names the chips: tpu-v5e-4x4" in capsys.readouterr().err


HLO = """HloModule jit_torch_jax_recorded

FileNames
1 "train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=17 end_line=17 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %main (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  %mm.1 = bf16[1000,8]{1,0:T(8,128)} fusion(%p), metadata={op_name="jit(aten.mm)" stack_frame_id=1}
  %ag = (f32[4,8]{1,0}, f32[16,8]{1,0}, u32[]{:S(2)}) all-gather-start(%p), channel_id=1
  %agd = f32[16,8]{1,0} all-gather-done(%ag)
  ROOT %ar = f32[4,8]{1,0} all-reduce(%p), to_apply=%add
}
"""


LOOP = """HloModule jit_step

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (was: (u32[], f32[8,8])) -> (u32[], f32[8,8]) {
  %was = (u32[], f32[8,8]{1,0}) parameter(0)
  %step = u32[]{:T(128)} constant(2)
  %round = u32[] get-tuple-element(%was), index=0
  %next = u32[] add(%round, %step)
  %x = f32[8,8]{1,0} get-tuple-element(%was), index=1
  %dot = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %all = f32[8,8]{1,0} all-reduce(%dot), channel_id=1, to_apply=%add
  ROOT %is = (u32[], f32[8,8]{1,0}) tuple(%next, %all)
}

%goes_on (now: (u32[], f32[8,8])) -> pred[] {
  %now = (u32[], f32[8,8]{1,0}) parameter(0)
  %count = u32[] get-tuple-element(%now), index=0
  %bound = u32[]{:T(128)} constant(15)
  ROOT %less = pred[] compare(%count, %bound), direction=LT
}

ENTRY %main (p: (u32[], f32[8,8])) -> (u32[], f32[8,8]) {
  %p = (u32[], f32[8,8]{1,0}) parameter(0)
  ROOT %loop = (u32[], f32[8,8]{1,0}) while(%p), condition=%goes_on, body=%body
}
"""


def test_each_round_of_a_loop_counts():
    """A loop as the compiler of TPUs writes it, whose counter grows by two; and one of the CPU."""
    assert hlo.rounds(LOOP)[1] == [hlo.Loop("body", 8, 1)]
    assert costs(LOOP)["flops"] >= 8 * 2 * 8**3
    assert hlo.collectives(LOOP) == {"all-reduce": (8, 8 * 256)}
    assert hlo.largest(LOOP)[0].nbytes == 256

    def inner(x, _):
        return jax.lax.scan(lambda y, _: (jnp.tanh(y @ y), None), x, None, length=5)

    def outer(x):
        return jax.lax.scan(inner, x, None, length=7)[0]

    text = jax.jit(outer).lower(jnp.ones((64, 64))).compile().as_text()
    assert costs(text)["flops"] == pytest.approx(35 * 2 * 64**3, rel=0.05)


def test_rounds_that_depend_on_values_are_said_to_be_counted_once():
    def halve(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    text = jax.jit(halve).lower(jnp.ones(8)).compile().as_text()
    assert [one.rounds for one in hlo.rounds(text)[1]] == [None]
    assert costs(text)["flops"] > 0


LIBRARIES = """
ENTRY %main (x: f32[8,16,16,4], k: f32[6,3,3,4]) -> f32[8,16,16,6] {
  %x = f32[8,16,16,4]{3,2,1,0} parameter(0)
  %k = f32[6,3,3,4]{3,2,1,0} parameter(1)
  %out = (f32[8,16,16,6]{3,2,1,0}, u8[64]{0}) custom-call(%x, %k), Forward
  %of_x = (f32[8,16,16,4]{3,2,1,0}, u8[64]{0}) custom-call(%g, %k), BackwardInput
  %of_k = (f32[6,3,3,4]{3,2,1,0}, u8[64]{0}) custom-call(%x, %g), BackwardFilter
  ROOT %g = f32[8,16,16,6]{3,2,1,0} get-tuple-element(%out), index=0
}"""
CONVOLUTION = r'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv\1"'
LIBRARIES = re.sub(r"(Forward|Backward\w+)", CONVOLUTION, LIBRARIES)
ATTENTION = """
ENTRY %main (q: bf16[2,64,3,8]) -> bf16[2,64,3,8] {
  %q = bf16[2,64,3,8]{3,2,1,0} parameter(0)
  ROOT %out = (bf16[2,64,3,8]{3,2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), KERNEL
}""".replace(
    "KERNEL",
    'custom_call_target="__cudnn$fmhaSoftmax", backend_config={"intermediate_tensor_shape": '
    '{"dimensions": ["2", "3", "64", "64"]}, "bmm1": {"lhs_contracting_dimensions": ["3"]}}',
)


def test_costs_of_libraries():
    convolutions, attention = of_libraries(LIBRARIES), of_libraries(ATTENTION)
    image, kernel, made = 8 * 16 * 16 * 4, 6 * 3 * 3 * 4, 8 * 16 * 16 * 6
    assert convolutions == {
        "flops": 3 * 2 * made * 3 * 3 * 4,
        "bytes accessed": 3 * 4 * (image + kernel + made),
    }
    forward = 2 * (2 * 2 * 3 * 64 * 64 * 8)
    assert attention == {"flops": forward, "bytes accessed": 4 * 2 * (2 * 64 * 3 * 8)}
    backward = of_libraries(ATTENTION.replace("Softmax", "SoftmaxBackward"))
    assert backward["flops"] == 2.5 * forward


def test_collectives_and_largest_arrays_of_a_program():
    assert hlo.collectives(HLO) == {"all-gather": (1, 512), "all-reduce": (1, 128)}
    first, *_ = hlo.largest(HLO)
    assert first == hlo.Array(16000, "bf16[1000,8]", "aten.mm", "train.py:17")


def test_results_of_collectives_that_start_are_counted_without_what_they_give_back():
    text = """
ENTRY %main () -> f32[8] {
  %p = (f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%a), channel_id=1
  %g = ((f32[8]{0}, f32[4]{0}), (f32[16]{0}, f32[8]{0})) all-gather-start(%b, %c), channel_id=2
  %r = (f32[8]{0}, f32[4]{0}) all-reduce-start(%d, %e), channel_id=3
}
"""
    wanted = {"collective-permute": (1, 32), "all-gather": (1, 96), "all-reduce": (1, 48)}
    assert hlo.collectives(text) == wanted


OUT_OF_MEMORY = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in \
memory space hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="jit(torch_jax_recorded)/jit(aten._softmax)/exp"
     Shape: f32[128,2048,4096]{2,1,0:T(8,128)}
"""


class Fails:
    """A program that its compiler refuses."""

    name, line, operators, calls = "step", "train.py:3, in step", 7, 2

    def __init__(self, text):
        self._text = text

    @property
    def compiled(self):
        """Raise what XLA raises."""
        raise RuntimeError(self._text)


def test_a_program_that_needs_more_than_there_is():
    told = page._measured(Fails(OUT_OF_MEMORY), page.CHIPS["v5e"])
    assert told["needs"] == pytest.approx(20.5 * 2**30)
    (cause,) = told["causes"]
    assert cause.startswith("4.00G f32[128,2048,4096]") and "aten._softmax" in cause
    assert any("Ran out of memory" in line for line in page._of_program(told))


def test_a_program_that_does_not_compile():
    told = page._measured(Fails("UNIMPLEMENTED: eig on TPU\nmore"), page.CHIPS["v5e"])
    assert (told["error"], told["needs"]) == ("UNIMPLEMENTED: eig on TPU", 0)


def test_errors_are_of_one_kind():
    assert issubclass(NoCompiler, RuntimeError)
