"""The site is built without a broken link, and shows the contents of the pages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import torch_jax
from tests.support.processes import ROOT, environment

pytestmark = pytest.mark.xdist_group("site")
SITE = runpy.run_path(str(ROOT / "docs" / "site.py"))
MKDOCS = [sys.executable, "-m", "mkdocs", "build", "--site-dir"]
TABLE = re.compile(r"^ *\|(?: *:?-+:? *\|)+ *$", re.MULTILINE)
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    variables = environment({"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)})
    command = [*MKDOCS, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr  # strict: any warning fails
    assert "Documentation built" in done.stderr  # where mkdocs is quiet, it counts no warnings
    return folder


def on_the_site(page: Path) -> Path:
    """Where the site has a page of the repository."""
    place = page.relative_to(ROOT).as_posix().removeprefix("docs/").removesuffix(".md")
    folder = re.sub(r"(^|/)(index|README)$", "", place)
    return Path(folder) / "index.html"


@pytest.mark.slow
def test_the_site_has_every_page_with_its_tables_and_lists(site):
    pages = {path for path in SITE["reached"]() if path.suffix == ".md"}
    assert pages >= set((ROOT / "docs").glob("*.md"))
    for page in pages - {ROOT / "docs" / "api.md"}:  # which docstrings fill
        html = (site / on_the_site(page)).read_text()
        (article,) = re.findall(r"<article.*?</article>", html, re.DOTALL)
        text = SITE["_FENCE"].sub("", page.read_text())
        assert article.count("<table>") == len(TABLE.findall(text)), page
        assert article.count("<li>") == len(ITEM.findall(text)), page


@pytest.mark.slow
def test_the_site_has_the_docstring_of_every_public_name(site):
    html = (site / "api" / "index.html").read_text()
    assert [name for name in torch_jax._LAZY if f'id="torch_jax.{name}"' not in html] == []
    assert html.count('class="gp">&gt;') > 20  # their examples
    assert not re.search(r":(func|class|meth|data):", html)


def test_the_navigation_is_the_index():
    nav = SITE["navigation"]((ROOT / "docs" / "index.md").read_text())
    listed = {
        path for part in nav[1:] for link in next(iter(part.values())) for path in link.values()
    }
    assert listed >= {
        f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.stem != "index"
    }
    assert len(listed) == sum(len(next(iter(part.values()))) for part in nav[1:])  # each once


def test_docstrings_become_markdown():
    markdown = runpy.run_path(str(ROOT / "docs" / "docstrings.py"))["markdown"]
    assert markdown("As :func:`~torch_jax.jit`.\n\n>>> 1 + 1\n2\n\nEnd.") == (
        "As `jit`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd."
    )


def test_links_of_the_index_become_the_navigation():
    index = "# Docs\n\n## Use\n\n- [`jit`](jit.md): a [link](https://x.org), [us](../US.md#top)\n"
    assert SITE["navigation"](index) == [
        {"Docs": "docs/index.md"},
        {"Use": [{"jit": "docs/jit.md"}, {"us": "US.md"}]},
    ]
