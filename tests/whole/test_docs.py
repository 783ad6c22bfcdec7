"""The README and the pages of docs/ agree with the code."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.support import pages, processes
from torch_jax import config

ROOT = pages.DOCS.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    path
    for place in ("*.md", "docs/*.md", "examples/*/*.md", "tests/*/*.md")
    for path in ROOT.glob(place)
    if path.name != "CHANGELOG.md"
)

# The blocks of a page that are not run: how many of a language, and why.
NOT_RUN = {
    ("CONTRIBUTING.md", "py"): (1, "a part of a file of the package"),
    ("CONTRIBUTING.md", "text"): (2, "the end of a run of the tests; the folders of the package"),
    ("docs/cuda-scripts.md", "text"): (1, "an example of the report of a longer run"),
    ("docs/jit.md", "text"): (1, "an example of the report of a longer run"),
    ("docs/libraries.md", "py"): (1, "a reader's pipeline; tests/whole/test_diffusers.py"),
    ("docs/targets.md", "py"): (1, "it needs the compiler of a GPU"),
    ("docs/targets.md", "text"): (2, "pages of longer runs, with the compiler of a TPU"),
    ("docs/watching.md", "text"): (1, "a report of all arrays of a process"),
    ("docs/what-runs-when.md", "ascii"): (1, "a drawing"),
    ("examples/trainers/README.md", "text"): (1, "an example of what the program prints"),
    ("tests/upstream/README.md", "diff"): (3, "changes of other projects"),
}
ILLUSTRATED = {page for page, language in NOT_RUN if language == "text"}
OF_READERS = {"train.py"}  # a reader's own script


def name_of(path: Path) -> str:
    """A page as the repository names it."""
    return path.relative_to(ROOT).as_posix()


def with_language(language: str) -> list[Path]:
    """The pages that have blocks of a language."""
    return [
        path for path in PAGES if any(block.language == language for block in pages.blocks_of(path))
    ]


WITH_CODE, WITH_COMMANDS = with_language("python"), with_language("sh")
WITH_CODE += (ROOT / "notebooks").glob("*.ipynb")
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
COMMANDS = "".join(path.read_text() for path in (ROOT / "torch_jax").rglob("*.py"))
GENERATED = runpy.run_path(str(pages.DOCS / "generate.py"))


@pytest.mark.parametrize("name", GENERATED["PAGES"])
def test_a_page_of_what_the_code_says_is_up_to_date(name):
    assert (pages.DOCS / name).read_text() == GENERATED["PAGES"][name](), "run `make docs`"


def test_the_table_of_settings_is_complete():
    page, _ = (pages.DOCS / "settings.md").read_text().split("\n## Budgets\n")
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
    assert rows == {name: str(setting.default) for name, setting in config.SETTINGS.items()}


def test_settings_are_checked(monkeypatch):
    with pytest.raises(ValueError, match="must be one of"):
        config.set("cpu_fallback", "perhaps")
    with pytest.raises(KeyError):
        config.get("no_such_setting")
    monkeypatch.setenv("TORCH_JAX_CACHE_SIZE", "7")
    assert config.from_environment("cache_size") == 7


@pytest.mark.slow
def test_the_first_example_of_the_readme_runs():
    code = README.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README", "exec"), {})


@pytest.mark.slow
def test_the_page_of_operators_is_up_to_date():
    page = pages.DOCS / "operators.md"
    # in a process of its own: other tests register operators
    code = "import runpy; print(runpy.run_path('docs/generate.py')['operators'](), end='')"
    assert processes.forked("-c", code).stdout == page.read_text(), "run `make docs`"


@pytest.mark.parametrize("path", WITH_CODE, ids=name_of)
@pytest.mark.slow
def test_a_page_shows_what_its_code_prints(path):
    found = pages.blocks_of(path)
    expected = [block.content for block in found if block.language == "text"]
    printed = pages.outputs(path)
    assert len(expected) == len(printed)
    if (name_of(path), "text") in NOT_RUN:
        return
    for shown, actual in zip(expected, printed, strict=True):
        assert pages.blanked(shown) == pages.blanked(actual) != ""


def test_notebooks_are_kept_without_outputs():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs") and not cell.get("execution_count")


def test_every_block_of_every_page_is_run_or_listed():
    """Python runs; text is compared with what Python prints; commands name what there is."""
    not_run = Counter(
        (name_of(path), block.language)
        for path in PAGES
        for block in pages.blocks_of(path)
        if block.language not in ("python", "sh")
        and (block.language != "text" or path not in WITH_CODE or name_of(path) in ILLUSTRATED)
    )
    assert not_run == {what: count for what, (count, _) in NOT_RUN.items()}


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=name_of)
def test_commands_of_pages_name_what_there_is(path):
    lines = [
        line.partition(" #")[0]
        for block in pages.blocks_of(path)
        if block.language == "sh"
        for line in re.split(r"\n| && ", block.content.replace("\\\n", " "))
    ]
    assert lines and not [line for line in lines if not named(line)]


def named(line: str) -> bool:
    """Whether a line of a shell is a comment or a known command, of things that are there."""
    words = line.split()
    while words and re.fullmatch(r"[A-Z_]+=\S*|srun|taskset|-c|\d", words[0]):
        words = words[1:]
    match words:
        case []:
            return True
        case ["make", *_]:
            return all("=" in name or f"\n{name}: " in MAKEFILE for name in _unquoted(line))
        case ["python", "-m", "torch_jax", command, *_]:
            return f'"{command}"' in COMMANDS
        case ["python" | "torchrun", *rest] if "-m" in rest:
            module = rest[rest.index("-m") + 1]
            return importlib.util.find_spec(module) is not None
        case ["python", script, *_]:
            return (ROOT / script).exists() or script in OF_READERS
        case ["torchrun", *rest]:
            return any(script in OF_READERS for script in rest)
        case ["pytest", path, *_]:
            return (ROOT / path).exists()
        case ["pip", "install", *names]:
            return all(map(_installable, names))
        case [first, *_]:
            return first.startswith("#") or first in ("pip", "pre-commit", "tar")
    return False


def _unquoted(line: str) -> list[str]:
    """The words after ``make``, with quoted ones whole."""
    words = shlex.split(line)
    return words[words.index("make") + 1 :]


def _installable(name: str) -> bool:
    package, _, extras = name.strip('"').rstrip("]").partition("[")
    return package not in ("torch_jax", ".") or {*filter(None, extras.split(","))} <= EXTRAS


@pytest.mark.parametrize("path", PAGES, ids=name_of)
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


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(path):
    """``eager/kernel.py`` in a page is a file of the package."""
    package, folders = ROOT / "torch_jax", list(GENERATED["floors"]())
    for name in re.findall(r"`(?:torch_jax/)?([\w/]+\.py)`", path.read_text()):
        folder = name.partition("/")[0]
        if folder in folders:
            assert (package / name).is_file(), name
