"""The difference between the structures of two calls' arguments, in words."""

from __future__ import annotations

from typing import Any


class _Value:
    """A leaf of a tree: a tensor, a number."""

    def __repr__(self) -> str:
        return "a value"


_VALUE = _Value()


def difference(old: tuple[Any, int], new: tuple[Any, int]) -> str:
    """Say which argument changed, given the structures of ``(args, kwargs)`` and their leaves.

    >>> import jax
    >>> one, two = (jax.tree.structure(((1, *more), {})) for more in ([], [{"a": 2}]))
    >>> difference((one, 1), (two, 2))
    'it was called with 1 argument, now with 2'
    >>> one, two = (jax.tree.structure(((), {"mask": mask})) for mask in (None, 1))
    >>> difference((one, 0), (two, 1))
    'argument mask was None, now it is a value'
    """
    try:
        (old_args, old_named), (new_args, new_named) = (
            form.unflatten([_VALUE] * leaves) for form, leaves in (old, new)
        )
    except Exception:  # of a user's class that takes no other leaves
        return "the arguments are nested in another way"
    if len(old_args) != len(new_args):
        plural = "" if len(old_args) == 1 else "s"
        return f"it was called with {len(old_args)} argument{plural}, now with {len(new_args)}"
    for index, pair in enumerate(zip(old_args, new_args, strict=True)):
        if found := _changed(f"argument {index}", *pair):
            return found
    for name in old_named:
        if name not in new_named:
            return f"argument {name} was given, now it is not"
    for name in new_named:
        if name not in old_named:
            return f"argument {name} was not given, now it is"
        if found := _changed(f"argument {name}", old_named[name], new_named[name]):
            return found
    return "the arguments are nested in another way"


def _changed(name: str, old: Any, new: Any) -> str:
    """Say how a part of the arguments changed; return an empty text if it did not."""
    if type(old) is not type(new):
        return f"{name} was {_shown(old)}, now it is {_shown(new)}"
    if isinstance(old, dict):
        return _changed_dict(name, old, new)
    if isinstance(old, list | tuple):
        if len(old) != len(new):
            return f"{name} had {len(old)} elements, now it has {len(new)}"
        pairs = enumerate(zip(old, new, strict=True))
        found = (_changed(f"{name}[{index}]", *pair) for index, pair in pairs)
        return next(filter(None, found), "")
    if old is new:
        return ""
    was, now = (getattr(one, "__dict__", {}) for one in (old, new))
    return _changed_dict(name, was, now, of="attribute")


def _changed_dict(name: str, old: dict, new: dict, of: str = "key") -> str:
    lost = [key for key in old if key not in new]
    more = [key for key in new if key not in old]
    if lost or more:
        words = [f"no longer has the {of} {key!r}" for key in lost[:2]]
        words += [f"has the {of} {key!r} now" for key in more[:2]]
        return f"{name} {' and '.join(words)}"
    found = (_changed(f"{name}[{key!r}]", old[key], new[key]) for key in old)
    if text := next(filter(None, found), ""):
        return text
    return f"the order of {name}'s keys is another" if list(old) != list(new) else ""


def _shown(part: Any) -> str:
    if part is None or part is _VALUE:
        return repr(part)
    kind = type(part).__name__
    return f"a {kind} of {len(part)}" if isinstance(part, list | tuple | dict) else f"a {kind}"
