"""The contents of the memory: as a report, and in errors of no memory."""

from __future__ import annotations

import pytest
import torch

import torch_jax


@pytest.mark.slow
def test_what_fills_the_memory_by_module_and_by_shape():
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40)).to("jax")
    optimizer = torch.optim.Adam(model.parameters())
    kept = [torch.ones(77, 5, device="jax") for _ in range(3)]
    model(torch.ones(2, 30, device="jax")).sum().backward()
    optimizer.step()
    optimizer.state["steps"] = 1  # which some optimizers count for all parameters
    report = torch_jax.memory_report(model, optimizer)
    rows = {row.what: row for row in report.modules}
    assert rows["0"].bytes == rows["0 (gradients)"].bytes == (30 * 40 + 40) * 4
    assert rows["1"].arrays == 5 and rows["Adam (state)"].bytes >= 2 * rows["0"].bytes
    alike = {row.what: row for row in report.others}
    assert alike["float32[77,5]"].arrays == len(kept)
    assert not any(row.what.startswith("float32[40,30]") for row in report.others)
    assert report.bytes == sum(row.bytes for row in (*report.modules, *report.others))
    shown = str(report)
    assert "4.8 KiB       2  0 (gradients)" in shown and "float32[77,5]" in shown
    assert torch_jax.memory_report(top=1).top == 1
    assert "more rows" in str(torch_jax.memory_report(top=1))
    assert "float32[77,5]" in torch.jax.memory_summary()


def test_an_error_of_no_memory_says_what_is_there():
    kept = torch.ones(1 << 17, 3, device="jax")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.zeros(1 << 45, device="jax").sum().item()
    text = str(raised.value)
    assert "out of memory in aten" in text and "float32[131072,3]" in text
    assert "[35184372088832]" not in text.partition("In memory")[2]  # it has no memory
    assert len(text.partition("In memory")[2].splitlines()) <= 13
    assert kept.sum().item() == 3 << 17
