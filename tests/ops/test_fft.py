"""Fourier transforms, all of ``torch.fft``, with every normalization; and stft."""

import pytest
import torch

from tests.support.compare import check, check_raises

NORMS = ("backward", "ortho", "forward")
F = torch.fft
ONE = (F.fft, F.ifft, F.hfft, F.irfft)
REAL_ONE = (F.rfft, F.ihfft)
MANY = (F.fftn, F.ifftn, F.hfftn, F.irfftn)
REAL_MANY = (F.rfftn, F.ihfftn)

# without it, the CPU leaves the results of transforms of several dimensions in other strides
_MKL = torch.backends.mkl.is_available()


def randn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def same(function, x, **options):
    check(function, x, strides=_MKL, **options)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("function", ONE + REAL_ONE, ids=lambda f: f.__name__)
def test_one_dimension(function, norm):
    same(function, randn(3, 8), norm=norm)
    same(function, randn(7, 3), dim=0, norm=norm)
    same(function, randn(3, 8).mT, n=5, norm=norm)
    same(function, randn(3, 5), n=8, norm=norm)
    if function in ONE:
        same(function, randn(3, 6, dtype=torch.complex64), norm=norm)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("function", MANY + REAL_MANY, ids=lambda f: f.__name__)
def test_many_dimensions(function, norm):
    same(function, randn(4, 3, 6), norm=norm)
    same(function, randn(4, 3, 6), dim=(2, 0), norm=norm)
    same(function, randn(4, 3, 6), s=(5, 4), dim=(1, 2), norm=norm)
    same(function, randn(2, 3, 2, 4, 3), norm=norm)
    if function in MANY:
        same(function, randn(4, 3, 6, dtype=torch.complex64), dim=(0, -1), norm=norm)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2"])
def test_two_dimensions(name):
    same(getattr(F, name), randn(2, 4, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool], ids=str)
def test_dtypes(dtype):
    x = (3 * torch.rand(3, 8)).to(dtype)
    for function in ONE + REAL_ONE:
        same(function, x)


def test_all_of_a_real_signal():
    for dims in ([0], [0, 1], [1, 0]):
        for normalization in (0, 1, 2):
            x = randn(4, 6).detach()
            same(lambda x: torch.ops.aten._fft_r2c(x, dims, normalization, False), x)  # noqa: B023


def test_no_signals():
    # MKL refuses these on the CPU
    x = torch.zeros(0, 6, device="jax")
    assert [tuple(f(x).shape) for f in ONE] == [(0, 6), (0, 6), (0, 10), (0, 10)]
    assert [tuple(f(x).shape) for f in REAL_ONE] == [(0, 4), (0, 4)]


def test_shift_and_frequencies():
    check(F.fftshift, randn(4, 5))
    check(F.ifftshift, randn(4, 5), dim=1)
    for function in (F.fftfreq, F.rfftfreq):
        actual = function(7, 0.5, device="jax")
        torch.testing.assert_close(actual.cpu(), function(7, 0.5))


def test_out():
    def into(x):
        out = torch.empty(3, 5, dtype=torch.complex64, device=x.device)
        return F.rfft(x, out=out)

    check(into, randn(3, 8).detach())


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.slow
def test_spectrograms_there_and_back(center):
    window = torch.hann_window(16)
    x = randn(2, 80)

    def spectrogram(x, window):
        return torch.stft(x, 16, hop_length=4, window=window, center=center, return_complex=True)

    same(spectrogram, x, window=window)
    if center:
        back = lambda x, w: torch.istft(spectrogram(x, w), 16, hop_length=4, window=w)  # noqa: E731
        check(back, x, window, strides=False)


@pytest.mark.slow
@pytest.mark.skipif(not _MKL, reason="other builds choose other strides")
def test_strides():
    x = torch.empty_strided((2, 3, 4, 4), (3, 1, 6, 24)).copy_(randn(2, 3, 4, 4).detach())
    for dim in ((0, 1, 2, 3), (2, 0), (3, 2, 1), (1, 3)):
        check(F.fftn, x + 0j, dim=dim)
        check(F.rfftn, x, dim=dim)
        check(F.irfftn, x + 0j, dim=dim)


def test_errors():
    check_raises(F.rfft, randn(3, 4, dtype=torch.complex64))
    check_raises(F.fft, randn(3, 4), n=0)
    check_raises(F.fft, randn(3, 4), dim=2)
    check_raises(F.fft, randn(3, 4), norm="none")
    check_raises(F.fftn, randn(3, 4), dim=(0, 0))
