"""A bar chart as SVG inside of a page, in the colours of the page's theme."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

_ROW: Final = 22
_LEFT: Final = 130
_WIDTH: Final = 640
_RIGHT: Final = 60


def bars(title: str, values: Mapping[str, float], reference: float = 1.0) -> str:
    """Returns one bar for each value, and a line at the reference; nothing where there are no values.

    Args:
        title: Stands above, and is what a screen reader says.
        values: Positive numbers by name.
        reference: Where the line is.
    """
    if not values:
        return ""
    height = _ROW * (len(values) + 1) + 8
    scale = (_WIDTH - _LEFT - _RIGHT) / max(*values.values(), reference)
    line = _LEFT + reference * scale
    parts = [
        '<div class="latency-plot">',
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" font-size="12" '
        'style="max-width: 100%; font-family: sans-serif" fill="currentColor">',
        f'<text x="{_LEFT}" y="14" font-weight="bold">{escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(values.items()):
        top = _ROW * (index + 1)
        length = value * scale
        colour = "#2a9d55" if value >= reference else "#c8553d"
        parts += [
            f'<text x="{_LEFT - 6}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{top + 3}" width="{length:.1f}" height="{_ROW - 6}" fill="{colour}"/>',
            f'<text x="{_LEFT + length + 4:.1f}" y="{top + 15}">{value:.2f}</text>',
        ]
    parts += [
        f'<line x1="{line:.1f}" y1="{_ROW}" x2="{line:.1f}" y2="{height - 4}" stroke="currentColor" '
        'stroke-dasharray="3 3"/>',
        "</svg>",
        "</div>",
        "",
    ]
    return "\n".join(parts)
