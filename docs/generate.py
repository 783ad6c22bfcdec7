"""Writes the pages that say what the code says: ``python docs/generate.py`` (``make docs``).

``settings.md`` comes from ``torch_jax.config.SETTINGS`` and from the comments of
``torch_jax/budgets.py``, ``modules.md`` from the docstrings of the
package's files, in the order of the floors of ``internals.md``, ``api.md`` from those of the public
names, and ``operators.md`` counts the answers of ``python -m torch_jax ops``.
"""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import torch_jax
from torch_jax import config
from torch_jax.compat import tables
from torch_jax.observe.operators import RUNGS
from torch_jax.observe.operators import operators as all_operators

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "torch_jax"

SETTINGS = """\
# Settings

Each is an environment variable `TORCH_JAX_<NAME>`, or `torch_jax.config.set(name, value)`, which
drops programs of another value. `torch_jax.config.get(name)` returns the value in force. In a
variable, `1`, `true`, `on` or `yes` turns a switch on; `0`, `false`, `off`, `no` or nothing turns
it off.

This page is made from `torch_jax.config.SETTINGS` and `torch_jax/budgets.py` by `make docs`.

| name | default | values | meaning |
| --- | --- | --- | --- |
"""
BUDGETS = """
## Budgets

The package decides by these numbers, which are not settings. They are in `torch_jax/budgets.py`.
"""
KINDS = {bool: "on or off", int: "a number", str: "text"}

MODULES = """\
# Modules

Every file of the package, floor by floor from the top, with the first sentence of its docstring.
[internals.md](internals.md) has the floors, [operators.md](operators.md) the families of `ops/`.
This page is made by `make docs`.
"""


def settings() -> str:
    """The page of settings."""
    rows = map(_setting, config.SETTINGS, config.SETTINGS.values())
    return "".join((SETTINGS, *rows, BUDGETS, *budgets()))


def _setting(name: str, setting: config.Setting) -> str:
    values = ", ".join(f"`{choice}`" for choice in setting.choices)
    values = values or KINDS[type(setting.default)]
    return f"| `{name}` | `{setting.default}` | {values} | {setting.help} |\n"


def budgets() -> Iterator[str]:
    """Yield a table for each part of the module of budgets."""
    text = (PACKAGE / "budgets.py").read_text()
    for title, part in re.findall(r"^# --- (.*?) -+\n(.*?)(?=^# ---|\Z)", text, re.M | re.S):
        yield f"\n### {title}\n\n| name | number | meaning |\n| --- | --- | --- |\n"
        for words, name, number in re.findall(r"((?:^# .*\n)+)(\w+) = (.*)", part, re.M):
            words = " ".join(line[2:] for line in words.splitlines())
            yield f"| `{name}` | `{number}` | {words} |\n"


def modules() -> str:
    """The page of modules."""
    return MODULES + "".join(map(_folder, floors()))


def floors() -> Iterator[str]:
    """The names in the table of floors: folders, and ``config``, top floor first."""
    table = (DOCS / "internals.md").read_text().split("<!-- floors -->")[1]
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
    return _first(ast.get_docstring(ast.parse(path.read_text())) or "")


def _first(text: str) -> str:
    """The first sentence of a docstring, in Markdown."""
    first = re.split(r"(?<=[.?!])\s|\n\n", text, maxsplit=1)[0]
    role = re.sub(r":\w+:`~?(?:torch_jax\.)?([^`]*)`", r"`\1`", " ".join(first.split()))
    return role.replace("``", "`").replace("|", "\\|")


API = """\
# Public names

Everything that programs may rely on, with the first sentence of its docstring; the site shows all
of it, as `help(torch_jax.jit)` does. This page is made by `make docs`.
"""
MODULES_OF_TORCH = {
    "torch.jax": "torch_jax.device.device_module",
    "torch.backends.jax": "torch_jax.device.precision_switches",
}


def api() -> str:
    """The page of public names, by the folders that they come from."""
    found = [API, "\n## In PyTorch itself\n"]
    found += (_named(name, path) for name, path in MODULES_OF_TORCH.items())
    by_folder = sorted(torch_jax._LAZY, key=lambda name: (_folder_of(name), name.lower()))
    for folder, names in groupby(by_folder, _folder_of):
        found.append(f"\n## `{folder}`\n" if folder else "\n## Modules\n")
        found += map(_public, names)
    found.append("\n## Names of other projects\n")
    known_as: dict[str, list[str]] = {}
    for name, file in tables.MODULES.items():
        if file:
            known_as.setdefault(f"torch_jax.compat.{file}", []).append(name)
    found += (_named("`, `".join(names), file) for file, names in known_as.items())
    return "".join(found)


def _folder_of(name: str) -> str:
    """The folder of the package that a public name comes from; none for a module."""
    folder, _, rest = torch_jax._LAZY[name].partition(".")
    return folder if rest else ""


def _public(name: str) -> str:
    sentence = _first(inspect.getdoc(getattr(torch_jax, name)) or "")
    return f"\n### `torch_jax.{name}`\n\n{sentence}\n"


def _named(name: str, module: str) -> str:
    """A module that is known by another name than its own, which a comment keeps for the site."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return f"\n### `{name}`\n\n<!-- {module} -->\n{_sentence(path)}\n"


OPERATORS = """\
# Operators

Made by `make docs`; `python -m torch_jax ops aten.dropout` says what serves an operator.

## By rung of the lookup ladder

| rung | overloads | meaning |
|---|---|---|
"""
FAMILIES = """
## By family

Lowerings are written by hand, variants follow from them by schema.

| family | lowerings | variants | contents |
|---|---|---|---|
"""


def operators() -> str:
    """The page of operators: how many each rung of the ladder serves, and each family."""
    found = all_operators()
    rungs = Counter(one.rung for one in found)
    counts = Counter((one.family, one.rung) for one in found)
    rows = [f"| {rung} | {rungs[rung]} | {text} |\n" for rung, text in RUNGS.items() if rungs[rung]]
    rows.append(FAMILIES)
    for name in sorted({one.family for one in found} - {""}):
        of_table, derived = counts[name, "table"], counts[name, "variant"]
        about = ast.get_docstring(ast.parse((PACKAGE / f"ops/{name}.py").read_text())) or ""
        if of_table or derived:
            about = about.partition("\n")[0]
            rows.append(f"| `{name}` | {of_table} | {derived} | {about} |\n")
    return OPERATORS + "".join(rows)


PAGES = {"settings.md": settings, "modules.md": modules, "api.md": api}

if __name__ == "__main__":
    for name, page in (PAGES | {"operators.md": operators}).items():
        (DOCS / name).write_text(page())
