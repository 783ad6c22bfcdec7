"""Composites that raise or warn by a truth value: recorded, they look at none."""

from __future__ import annotations

import pytest
import torch

import torch_jax
from tests.support.lazily import counted

WINDOW = torch.hann_window(8)
SPECTRA = torch.stft(torch.arange(40.0).cos(), 8, 4, window=WINDOW, return_complex=True)


def inverse(spectra, window):
    return torch.istft(spectra + 0, 8, 4, window=window)


def covariances(spectra, window):
    rows = spectra.abs()
    return rows.cov(), rows.corrcoef(), window.cov(correction=0)


def loss(spectra, window):
    return torch.nn.functional.gaussian_nll_loss(2 * window, window, window.square())


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("function", [inverse, covariances, loss])
def test_no_value_is_looked_at(function, is_pure):
    run = torch_jax.jit(function, pure=is_pure)
    for _ in range(3):
        with counted() as did:
            found = run(SPECTRA.to("jax"), WINDOW.to("jax"))
        torch.testing.assert_close(found, function(SPECTRA, WINDOW), check_device=False)
        assert did.graphs <= 1 and did.early == 0


@pytest.mark.parametrize("is_pure", [False, True])
def test_a_window_with_gaps_raises_when_the_recording_has_run(is_pure):
    run = torch_jax.jit(inverse, pure=is_pure)
    for window in (WINDOW, WINDOW, 0 * WINDOW):
        if window.any():
            run(SPECTRA.to("jax"), window.to("jax"))
        else:
            with pytest.raises(RuntimeError, match=r"istft\(.*window overlap add min: 1"):
                run(SPECTRA.to("jax"), window.to("jax"))


@pytest.mark.parametrize("is_pure", [False, True])
def test_negative_variances_raise(is_pure):
    run = torch_jax.jit(torch.nn.GaussianNLLLoss(), pure=is_pure)
    one = torch.ones(3, device="jax")
    assert run(one, one, one) == 0.0
    with pytest.raises(ValueError, match="var has negative entry/entries"):
        run(one, one, -one)


def test_hooks_see_what_they_ask_for():
    seen, one = [], torch.ones(3, device="jax", requires_grad=True)

    def pack(saved):
        seen.append(bool((saved > 0).any()))
        return saved

    with torch_jax.lazy(), torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        torch.nn.functional.gaussian_nll_loss(one, one, one)
    assert any(seen)


def test_one_observation_warns():
    for device in ("cpu", "jax"):
        with torch_jax.lazy(), pytest.warns(UserWarning, match="degrees of freedom is <= 0"):
            found = torch.ones(3, 1, device=device).cov()
        assert found.isnan().all()


def test_questions_of_the_user_have_their_answer():
    true = torch.ones((), dtype=torch.bool, device="jax")
    with torch_jax.lazy():
        assert torch.equal(true & True, true)
        assert not torch.equal(true & False, true)
