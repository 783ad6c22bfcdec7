"""Writes the pages that say what the code says: ``python docs/generate.py`` (``make docs``).

``settings.md`` comes from ``torch_jax.config.SETTINGS``, ``modules.md`` from the docstrings of the
package's files, in the order of the floors of ``house.md``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from torch_jax import config

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "torch_jax"

SETTINGS = """\
# Settings

Each is an environment variable `TORCH_JAX_<NAME>`, or `torch_jax.config.set(name, value)`, which
drops what was compiled under another value. `torch_jax.config.get(name)` tells what is in force. In
a variable, `1`, `true`, `on` or `yes` turns a switch on; `0`, `false`, `off`, `no` or nothing turns
it off.

This page is made from `torch_jax.config.SETTINGS` by `make docs`.

| name | default | values | meaning |
| --- | --- | --- | --- |
"""
KINDS = {bool: "on or off", int: "a number", str: "text"}

MODULES = """\
# Modules

Every file of the package, floor by floor from the top, with the first sentence of its docstring.
[house.md](house.md) has the floors, [operators.md](operators.md) the families of `ops/`. This page
is made by `make docs`.
"""


def settings() -> str:
    """The page of settings."""
    return SETTINGS + "".join(map(_setting, config.SETTINGS, config.SETTINGS.values()))


def _setting(name: str, setting: config.Setting) -> str:
    values = ", ".join(f"`{choice}`" for choice in setting.choices)
    values = values or KINDS[type(setting.default)]
    return f"| `{name}` | `{setting.default}` | {values} | {setting.help} |\n"


def modules() -> str:
    """The page of modules."""
    return MODULES + "".join(map(_folder, floors()))


def floors() -> Iterator[str]:
    """The names in the table of floors: folders, and ``config``, top floor first."""
    table = (DOCS / "house.md").read_text().split("<!-- floors -->")[1]
    for row in re.findall(r"^\|(.*?)\|", table, re.MULTILINE):
        yield from re.findall(r"`(\w+)`", row)


def _folder(name: str) -> str:
    """A heading and a table; of ``ops``, and of what is a file, the heading alone."""
    folder = PACKAGE / name
    if not folder.is_dir():
        return f"\n## `{name}.py`\n\n{_sentence(PACKAGE / f'{name}.py')}\n"
    head = f"\n## `{name}/`\n\n{_sentence(folder / '__init__.py')}\n"
    paths = sorted(p for p in folder.rglob("*.py") if p.name != "__init__.py")
    if name == "ops":
        return head
    rows = (f"| `{path.relative_to(folder)}` | {_sentence(path)} |\n" for path in paths)
    return f"{head}\n| file | what it is |\n| --- | --- |\n{''.join(rows)}"


def _sentence(path: Path) -> str:
    """The first sentence of a file's docstring, in Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = re.split(r"(?<=[.?!])\s|\n\n", text, maxsplit=1)[0]
    role = re.sub(r":\w+:`~?(?:torch_jax\.)?([^`]*)`", r"`\1`", " ".join(first.split()))
    return role.replace("``", "`").replace("|", "\\|")


PAGES = {"settings.md": settings, "modules.md": modules}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
