"""The README says what the code does."""

from __future__ import annotations

import re

import pytest

from tests.support import pages
from tests.support.processes import ROOT, run
from torch_jax import config

README = (ROOT / "README.md").read_text()


def test_the_table_of_settings_is_complete():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", README, re.MULTILINE))
    assert rows == {name: str(setting.default) for name, setting in config.SETTINGS.items()}


def test_settings_are_checked(monkeypatch):
    with pytest.raises(ValueError, match="must be one of"):
        config.set("cpu_fallback", "perhaps")
    with pytest.raises(KeyError):
        config.get("no_such_setting")
    monkeypatch.setenv("TORCH_JAX_CACHE_SIZE", "7")
    monkeypatch.delitem(config._values, "cache_size", raising=False)
    assert config.get("cache_size") == 7
    monkeypatch.delitem(config._values, "cache_size")


def test_the_readme_example_runs():
    code = README.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README", "exec"), {})


def test_the_page_of_operators_is_up_to_date():
    page = pages.DOCS / "operators.md"
    assert run("-m", "torch_jax", "ops", "--markdown").stdout == page.read_text(), "run `make docs`"


@pytest.mark.parametrize("name", ["how-an-op-is-found", "environment"])
@pytest.mark.slow
def test_a_page_shows_what_is_printed(name):
    page = (pages.DOCS / f"{name}.md").read_text()
    expected = [content for language, content in pages.blocks(page) if language == "text"]
    printed = pages.outputs(page)
    assert len(expected) == len(printed) > 2
    for shown, actual in zip(expected, printed, strict=True):
        assert pages.blanked(shown) == pages.blanked(actual)
