"""Views and in-place writes alias exactly as on the CPU: random chains, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.compare import assert_same
from torch_jax.memory import geometry, windows

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _dim(draw, t: torch.Tensor) -> int:
    return draw(st.integers(0, t.dim() - 1))


def _narrow(draw, t):
    dim = _dim(draw, t)
    start = draw(st.integers(0, t.shape[dim]))
    length = draw(st.integers(0, t.shape[dim] - start))
    return lambda x: x.narrow(dim, start, length)


def _step(draw, t):
    dim, step = _dim(draw, t), draw(st.integers(1, 3))
    start = draw(st.integers(0, max(t.shape[dim] - 1, 0)))
    return lambda x: x[(slice(None),) * dim + (slice(start, None, step),)]


def _select(draw, t):
    dim = _dim(draw, t)
    if t.shape[dim] == 0:
        return None
    index = draw(st.integers(-t.shape[dim], t.shape[dim] - 1))
    return lambda x: x.select(dim, index)


def _permute(draw, t):
    order = draw(st.permutations(range(t.dim())))
    return lambda x: x.permute(order)


def _unsqueeze(draw, t):
    dim = draw(st.integers(0, t.dim()))
    return lambda x: x.unsqueeze(dim)


def _diagonal(draw, t):
    if t.dim() < 2:
        return None
    a, b = draw(st.permutations(range(t.dim())))[:2]
    offset = draw(st.integers(-2, 2))
    return lambda x: x.diagonal(offset, a, b)


def _unflatten(draw, t):
    dim = _dim(draw, t)
    n = t.shape[dim]
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    if not divisors:
        return None
    d = draw(st.sampled_from(divisors))
    return lambda x: x.unflatten(dim, (d, n // d))


def _view(draw, t):
    shape = draw(st.sampled_from([(-1,), (t.numel(),), (1, -1), (-1, 1)]))
    try:
        t.view(shape)
    except RuntimeError:
        return None
    return lambda x: x.view(shape)


def _chunk(draw, t):
    dim = _dim(draw, t)
    if t.shape[dim] < 2:
        return None
    index = draw(st.integers(0, 1))
    return lambda x: x.chunk(2, dim)[index]


def _expand(draw, t):
    n = draw(st.integers(1, 3))
    return lambda x: x.expand(n, *x.shape)


def _unfold(draw, t):
    dim = _dim(draw, t)
    if t.shape[dim] < 2:
        return None
    size, step = draw(st.integers(1, t.shape[dim])), draw(st.integers(1, 2))
    return lambda x: x.unfold(dim, size, step)


VIEWS = [_narrow, _step, _select, _permute, _unsqueeze, _diagonal, _unflatten, _view, _chunk]
OVERLAPPING = [_expand, _unfold]


@st.composite
def chains(draw, overlapping: bool = False):
    """A base shape and view functions that fit one another, told by running them on meta."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    t = torch.empty(shape, device="meta")
    views = []
    for make in draw(st.lists(st.sampled_from(VIEWS), min_size=1, max_size=5)):
        view = make(draw, t) if t.dim() else None
        if view is not None:
            views.append(view)
            t = view(t)
    if overlapping and t.dim():
        view = draw(st.sampled_from(OVERLAPPING))(draw, t)
        if view is not None:
            views.append(view)
    return shape, views


def _pair(shape, dtype=torch.float32):
    base = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    return base, base.to("jax")


def _same(cpu: torch.Tensor, jax: torch.Tensor) -> None:
    assert (jax.shape, jax.stride(), jax.storage_offset()) == (
        cpu.shape,
        cpu.stride(),
        cpu.storage_offset(),
    )
    assert jax._version == cpu._version
    assert jax._is_view() == cpu._is_view()
    assert torch.equal(jax.cpu(), cpu)


@SETTINGS
@given(chains(overlapping=True))
def test_reading_a_chain_of_views(chain):
    shape, views = chain
    cpu, jax = _pair(shape)
    for view in views:
        cpu, jax = view(cpu), view(jax)
        _same(cpu, jax)


@SETTINGS
@given(chains(), st.data())
@pytest.mark.slow
def test_writing_through_a_chain_of_views(chain, data):
    shape, views = chain
    pairs = [_pair(shape)]
    for view in views:
        pairs.append(tuple(view(t) for t in pairs[-1]))
    for round_ in range(2):  # writes through any link are seen through every other
        cpu, jax = data.draw(st.sampled_from(pairs))
        new = torch.arange(cpu.numel()).reshape(cpu.shape) + 100.0 * (round_ + 1)
        cpu.copy_(new)
        jax.copy_(new.to("jax"))
        for pair in pairs:
            _same(*pair)
        cpu, jax = data.draw(st.sampled_from(pairs))
        cpu.add_(1).mul_(2)
        jax.add_(1).mul_(2)
        for pair in pairs:
            _same(*pair)


@SETTINGS
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(0, 3),
    st.data(),
)
def test_as_strided_reads_any_geometry(size, offset, data):
    stride = data.draw(st.lists(st.integers(0, 6), min_size=len(size), max_size=len(size)))
    cpu, jax = _pair((60,))
    _same(cpu.as_strided(size, stride, offset), jax.as_strided(size, stride, offset))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[1:, 2:],
        lambda x: x[::2, ::3],
        lambda x: x.view(2, 2, 6).transpose(0, 2),
        lambda x: x[:, 1:5].unflatten(1, (2, 2)),
        lambda x: x.diagonal(),
        lambda x: x.expand(3, 4, 6),
        lambda x: x.view(2, 2, 2, 3).permute(3, 1, 0, 2)[1:],
        lambda x: x.unfold(1, 2, 2),
    ],
)
def test_ordinary_views_need_no_gather(make):
    geometry.GATHERS.clear()
    cpu, jax = _pair((4, 6))
    _same(make(cpu), make(jax))
    assert not geometry.GATHERS


