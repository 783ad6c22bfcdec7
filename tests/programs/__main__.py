"""Judge programs, those whose names hold a word or all: ``python -m tests.programs [WORD ...]``.

Prints a line for each that is not equal, and how many are.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.programs.executors import EXECUTORS
from tests.programs.harness import Verdict, run
from tests.programs.writing import PROGRAMS


def main(words: list[str]) -> None:
    """Judge, and print."""
    chosen = [n for n in PROGRAMS if not words or any(word in n for word in words)]
    for executor in EXECUTORS:
        counts: Counter[str] = Counter()
        for name in chosen:
            outcome = run(name, executor)
            verdict = outcome.verdict.value
            counts[verdict] += 1
            if outcome.verdict is not Verdict.EQUAL:
                text = " ".join(outcome.words.split())
                print(f"{executor} {verdict} {name}: {text[:300]}", flush=True)
        print(executor, dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
