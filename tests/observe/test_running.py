"""Scripts written for CUDA, unmodified: they print the same as on the CPU."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import sys
import warnings
from pathlib import Path

import jax
import pytest
import torch

import torch_jax
from tests.support.processes import forked, run
from tests.support.ranks import printed_over_gloo
from torch_jax.core.compilations import NOTHING, Counts
from torch_jax.observe import cli
from torch_jax.observe.running import costs, page, script

SCRIPTS = Path(__file__).parent / "cuda_scripts"
ALONE = ("ddp", "whole")  # programs of several processes
QUICK = ("checkpoints", "data_parallel", "graphs", "memory", "old_tensors", "prefetcher", "seeds")
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ALONE)
env = torch_jax.default_env()


@pytest.fixture
def as_a_program(monkeypatch):
    """What a script changes of the interpreter is taken back."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    gc.collect()  # what earlier tests have left does not go while memory is counted
    # the flags are frozen where torch.testing._internal was imported
    flags = torch.backends.__allow_nonbracketed_mutation()
    with torch.random.fork_rng(device_type="jax"), warnings.catch_warnings(), flags:
        warnings.simplefilter("ignore")
        yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def redirected():
    """As ``python -m torch_jax run`` has it."""
    for name, value in {"redirect_cuda": True, "redirect_default": False}.items():
        torch_jax.config.set(name, value)
    env.enable_globally()
    try:
        yield
    finally:
        env.disable_globally()
        torch_jax.config.set("redirect_cuda", False)
        torch_jax.config.set("redirect_default", True)


def printed(name: str, *arguments: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert script.run([str(SCRIPTS / f"{name}.py"), *arguments], False) == 0
    return text.getvalue()


def assert_agree(actual: str, expected: str) -> None:
    """The same words, and numbers within two units of the last digit that is printed.

    XLA adds in another order than PyTorch; in ``amp.py``, whose numbers have two digits, operators
    round to bfloat16 here, and not on the CPU.
    """
    ours, theirs = actual.split(), expected.split()
    assert len(ours) == len(theirs) > 0, (actual, expected)
    for mine, other in zip(ours, theirs, strict=True):
        if re.fullmatch(r"-?\d+\.\d+", other):
            digits = len(other.partition(".")[2])
            assert float(mine) == pytest.approx(float(other), abs=2 * 10**-digits), (mine, other)
        else:
            assert mine == other, (actual, expected)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there, and would be used")
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_a_script_prints_what_it_prints_on_the_cpu(name, as_a_program):
    expected = printed(name)
    with redirected():
        actual = printed(name)
    assert_agree(actual, expected)


@pytest.mark.slow
def test_a_program_and_its_report(tmp_path):
    """Arguments, children, workers, the traceback, the status, and the lines worth changing."""
    file, report = SCRIPTS / "whole.py", tmp_path / "report.json"
    options = ("--report", str(report), str(file), "--epochs", "3", "-m")
    done = run(
        "-m",
        "torch_jax",
        "run",
        *options,
        TORCH_JAX_CPU_FALLBACK="silent",
        TORCH_JAX_EAGER_ON_CPU="xla",
    )
    assert done.returncode == 1, done.stderr
    lines = ["['--epochs', '3', '-m'] __main__ True", "child 6.0", "True", "True"]
    assert done.stdout.splitlines() == lines, done.stderr
    trace, _, text = done.stderr.partition("torch_jax: ")
    assert re.findall(r'File "(.*?)"', trace[trace.index("Traceback") :]) == [str(file)] * 2
    assert trace.rstrip().endswith("ValueError: at the end") and "deadlock" not in trace
    told = json.loads(report.read_text())
    assert told["status"] == 1 and told["processes"] == 2
    assert told["compiles"] + told["loaded"] + told["shared"] >= 11
    assert told["waits"] >= 40 and told["cpu_fallbacks"]
    found = {line["source"]: line for line in told["lines"]}
    assert 2 <= len(told["lines"]) <= 5 and all(one["file"] == str(file) for one in told["lines"])
    assert len({line["instead"] for line in told["lines"]}) == len(told["lines"])
    assert "worth changing" in text and "ended with status 1" in text
    for source, cost in (
        ('torch.ones(n, device="cuda").mul_(2)  # a new shape each time', "for other shapes"),
        ("draw(torch.ones(3, requires_grad=True).cuda()).sum().backward()", "_dirichlet_grad"),
    ):
        assert cost in found[source]["cost"] and source in text


@pytest.mark.slow
def test_processes_of_torchrun(tmp_path):
    """A script for nccl, in two processes, each under ``run``; and gloo's numbers."""
    launch = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    script_ = str(SCRIPTS / "ddp.py")
    expected = printed_over_gloo(script_).splitlines()[-1]
    done = forked(*launch, "-m", "torch_jax", "run", "--report", str(tmp_path / "r.json"), script_)
    assert done.returncode == 0, done.stderr
    assert_agree(done.stdout.splitlines()[-1], expected)
    assert done.stderr.count("torch_jax: ") == 1  # of rank 0
    both = [json.loads((tmp_path / name).read_text()) for name in ("r.json", "r.1.json")]
    assert all(told["device"] and told["compiles"] + told["loaded"] for told in both)


@pytest.mark.slow
def test_the_end_of_a_script(tmp_path, as_a_program, capsys):
    """As Python ends: statuses, messages, tracebacks without the frames of who ran it."""
    file = tmp_path / "ends.py"
    for text, status, said in (
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("1 / 0", 1, f'Traceback (most recent call last):\n  File "{file}", line 1, in <module>'),
        ("def f(:", 1, f'  File "{file}", line 1\n'),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))", 0, ""),
    ):
        file.write_text(text)
        assert script.run([str(file)], False) == status, text
        err = capsys.readouterr().err
        assert err.startswith(said) or err.endswith(said), (text, err)
        assert "script.py" not in err.replace(str(file), "")
    package = tmp_path / "package_of_ends"
    package.mkdir()
    (package / "__main__.py").write_text("import sys; print(sys.argv[1:], __spec__ is not None)")
    sys.path.insert(0, str(tmp_path))
    assert script.run(["package_of_ends", "--lr", "3"], True) == 0
    assert script.run([str(package), "a"], False) == 0
    assert capsys.readouterr().out.splitlines() == ["['--lr', '3'] True", "['a'] True"]


