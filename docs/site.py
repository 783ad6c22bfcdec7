"""The site, as mkdocs asks for it (``make site``): every page lies where the repository has it.

Files keep their paths in the repository as sources, so a link that works there works on the site.
What a page links to outside of ``docs/`` is on the site, too: pages as pages, other files as they
are. The navigation is what ``index.md`` lists, in its order, by its headings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")
_FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(
    r"^### `(?P<name>[.\w`, ]+)`\n+(?:<!-- (?P<path>[.\w]+) -->)?.*?(?=^#|\Z)",
    re.MULTILINE | re.DOTALL,
)


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config.nav = navigation((DOCS / "index.md").read_text())
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """The theme's files, and all that can be reached from ``index.md``."""
    of_the_theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*of_the_theme, *(_file(path, config) for path in sorted(reached()))])


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """In place of the first sentence, each public name's whole docstring (mkdocstrings)."""
    if page.file.src_uri != "docs/api.md":
        return markdown
    return _NAME.sub(_directive, markdown)


def _directive(found: re.Match[str]) -> str:
    name = found["name"].replace("`", "")
    path = found["path"] or name
    return f"::: {path}\n    options:\n      heading: {name}\n\n"


def navigation(index: str) -> list[dict[str, Any]]:
    """The links of ``index.md`` under their headings, as mkdocs takes them."""
    first, *parts = re.split(r"^## ", index, flags=re.MULTILINE)
    found: list[dict[str, Any]] = [{first.split("\n")[0].lstrip("# "): "docs/index.md"}]
    for heading, _, text in (part.partition("\n") for part in parts):
        listed = [(title, path) for title, path in _LINK.findall(text) if path.endswith(".md")]
        found.append({heading: [{_title(title): _source(DOCS / path)} for title, path in listed]})
    return found


def reached(start: Path = DOCS / "index.md") -> set[Path]:
    """The files that can be reached by links from a page, the page included."""
    found, left = set(), [start]
    while left:
        path = left.pop()
        if path in found or not path.is_file():  # of what is not there mkdocs warns
            continue
        found.add(path)
        left += links(path) if path.suffix == ".md" else ()
    return found


def links(page: Path) -> Iterable[Path]:
    """The files that a page links to or shows."""
    text = _FENCE.sub("", page.read_text())
    return [_normal(page.parent / target) for _, target in _LINK.findall(text)]


def _title(text: str) -> str:
    return text.replace("`", "")


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _source(path: Path) -> str:
    return _normal(path).relative_to(ROOT).as_posix()


def _file(path: Path, config: Any) -> File:
    """A file of the repository; what is in ``docs/`` stands at the top of the site."""
    source = _source(path)
    # mkdocs makes an index.html of every README.md, and the site has one at its top already
    place = "readme.md" if source == "README.md" else source.removeprefix("docs/")
    made = File(place, str(ROOT), config.site_dir, config.use_directory_urls)
    return File(
        source, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=made.dest_uri
    )
