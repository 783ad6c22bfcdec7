"""Docstrings as Markdown, for the site: an extension of griffe, which mkdocs.yml names."""

from __future__ import annotations

import re

import griffe

_ROLE = re.compile(r":\w+:`~?(?:torch_jax\.)?([^`]*)`")
_DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def markdown(text: str) -> str:
    """A docstring with Sphinx's roles as code, and its examples as blocks."""
    return _DOCTEST.sub(r"```pycon\n\g<0>\n```", _ROLE.sub(r"`\1`", text))


class Docstrings(griffe.Extension):
    """Every docstring that griffe reads goes through :func:`markdown`."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