@pytest.mark.parametrize("name", ["run", "profile"])
def test_a_script_that_is_not_there(name, tmp_path, capsys):
    file = str(tmp_path / "none.py")
    assert cli.main([name, file]) == 2
    assert capsys.readouterr() == ("", f"can't open file {file!r}: no such file\n")


@pytest.mark.usefixtures("eager_by_xla")
def test_a_call_of_a_line_is_one_visit(monkeypatch):
    """The first step of an optimizer compiles for each parameter, in one call of its line."""
    monkeypatch.setattr(costs, "_costs", None)
    monkeypatch.setattr(costs.costs, "listener", None)
    weights = [torch.ones(3, n + 1).to("jax").requires_grad_() for n in range(40, 50)]
    for weight in weights:
        weight.grad = torch.ones(3, weight.shape[1]).to("jax")
    optimizer = torch.optim.Adam(weights, foreach=False)
    costs.listen()
    optimizer.step()
    for n in range(40, 50):
        torch.full((n,), 2.0, device="jax")
    costs.stop()
    step, full = (row for row in costs.measured()["rows"] if row["kind"] == "compile")
    assert max(step["what"].values()) >= 10 and step["visits"] == 1
    assert full["what"] == {"aten::full": 10} and full["visits"] == 10


@pytest.mark.usefixtures("eager_by_xla")
def test_the_report_counts_what_xla_did(monkeypatch):
    monkeypatch.setattr(costs, "_costs", None)
    monkeypatch.setattr(costs.costs, "listener", None)
    x = torch.ones(3, 59).to("jax")
    costs.listen()
    for _ in range(5):
        x @ x.T
    jax.jit(lambda a: a + 1)(1.0)  # another's
    x.T @ x
    costs.stop()
    told = page.summary(costs.together([costs.measured()]), "train.py", 1.0, 0)
    assert told["compiles"] + told["loaded"] == 2 and told["operators"] >= 1
    assert (told["compile_seconds"] > 0) == (told["compiles"] > 0)
    rows = {row["line"]: row for row in told["rows"] if row["kind"] == "compile"}
    assert {row["file"] for row in rows.values()} == {__file__} and len(rows) == 2
    assert all(
        row["seconds"] > row["compile_seconds"] + row["load_seconds"] for row in rows.values()
    )


def test_what_the_report_says_of_lines():
    def row(kind: str, line: int, count: int, seconds: float, visits: int = 0, **what: int) -> dict:
        at = {"kind": kind, "file": __file__, "line": line, "function": "f", "bytes": 8}
        programs = Counts(count, seconds) if kind == "compile" else NOTHING
        numbers = {"count": count, "visits": visits, "seconds": seconds}
        return at | numbers | {"what": what} | programs._asdict()

    rows = [
        row("to_host", 1, 3, 9.0),  # now and then
        row("to_device", 2, 500, 0.0),
        row("to_host", 3, 500, 0.5),
        row("compile", 4, 30, 2.0, 30, **{"aten::mul": 30}),
        row("compile", 5, 4, 1.0, 1, **{"aten::mul": 1, "aten::add": 2, "aten::sum": 1}),
        row("fallback", 6, 2, 0.2, **{"aten.lstsq.default": 2}),
        row("to_host", 7, 20, 0.1),  # as line 3
        row("check", 8, 20, 0.1, **{"aten::nll_loss_forward": 20}),
        row("compile", 9, 20, 5.0, 1, **{"aten::zeros_like": 20}),  # a first step of an optimizer
        row("compile", 10, 9, 5.0, 2, **{"aten::uniform_": 4, "aten::fill_": 5}),  # a model is made
        row("compile", 11, 1, 5.0, 1, step=1),  # a program as a whole
    ]
    found = {"rows": rows, "device": "cpu", "processes": 1, "peak_bytes": 3 << 20}
    found["operators"] = ["aten::add", "aten::mul"]
    told = page.summary(found, "train.py", 10.0, 0)
    assert [line["line"] for line in told["lines"]] == [4, 5, 3, 6, 8]
    assert told["lines"][2]["also"] == [f"{os.path.relpath(__file__)}:7"]
    assert told["operators"] == 2 and told["loaded"] == told["shared"] == 0
    assert told["waits"] == 523 and told["bytes_to_device"] == 8 and told["compiles"] == 64
    text = page.text(told)
    for part in (
        "64 programs in 18.00 s (180 %",
        "checked       20 times",
        "CHECK_INDICES=never",
        "other shapes or numbers of aten::mul",
        "drop_last",
    ):
        assert part in text
    for part in ("waited 500 times", "register_op", "3.0 MiB of memory", "1 operators in 0.2 s"):
        assert part in text
