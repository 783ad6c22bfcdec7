"""``torch_jax.metrics`` and ``report``: what recorded execution did, as numbers and as text."""

from __future__ import annotations

import threading

import torch

import torch_jax
from torch_jax.core.traffic import Traffic
from torch_jax.dispatch import cpu


def test_what_is_counted():
    torch_jax.reset_metrics()
    with torch_jax.lazy():
        for _ in range(3):
            x = torch.ones(64, 32).to("jax")
            y = (x * 2 + 1).sum()
            torch_jax.sync()
        assert y.item() == 3 * 64 * 32
    now = torch_jax.metrics()
    assert now["operators"] == 9 and now["graphs"] == 3
    assert now["compiles"] + now["hits"] == 3 and len(now["explanations"]) == now["compiles"]
    assert now["bytes_to_device"] == 3 * 64 * 32 * 4 and now["bytes_to_host"] == 4
    assert now["wait_seconds"] > 0 and (now["compile_seconds"] > 0) == (now["compiles"] > 0)
    assert now["early_syncs"] == {} and now["cpu_fallbacks"] == {}


def test_the_report_shows_what_there_is():
    torch_jax.reset_metrics()
    with torch_jax.lazy():
        x = torch.arange(5.0).to("jax") * 7
        assert x[1].item() == 7
        (x * 2).tolist()
    text = torch_jax.report()
    assert "2 operators recorded, 2 graphs run" in text or "3 operators recorded" in text
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