@pytest.mark.usefixtures("eager_by_xla")
def test_overlapping_windows_are_gathered_and_counted():
    geometry.GATHERS.clear()
    windows.place.cache_clear()  # a geometry that was met before is counted no more
    cpu, jax = _pair((8,))
    torch.testing.assert_close((jax.unfold(0, 3, 1) + 1).cpu(), cpu.unfold(0, 3, 1) + 1)
    assert sum(geometry.GATHERS.values()) == 1


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint8, torch.float64, torch.int16]
)
def test_dtype_views_share_bytes(dtype):
    cpu, jax = _pair((4, 6))
    _same(cpu.view(dtype), jax.view(dtype))
    cpu.view(dtype)[1:3].fill_(7)
    jax.view(dtype)[1:3].fill_(7)
    _same(cpu, jax)


def test_complex_and_real_views_share_memory():
    cpu, jax = _pair((3, 2), torch.complex64)
    torch.view_as_real(cpu)[1:, :, 1] = 5
    torch.view_as_real(jax)[1:, :, 1] = 5
    _same(cpu, jax)
    real_cpu, real_jax = _pair((3, 4, 2))
    torch.view_as_complex(real_cpu)[0, 1:3] = 1 + 2j
    torch.view_as_complex(real_jax)[0, 1:3] = 1 + 2j
    _same(real_cpu, real_jax)
    cpu.real.add_(1)
    jax.real.add_(1)
    cpu.imag.mul_(3)
    jax.imag.mul_(3)
    _same(cpu, jax)
    assert torch.equal(cpu.conj() + 1, (jax.conj() + 1).cpu())


def test_expanded_tensors_refuse_writes_and_show_those_to_their_base():
    cpu, jax = _pair((3, 1))
    wide_cpu, wide_jax = cpu.expand(3, 4), jax.expand(3, 4)
    cpu[1] = 9
    jax[1] = 9
    _same(wide_cpu, wide_jax)
    for wide in (wide_cpu, wide_jax):
        with pytest.raises(RuntimeError, match="single memory location"):
            wide.add_(1)


def test_set_resize_and_data():
    outcomes = []
    for device in ("cpu", "jax"):
        x = torch.arange(6.0).to(device)
        alias = x.view(2, 3)
        x.resize_(8)
        x[6:] = 1
        x[0] = 42
        y = torch.empty(0, device=device)
        y.set_(x.untyped_storage(), 1, (2, 2), (3, 1))
        y.mul_(2)
        z = torch.zeros(3, device=device)
        z.data = alias[0]
        z += 1
        w = torch.empty(0, device=device).set_(z)
        outcomes.append([t.cpu() for t in (x, alias, y, z, w)])
        assert x.untyped_storage().nbytes() == 32
    for cpu, jax in zip(*outcomes, strict=True):
        assert torch.equal(cpu, jax)


def test_channels_last_is_kept():
    cpu = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    jax = cpu.to("jax")
    _same(cpu, jax)
    assert (jax * 2).stride() == cpu.stride()
    assert jax.contiguous().stride() == (60, 20, 5, 1)
    assert jax.clone().is_contiguous(memory_format=torch.channels_last)
    assert torch.equal((jax + 1).cpu(), cpu + 1)


def test_narrow_and_split_writes():
    cpu, jax = _pair((4, 6))
    for x in (cpu, jax):
        for i, part in enumerate(x.split([1, 2, 3], dim=1)):
            part.fill_(float(i))
        x.narrow(0, 1, 2).narrow(1, 2, 2).zero_()
        x.t()[0].copy_(torch.arange(4.0).to(x.device))
    _same(cpu, jax)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 0), (0, 3), (2, 3)])
def test_storages_change_places_as_on_the_cpu(sizes):
    def swapped(device: str) -> Any:
        one, other = (torch.full((3,), n + 1.0, device=device) for n in range(2))
        storages = one.untyped_storage(), other.untyped_storage()
        for storage, size in zip(storages, sizes, strict=True):
            storage.resize_(size * 4)
        try:
            storages[0]._swap_data_ptr_(storages[1])
        except RuntimeError as error:
            return str(error)
        shown = [t.detach() for t, size in zip((one, other), sizes[::-1], strict=True) if size]
        return [s.nbytes() for s in storages], *shown

    assert_same(swapped("jax"), swapped("cpu"))


def test_addresses_tell_storages_apart():
    x, y = torch.zeros(4, 4, device="jax"), torch.zeros(4, 4, device="jax")
    assert x.data_ptr() not in (0, y.data_ptr())
    assert x[1].data_ptr() == x.data_ptr() + 16
    assert x.view(-1).untyped_storage().data_ptr() == x.data_ptr()
    assert x.untyped_storage().nbytes() == 64
    assert torch.empty(0, device="jax").data_ptr() == 0


@pytest.mark.parametrize(
    "size,stride,offset", [((4,), (2,), 5), ((3, 3), (4, 2), 0), ((1,), (1,), 8)]
)
def test_as_strided_out_of_bounds_raises(size, stride, offset):
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="out of bounds for storage"):
            torch.zeros(8, device=device).as_strided(size, stride, offset)


def test_parts_of_a_split_axis_are_cut_from_its_outer_dim():
    lens = geometry.plan((2, 5, 24), (2, 3, 5, 4), (120, 4, 24, 1), 12)  # the second of two threes
    reshape, cut, order = lens
    assert reshape == geometry.Reshape((2, 5, 6, 4))
    assert cut == geometry.Slice((0, 0, 3, 0), (2, 5, 3, 4), (1, 1, 1, 1))
    assert order == geometry.Permute((0, 2, 1, 3))
