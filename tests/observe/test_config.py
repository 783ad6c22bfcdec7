"""Settings: their values, their sources, and their effects."""

from __future__ import annotations

import logging

import pytest
import torch

import torch_jax
from torch_jax import config, target
from torch_jax.core import policies


@pytest.fixture
def settings():
    """Settings that are put back."""
    before = {name: config.get(name) for name in config.SETTINGS}
    yield config
    for name, value in before.items():
        if config.get(name) != value:
            config.set(name, value)


@pytest.mark.parametrize("name", config.SETTINGS)
def test_every_setting_has_a_default_it_may_take_and_help(name):
    setting = config.SETTINGS[name]
    assert not setting.choices or setting.default in setting.choices
    assert setting.help.endswith(".")
    assert setting.parse(str(setting.default)) == setting.default


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("0", False), ("", False)]
)
def test_environment_variables(monkeypatch, text, value):
    monkeypatch.setenv("TORCH_JAX_REDIRECT_CUDA", text)
    assert config.from_environment("redirect_cuda") is value


@pytest.mark.parametrize(("name", "text"), [("cache_megabytes", "abc"), ("redirect_cuda", "maybe")])
def test_a_variable_that_cannot_be_read_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"TORCH_JAX_{name.upper()}", text)
    with pytest.raises(ValueError, match=f"TORCH_JAX_{name.upper()} is '{text}', which is no"):
        config.from_environment(name)


def test_an_empty_variable_is_the_default(monkeypatch):
    monkeypatch.setenv("TORCH_JAX_CACHE_DIR", "")
    assert config.from_environment("cache_dir") == "auto"


@pytest.mark.usefixtures("eager_by_xla")
def test_what_is_compiled_is_told(settings, caplog):
    settings.set("log", "info")

    @torch_jax.jit(pure=True)
    def doubled(x):
        return x * 2

    with caplog.at_level(logging.INFO, "torch_jax"):
        torch.ones(3, 7, device="jax").erfc()
        doubled(torch.ones(2, device="jax"))
        doubled(torch.ones(3, device="jax"))
    told = "\n".join(caplog.messages)
    assert "compiling aten.erfc.default(float32[3,7]@jax:0)" in told
    assert "test_config.py" in told
    assert "doubled in" in told
    assert "its first call" in told
    assert "argument 0 was float32[2], now it is float32[3]" in told
    caplog.clear()
    torch.ones(3, 7, device="jax").erfc()
    assert not caplog.messages


@pytest.fixture
def accelerator(monkeypatch):
    """JAX's CPU taken for an accelerator."""
    monkeypatch.setattr(target, "platform", lambda: "gpu")


DOUBLES = {
    "factory": lambda: torch.ones(2, device="jax", dtype=torch.float64),
    "copy": lambda: torch.ones(2, dtype=torch.float64).to("jax"),
    "cast": lambda: torch.ones(2, device="jax").double(),
    "promotion": lambda: torch.ones(2, device="jax", dtype=torch.int64).sum(dtype=torch.float64),
    "complex": lambda: torch.ones(2, device="jax").to(torch.complex128),
}


@pytest.mark.usefixtures("eager_by_xla")
@pytest.mark.parametrize("name", DOUBLES)
def test_doubles_on_accelerators(settings, accelerator, name):
    assert DOUBLES[name]().dtype in (torch.float64, torch.complex128)
    settings.set("float64", "error")
    with pytest.raises(TypeError, match="TORCH_JAX_FLOAT64=exact"):
        DOUBLES[name]()
    assert (torch.ones(2, device="jax") * 2 + torch.arange(2, device="jax")).tolist() == [2, 3]
    settings.set("float64", "warn")
    policies._warned_of_float64.clear()
    with pytest.warns(UserWarning, match="slow or emulated on gpu"):
        assert DOUBLES[name]().dtype in (torch.float64, torch.complex128)


def test_doubles_on_the_cpu_are_ordinary(settings):
    settings.set("float64", "error")
    assert torch.ones(2, device="jax", dtype=torch.float64).sum().item() == 2
