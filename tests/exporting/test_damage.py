"""Damaged or foreign files: one kind of error for all of them."""

import io
import json
import os
import zipfile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_jax
from torch_jax.exporting import exported_file
from torch_jax.exporting.exported_file import HEADER, load

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def whole():
    model = torch.nn.Linear(2, 3, device="jax")
    return torch_jax.export(model, (torch.ones(1, 2, device="jax"),)).serialize()


def changed(
    whole: bytes, changes: dict[str, bytes], compression: int = zipfile.ZIP_STORED
) -> bytes:
    """The file with other entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(file, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, changes.get(name, old.read(name)))
    return file.getvalue()


def with_header(whole: bytes, **changes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        header = json.loads(archive.read(HEADER))
    return changed(whole, {HEADER: json.dumps(header | changes).encode()})


def refused(file) -> bool:
    try:
        load(file)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("version", ["1", True, 1.5, None, [1], 0, -1, 2])
def test_a_version_is_a_number_that_is_known(whole, version):
    assert not refused(with_header(whole))
    assert refused(with_header(whole, version=version))


def test_a_header_has_a_size(whole, monkeypatch):
    monkeypatch.setattr(exported_file, "_MOST_OF_HEADER", 5000)
    assert not refused(with_header(whole))
    assert refused(with_header(whole, made_by="x" * 6000))


def test_nothing_is_compressed(whole):
    assert refused(changed(whole, {}, zipfile.ZIP_DEFLATED))


def test_weights_beside_are_a_file_of_their_own(tmp_path):
    model = torch.nn.Linear(2, 3, device="jax")
    exported = torch_jax.export(model, (torch.ones(1, 2, device="jax"),))
    exported.save(tmp_path / "model", weights="beside")
    beside, elsewhere = tmp_path / "model.safetensors", tmp_path / "secret"
    assert not refused(tmp_path / "model")
    beside.rename(elsewhere)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "model")
    os.symlink(elsewhere, beside)
    assert refused(tmp_path / "model")
    beside.unlink()
    beside.mkdir()
    assert refused(tmp_path / "model")


ANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@ANY
@given(key=st.sampled_from(["format", "version", "weights", "static", "sizes"]), value=JSON)
def test_any_header(whole, key, value):
    file = with_header(whole, **{key: value})
    same = key == "version" and type(value) is int and value == 1
    empty = key in ("static", "sizes") and value == {} or key == "weights" and value is None
    if key != "static" or not isinstance(value, dict):  # what a file fixes may be anything
        ranges = key == "sizes" and exported_file._are_ranges(value)
        assert refused(file) != (same or empty or ranges)


@ANY
@given(st.data())
def test_any_weights(whole, data):
    entry = {"dtype": data.draw(JSON), "shape": data.draw(JSON), "data_offsets": data.draw(JSON)}
    text = json.dumps(data.draw(st.sampled_from([entry, {"weight": entry}, [entry]]))).encode()
    weights = len(text).to_bytes(8, "little") + text
    assert refused(changed(whole, {exported_file.WEIGHTS: weights}))


@ANY
@given(at=st.floats(0, 1, exclude_max=True), count=st.integers(1, 40), other=st.binary(max_size=40))
def test_any_damage(whole, at, count, other):
    first = int(at * len(whole))
    # some bytes mean nothing; but no other error, and no crash
    refused(whole[:first] + other + whole[first + count :])
