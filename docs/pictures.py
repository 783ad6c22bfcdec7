"""Pictures as SVG, by hand: bars in rows and columns, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_STYLE = """<style>
text { font: 13px sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
.bar { fill: #4051b5 } .back { fill: #d0d7de } .line { stroke: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9da7b1 } .bar { fill: #8c9eff } .back { fill: #3d444d }
  .line { stroke: #9da7b1 }
}
</style>"""
_ROW, _LABEL, _CELL = 24, 190, 120


def shares(
    rows: Mapping[str, Mapping[str, tuple[int, int]]], columns: Sequence[str], title: str
) -> str:
    """Of each row and column, how many of how many: a bar, and the number in per cent."""
    drawn = [_text(_LABEL + _CELL * at, 16, column, "small") for at, column in enumerate(columns)]
    for line, (row, cells) in enumerate(rows.items(), 1):
        y = _ROW * line
        drawn.append(_text(0, y + 16, row))
        for at, column in enumerate(columns):
            passed, cases = cells.get(column, (0, 0))
            if cases:
                drawn += _share(_LABEL + _CELL * at, y, passed / cases)
    return _svg(_LABEL + _CELL * len(columns), _ROW * (len(rows) + 1), title, drawn)


def ratios(groups: Mapping[str, Mapping[str, float]], title: str, most: float = 4.0) -> str:
    """A bar for each ratio under its group, beside a line at 1; bars end at ``most``."""
    scale, left = 300 / most, 2 * _LABEL
    drawn, y = [], 0
    for group, rows in groups.items():
        drawn.append(_text(0, y + 16, group))
        y += _ROW
        for row, ratio in rows.items():
            length = scale * min(ratio, most)
            drawn += [
                _text(16, y + 16, row, "small"),
                f'<rect class="bar" x="{left}" y="{y + 5}" width="{length:.1f}" height="14"/>',
                _text(left + length + 6, y + 16, f"{ratio:.2f}", "small"),
            ]
            y += _ROW
    one = left + scale
    drawn.append(f'<line class="line" x1="{one}" x2="{one}" y1="0" y2="{y}"/>')
    return _svg(left + 350, y, title, drawn)


def _share(x: int, y: int, share: float) -> Iterable[str]:
    yield f'<rect class="back" x="{x}" y="{y + 5}" width="60" height="14"/>'
    yield f'<rect class="bar" x="{x}" y="{y + 5}" width="{60 * share:.1f}" height="14"/>'
    # only what is whole is called so
    percent = "100 %" if share == 1 else f"{min(100 * share, 99.9):.1f} %"
    yield _text(x + 66, y + 16, percent, "small")


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(text)}</text>'


def _svg(width: int, height: int, title: str, drawn: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, *drawn, "</svg>", ""])
