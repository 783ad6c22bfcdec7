"""``python -m torch_jax doctor``: no finding here, and the right finding for each fault."""

from __future__ import annotations

import json

import pytest
import torch

import torch_jax
from tests.support.processes import output
from torch_jax.core import patching
from torch_jax.doctor import installation, page, patched, running, self_test
from torch_jax.doctor.installation import Item
from torch_jax.observe import cli


def problems(items) -> dict[str, str]:
    return {item.name: item.problem for item in items if item.problem}


@pytest.mark.slow
def test_all_is_well_here(capsys):
    status = cli.main(["doctor", "--json"])
    sections = json.loads(capsys.readouterr().out)
    assert list(sections) == list(page.SECTIONS)
    items = {name: {one["name"]: one["found"] for one in some} for name, some in sections.items()}
    assert items["versions"]["torch"] == torch.__version__
    assert items["device"]["platform"] == torch.jax.get_device_properties().platform
    assert len(items["self-test"]) == 4
    assert all(found.startswith("right") for found in items["self-test"].values())
    wrong = [one for some in sections.values() for one in some if one["problem"]]
    assert status == bool(wrong)
    # what the run of tests itself is told may be wrong for others
    assert {one["name"] for one in wrong} <= {"TORCH_DEVICE_BACKEND_AUTOLOAD", "directory"}


def test_a_part_that_is_wrong_is_told_and_ends_with_1(monkeypatch, capsys):
    monkeypatch.setitem(
        self_test._PARTS, "operators", lambda device: torch.ones(2) * (device == "jax")
    )
    monkeypatch.setattr(page, "SECTIONS", {"self-test": "self_test.self_test", "x": "no.module"})
    assert cli.main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "operators" in told and "WRONG: self-test, operators: AssertionError" in told
    assert "WRONG: x, not examined: ModuleNotFoundError" in told


def test_settings_and_variables(monkeypatch):
    monkeypatch.setenv("TORCH_JAX_MOED", "lazy")
    monkeypatch.setenv("JAX_DEBUG_NANS", "1")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert "no setting" in problems(installation.settings())["TORCH_JAX_MOED"]
    told = problems(installation.environment())
    assert "NaN" in told["JAX_DEBUG_NANS"] and "import" in told["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    before = torch_jax.config.get("cpu_fallback")
    torch_jax.config.set("cpu_fallback", "error")
    try:
        assert Item("cpu_fallback", "'error' (default 'warn')") in list(installation.settings())
    finally:
        torch_jax.config.set("cpu_fallback", before)


def test_versions_and_directories_that_do_not_do(monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "version_of", {"torch": "2.10.1", "jax": "0.10.2"}.get)
    told = problems(installation.versions())
    assert "2.11 or newer" in told["torch"] and told["jaxlib"] == "pip install jaxlib"
    assert "jax" not in told
    shared = tmp_path / "cache"
    shared.mkdir()
    shared.chmod(0o777)
    assert "others may write" in running._objection(shared)


def test_patches_are_told_with_their_states():
    rows = {row.target: row for row in patching.PATCHES.values()}
    assert patched.state(rows["torch.nn.Module._apply"]) == "in place"
    with patching.without("torch.nn.Module._apply"):
        assert patched.state(rows["torch.nn.Module._apply"]) == "no target"
    assert "torch.nn.Module._apply\n  in place; needed; since" in "\n".join(patched.table())


def test_patches_are_listed_in_a_process_that_has_not_used_the_device():
    listed = output("-m", "torch_jax", "doctor", "--patches")
    assert "torch.optim.adam._multi_tensor_adam\n  waits for" in listed


def test_releases_in_which_rows_were_proved_are_those_of_these_tests():
    found = patched.installed()
    assert found.keys() == patched.PROVED_IN.keys()
    for library, version in found.items():
        assert patched.is_proved(library, version), f"{library} {version}: see PROVED_IN"
