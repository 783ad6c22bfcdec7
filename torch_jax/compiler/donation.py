"""Which result takes the memory of which donated array.

JAX pairs donated arguments with results of their form, the first with the first. A result that is
computed while the array is still read cannot be written over it: XLA then copies the array first.
So results are given out in an order in which each donated array meets what takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

R = TypeVar("R", bound=Hashable)


def order(
    results: Sequence[R],
    form: Callable[[R], Hashable],
    donated: Sequence[tuple[Hashable, R | None]],
) -> list[R]:
    """The results in the order in which each donated array meets its heir.

    Args:
      results: in any order, each once.
      form: shape and dtype of a result.
      donated: of each donated argument, in order, the form and the result that is to take its
        memory: None, or one that is no result, where any will do.

    Returns:
      The same results, first those that take the memory of the arguments, in the order of these.

    >>> order(["gradient", "new"], lambda name: (3,), [((3,), "new")])
    ['new', 'gradient']
    """
    left = dict.fromkeys(results)
    heirs: list[R | None] = []
    for of, heir in donated:
        found = heir if heir in left and form(heir) == of else None
        if found is not None:
            del left[found]
        heirs.append(found)
    others: dict[Hashable, list[R]] = {}
    for one in reversed(left):
        others.setdefault(form(one), []).append(one)
    for at, (of, _) in enumerate(donated):
        if heirs[at] is None and others.get(of):
            heirs[at] = another = others[of].pop()
            del left[another]
    return [one for one in heirs if one is not None] + list(left)
