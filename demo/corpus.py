"""Real English text that needs no download: the language reference inside every CPython."""

from pydoc_data.topics import topics
from typing import NamedTuple

import torch


class Paragraph(NamedTuple):
    """One paragraph of the documentation and the topic it stands under."""

    topic: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0]


def paragraphs(min_chars: int, limit: int | None = None) -> list[Paragraph]:
    """Every different paragraph of at least ``min_chars`` characters, evenly thinned to ``limit``.

    Paragraphs are parted by blank lines. Many stand under several topics; the first one counts.
    """
    found: dict[str, Paragraph] = {}
    for topic, page in topics.items():
        for block in page.split("\n\n"):
            text = block.strip()
            if len(text) >= min_chars:
                found.setdefault(text, Paragraph(topic, text))
    every = list(found.values())
    if limit is None or limit >= len(every):
        return every
    return [every[i * len(every) // limit] for i in range(limit)]


def characters() -> tuple[torch.Tensor, int]:
    """The whole text as character ids: int64 of shape [characters], and the number of ids."""
    text = "\n".join(topics.values())
    ids = {char: i for i, char in enumerate(sorted(set(text)))}
    return torch.tensor([ids[char] for char in text]), len(ids)
