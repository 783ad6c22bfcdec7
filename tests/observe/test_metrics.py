"""``torch_jax.metrics`` and ``report``: counts, as numbers and as text."""

from __future__ import annotations

import re
import threading

import jax
import pytest
import torch

import torch_jax
from tests.support import ledger
from torch_jax.core import compilations
from torch_jax.core.costs import Traffic
from torch_jax.dispatch import cpu, ladder


def test_what_is_counted():
    torch_jax.reset_metrics()
    with torch_jax.lazy():
        for _ in range(3):
            x = torch.ones(64, 32).to("jax")
            y = (x * 2 + 1).sum()
            torch_jax.sync()
        assert y.item() == 3 * 64 * 32
    now = torch_jax.metrics()
    assert now["operators"] == now["recorded"] == 9 and now["graphs"] == 3
    assert len(now["explanations"]) + now["hits"] == 3
    assert now["bytes_to_device"] == 3 * 64 * 32 * 4 and now["bytes_to_host"] == 4
    assert now["wait_seconds"] > 0 and now["compiles"] + now["loaded"] >= 3 - now["hits"]
    assert (now["compile_seconds"] > 0) == (now["compiles"] > 0)
    assert (now["load_seconds"] > 0) == (now["loaded"] > 0)
    assert now["early_syncs"] == {} and now["cpu_fallbacks"] == {}


def test_every_call_of_an_eager_operator_is_counted():
    x, y = torch.ones(4, 3).to("jax"), torch.ones(4, 3).to("jax")
    torch_jax.reset_metrics()
    for _ in range(50):
        x + y  # by the short way, from the second call on
        x.neg_()
    ladder.forget_compiled()  # what is dropped has been called
    x + y
    now = torch_jax.metrics()
    assert now["operators"] == 101 and now["recorded"] == now["graphs"] == 0
    assert torch_jax.report().startswith("101 operators, 0 of them recorded; 0 graphs run")


@pytest.mark.usefixtures("eager_by_xla")
def test_what_is_compiled_in_eager_mode_is_counted_and_what_a_user_jits_is_not():
    x = torch.ones(5, 77).to("jax")
    torch_jax.reset_metrics()
    first = ledger.programs()
    x @ x.T
    now = torch_jax.metrics()
    made = now["compiles"] + now["loaded"]
    assert made == ledger.programs() - first > 0 and not now["shared"]
    jax.jit(lambda a: a * 3)(2.0)
    jax.numpy.ones(3) + 1
    after = torch_jax.metrics()
    assert ledger.programs() - first > made == after["compiles"] + after["loaded"]
    assert f"{made} program" in torch_jax.report()


def test_a_new_call_that_needs_no_program_is_counted_as_such():
    torch.ones(3, device="jax")
    with compilations.or_shared():  # nothing happens here
        before = compilations.here()
    assert compilations.here().minus(before) == compilations.Counts(shared=1)
    with pytest.raises(ZeroDivisionError), compilations.or_shared():
        _ = 1 / 0
    assert compilations.here().shared == before.shared + 1


def test_the_report_shows_what_there_is():
    torch_jax.reset_metrics()
    with torch_jax.lazy():
        x = torch.arange(5.0).to("jax") * 7
        assert x[1].item() == 7
        (x * 2).tolist()
    text = torch_jax.report()
    assert re.match(r"([23]) operators, \1 of them recorded; 2 graphs run", text), text
    assert "values looked at before they were computed:" in text
    assert f"1 x {__file__}:" in text and "in test_the_report_shows_what_there_is" in text
    assert "20 B to the device" in text


def test_fallbacks_are_counted_from_a_reset_on(monkeypatch):
    monkeypatch.setattr(cpu, "FALLBACKS", cpu.FALLBACKS.copy())
    monkeypatch.setattr("torch_jax.observe.metrics.FALLBACKS", cpu.FALLBACKS)
    cpu.FALLBACKS["aten.some"] += 2
    torch_jax.reset_metrics()
    assert torch_jax.metrics()["cpu_fallbacks"] == {}
    cpu.FALLBACKS["aten.some"] += 3
    assert torch_jax.metrics()["cpu_fallbacks"] == {"aten.some": 3}
    assert "3 x aten.some" in torch_jax.report()
    torch_jax.reset_metrics()


def test_threads_lose_no_counts():
    traffic = Traffic()

    def work() -> None:
        for _ in range(2000):
            traffic.to_device(1)
            traffic.to_host(2, 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traffic.sums() == (8000, 16000, 4000)
    traffic.clear()
    assert traffic.sums() == (0, 0, 0)
