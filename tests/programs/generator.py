"""Random programs: drawn from a seed, judged, and made smaller if they are wrong.

A drawn program is the text of a program of the collection. Its state is numbers and tensors in an
object, lists and a closure, views of them, and a leaf of autograd. Its function reads and changes
some of it, and so does what happens between the calls. Each program draws a few features only, so
that rare ones meet alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.programs.executors import EXECUTORS, Executor, plain
from tests.programs.harness import Outcome, Verdict, judge, shown

CALLS = 8


class Node(NamedTuple):
    """A statement: its first line, and the statements in its block."""

    line: str
    block: tuple[Node, ...] = ()

    def lines(self, depth: int) -> Iterator[str]:
        """The statement as source text."""
        yield "    " * depth + self.line
        for node in self.block:
            yield from node.lines(depth + 1)


class Drawn(NamedTuple):
    """A program: its state, what its function does and is, what happens between calls."""

    setup: tuple[str, ...]
    form: tuple[str, ...]
    body: tuple[Node, ...]
    changes: tuple[Node, ...]

    def text(self) -> str:
        """The source, which defines ``program``."""
        lines = ["from tests.programs.writing import *", "", "def program(compile):"]
        lines += ["    " + line for line in self.setup]
        lines += ["    def step(x, a):", "        nonlocal n, v"]
        lines += [line for node in self.body for line in node.lines(2)]
        lines += ["        return x", "", "    def between(call, x, a):", "        nonlocal n, v"]
        lines += [line for node in self.changes for line in node.lines(2)]
        lines += ["", *("    " + line for line in self.form), f"    for call in range({CALLS}):"]
        lines += ["        y = attempt(f, t(call % 3), (2.0, 3, True, 0.5)[call // 2])"]
        lines += ["        yield y, o, items, ts, n, v, p"]
        lines += ["        attempt(between, call, t(9), 2.0)"]
        return "\n".join(lines) + "\n"


# --- state ----------------------------------------------------------------------------------------

_OWNERS: dict[str, tuple[str, ...]] = {
    "plain": ("class C:", "    k = 2.0", "o = C()", "o.w, o.q = t(1), 3.0"),
    "module": (
        "import torch", "class C(torch.nn.Module):", "    k, q = 2.0, 3.0", "o = C()",
        "o.register_buffer('w', t(1))",
    ),
}  # fmt: skip
_REST = (
    "items, ts, n, v = [2.0, 3.0], [t(3), t(5)], 0.0, t(6)",
    "p = t(1, grad=True)",
)

_FORMS = (
    ("f = compile(step)",),
    ("f = compile(lambda x, a: step(x, a))",),
    ("C.go = lambda self, x, a: step(x, a)", "f = compile(o.go)"),
    ("C.go = compile(lambda self, x, a: step(x, a))", "f = lambda x, a: o.go(x, a)"),
    ("inner = compile(step)", "f = compile(lambda x, a: inner(x, a) + 1)"),
)

# --- expressions, by feature ----------------------------------------------------------------------

_NUMBERS: dict[str, tuple[str, ...]] = {
    "owner": ("o.k", "o.q", "getattr(o, 'late', 0.5)"),
    "list": ("items[0]", "items[-1]", "float(len(items))", "sum(items)"),
    "closure": ("n", "n + 1"),
    "argument": ("a", "a + 1", "int(a)"),
}
_TENSORS: dict[str, tuple[str, ...]] = {
    "owner": ("o.w",),
    "list": ("ts[0]", "ts[-1]", "sum(ts)"),
    "closure": ("v",),
    "grad": ("p", "p.detach()", "p * 2"),
    "views": ("v[:1]", "o.w.view(3, 1)[:, 0]", "ts[0][1:].sum()"),
}
_TARGETS: dict[str, tuple[str, ...]] = {
    "owner": ("o.k", "o.late"),
    "list": ("items[0]", "items[-1]"),
    "closure": ("n",),
}
_PLACES: dict[str, tuple[str, ...]] = {
    "owner": ("o.w", "o.u"),
    "list": ("ts[0]", "ts[-1]"),
    "closure": ("v",),
}
_FEATURES = ("owner", "list", "closure", "argument")
_RARE = ("grad", "views", "errors", "looks", "inner")


class _Draw:
    """One drawing: its random numbers, and the features that it uses."""

    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.features = set(self.r.sample(_FEATURES, 2)) | set(self.r.sample(_RARE, 2))

    def of(self, table: dict[str, tuple[str, ...]], otherwise: str) -> str:
        known = [text for name, texts in table.items() if name in self.features for text in texts]
        return self.r.choice(known) if known else otherwise

    def number(self) -> str:
        if self.r.random() < 0.2:
            return self.r.choice(["2.0", "3", "True", "0.5", "-1", "0.0"])
        return self.of(_NUMBERS, "2.0")

    def tensor(self) -> str:
        return self.of(_TENSORS, "x") if self.r.random() < 0.7 else "x"

    def value(self) -> str:
        """A tensor, kept so small that its sums are exact."""
        sign = self.r.choice(["+", "-", "*"])
        other = self.number() if self.r.random() < 0.6 else self.tensor()
        return f"({self.tensor()} {sign} {other}).clamp(-99, 99)"

    def condition(self) -> str:
        if "looks" in self.features and self.r.random() < 0.4:
            return self.r.choice([f"({self.tensor()}).sum() > 4", "x.max().item() > 2"])
        return self.r.choice([
            f"{self.number()} > {self.r.choice([1, 2, 3])}", f"{self.number()} == 2",
            "hasattr(o, 'late')", "isinstance(a, bool)", "len(items) > 2", "o.w is v",
            "x.requires_grad",
        ])  # fmt: skip

    def block(self, depth: int, most: int = 2) -> tuple[Node, ...]:
        return tuple(self.statement(depth + 1) for _ in range(self.r.randint(1, most)))

    def statement(self, depth: int = 0) -> Node:
        choices: list[Callable[[int], Node]] = [
            lambda _: Node(f"x = {self.value()}"),
            lambda _: Node(f"x = {self.value()}"),
            lambda _: self.change(),
            lambda _: self.change(),
        ]
        if depth < 2:
            choices += [self._if, self._loop, self._try, self._inner]
        return self.r.choice(choices)(depth)

    def change(self) -> Node:
        """A change of the state, from inside or between calls."""
        r = self.r
        number, tensor = self.of(_TARGETS, "o.q"), self.of(_PLACES, "o.w")
        choices = [
            f"{number} = {self.number()}",
            f"{number} = ({number.replace('late', 'k')} + {self.number()}) % 7",
            f"{tensor} = {self.value()}",
            f"{tensor.replace('u', 'w')}.add_({self.number()})",
            f"{tensor}, o.w = o.w, {tensor.replace('u', 'w')}",
            f"{tensor} = {self.tensor()}",
        ]
        if "list" in self.features:
            choices += [
                f"items.append({self.number()})", "items.reverse()", "ts.reverse()",
                f"ts.append({self.tensor()})", "len(ts) > 1 and ts.pop()",
                "len(items) > 1 and items.pop(0)", f"items[:1] = [{self.number()}, 1.0]",
            ]  # fmt: skip
        if "owner" in self.features:
            choices += ["hasattr(o, 'late') and delattr(o, 'late')"]
        if "views" in self.features:
            choices += [f"v[:2].add_({self.number()})", f"{tensor}[0] = {self.number()}"]
            choices += ["v = o.w[:]", "o.w = v.view(3)", "ts[0] = v.flip(0)", "v.data = o.w.data"]
        if "grad" in self.features:
            choices += ["p.grad = None", "(p * x).sum().backward()", "p.requires_grad_(False)"]
        return Node(r.choice(choices))

    def _if(self, depth: int) -> Node:
        return Node(f"if {self.condition()}:", self.block(depth))

    def _loop(self, depth: int) -> Node:
        over = [f"range(int({self.number()}) % 4)", "list(items)[:4]", "list(ts)[:4]"]
        over = over if "list" in self.features else over[:1]
        return Node(f"for i in {self.r.choice(over)}:", self.block(depth))

    def _try(self, depth: int) -> Node:
        if "errors" not in self.features:
            return self._if(depth)
        raising = self.r.choice([
            f"x = x * (1.0 / {self.number()})", "x = x * o.nowhere",
            f"assert {self.condition()}", f"if {self.condition()}: raise ValueError(1)",
        ])  # fmt: skip
        if self.r.random() < 0.2:
            return Node(raising)  # which the caller sees
        return Node("if True:", (
            Node("try:", (*self.block(depth, 1), Node(raising))),
            Node("except Exception:", self.block(depth, 1)),
        ))  # fmt: skip

    def _inner(self, depth: int) -> Node:
        if "inner" not in self.features:
            return self._if(depth)
        return Node(f"x = compile(lambda z: z * {self.number()})(x)")


def draw(seed: int) -> Drawn:
    """The program of a seed."""
    d = _Draw(seed)
    owner = d.r.choice(list(_OWNERS.values()))
    body = tuple(d.statement() for _ in range(d.r.randint(2, 6)))
    changes = tuple(
        Node(f"if call == {call}:", (d.change(),))
        for call in sorted(d.r.choices(range(CALLS), k=d.r.randint(2, 6)))
    )
    return Drawn((*owner, *_REST), d.r.choice(_FORMS), body, changes)


# --- judging --------------------------------------------------------------------------------------


def program_of(text: str) -> Callable[..., Any]:
    """The program that a text defines."""
    space: dict[str, Any] = {"__name__": __name__}  # data classes look their module up
    exec(compile(text, "<drawn program>", "exec"), space)
    return space["program"]


def outcome(drawn: Drawn, executor: Executor) -> Outcome:
    """What an executor makes of a drawn program."""
    text = drawn.text()
    return judge(program_of(text), shown(program_of(text), Executor(plain)), executor)


def smaller(drawn: Drawn, is_wrong: Callable[[Drawn], bool]) -> Drawn:
    """The program without all that it can miss and still be wrong."""
    while True:
        for candidate in _candidates(drawn):
            if is_wrong(candidate):
                drawn = candidate
                break
        else:
            return drawn


def _candidates(drawn: Drawn) -> Iterator[Drawn]:
    for body in _without_one(drawn.body):
        yield drawn._replace(body=body)
    for changes in _without_one(drawn.changes):
        yield drawn._replace(changes=changes)


def _without_one(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """The statements without one of them, or with what is in its block in its place."""
    for i, node in enumerate(nodes):
        before, after = nodes[:i], nodes[i + 1 :]
        yield (*before, *after)
        if node.block and not node.block[0].line.startswith("try"):
            yield (*before, *node.block, *after)
        if not node.line.startswith("if True"):
            for block in _without_one(node.block):
                if block:
                    yield (*before, Node(node.line, block), *after)


def is_wrong(seed: int, executor: str) -> bool:
    """Whether an executor gets the program of a seed wrong."""
    return outcome(draw(seed), EXECUTORS[executor]).verdict is not Verdict.EQUAL


def smallest(seed: int, executor: str) -> str:
    """The program of a seed as small as it is wrong, and its first difference."""
    run = EXECUTORS[executor]
    verdict = outcome(draw(seed), run).verdict
    small = smaller(draw(seed), lambda drawn: outcome(drawn, run).verdict is verdict)
    words = outcome(small, run).words
    return f"seed {seed}, executor {executor}: {words}\n{small.text()}"
