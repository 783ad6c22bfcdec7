"""The README and the pages of docs/ say what the code does."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest

from tests.support import pages
from torch_jax import config

ROOT = pages.DOCS.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *pages.DOCS.glob("*.md"), *ROOT.glob("examples/*/*.md"))
    if path.name != "CHANGELOG.md"
)
GENERATED = runpy.run_path(str(pages.DOCS / "generate.py"))


@pytest.mark.parametrize("name", GENERATED["PAGES"])
def test_a_page_of_what_the_code_says_is_up_to_date(name):
    assert (pages.DOCS / name).read_text() == GENERATED["PAGES"][name](), "run `make docs`"


def test_the_table_of_settings_is_complete():
    page = (pages.DOCS / "settings.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
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


def test_the_first_example_of_the_readme_runs():
    code = README.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README", "exec"), {})


@pytest.mark.slow
def test_all_examples_of_the_readme_run():
    blocks = [content for language, content in pages.blocks(README) if language == "python"]
    assert len(blocks) == 5
    command = [sys.executable, "-c", "\n".join(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_page_of_operators_is_up_to_date():
    page = pages.DOCS / "operators.md"
    command = [sys.executable, "-m", "torch_jax", "ops", "--markdown"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == page.read_text(), "run `make docs`"


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "environment",
        "errors",
        "extend",
        "generate",
        "how-an-op-is-found",
        "jax-arrays",
        "jax-in-pytorch",
        "optax-and-flax",
        "precision",
        "pytorch-in-jax",
        "transforms",
    ],
)
@pytest.mark.slow
def test_a_page_shows_what_is_printed(name):
    page = (pages.DOCS / f"{name}.md").read_text()
    expected = [content for language, content in pages.blocks(page) if language == "text"]
    printed = pages.outputs(page)
    assert len(expected) == len(printed) > 0
    for shown, actual in zip(expected, printed, strict=True):
        assert pages.blanked(shown) == pages.blanked(actual)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), target
        if anchor:
            assert anchor in _anchors(page.read_text()), f"{target}#{anchor}"


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index():
    index = (pages.DOCS / "index.md").read_text()
    for path in pages.DOCS.glob("*.md"):
        assert path.stem == "index" or f"]({path.name})" in index


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_page_names_exist(path):
    """``eager/kernel.py`` in the page of a walk is a file of the package, or of its folder."""
    base = {"a-steps-way": "capture", "a-graphs-way": "graphs"}.get(path.stem, "")
    package, folders = ROOT / "torch_jax", list(GENERATED["floors"]())
    for name in re.findall(r"`(?:torch_jax/)?([\w/]+\.py)`", path.read_text()):
        folder = name.partition("/")[0]
        if folder in folders:
            assert (package / name).is_file(), name
        elif base:
            assert (package / base / name).is_file(), name
