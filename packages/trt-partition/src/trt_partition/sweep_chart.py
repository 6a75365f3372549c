"""Where the lines of the chart of `min_block_size` go: engines in one panel, coverage in the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trt_partition.sweep import Sweep

WIDTH: Final = 640
PANEL_HEIGHT: Final = 130
_LEFT: Final = 56
_RIGHT: Final = 16


@dataclass(frozen=True)
class Panel:
    """One curve over `min_block_size`. Lengths are in pixels.

    Attributes:
        title: What the curve shows.
        path: The curve, a step function.
        ticks: (y, label) on the vertical axis.
        marker: Height of the curve at the current size, None when that is infinite.
        summary: The figure at the current size.
    """

    title: str
    path: str
    ticks: tuple[tuple[float, str], ...]
    marker: float | None
    summary: str


@dataclass(frozen=True)
class Chart:
    """Two panels over one axis of sizes, which is logarithmic.

    Attributes:
        width: Width in pixels.
        panel_height: Height of a panel in pixels.
        left: Left end of the axis.
        right: Right end of the axis.
        ticks: (x, label) on the horizontal axis.
        marker: Where the current size is, None when it is infinite.
        panels: Engines, then coverage.
    """

    width: int
    panel_height: int
    left: float
    right: float
    ticks: tuple[tuple[float, str], ...]
    marker: float | None
    panels: tuple[Panel, ...]


def draw_sweep(sweep: Sweep, total_operators: int, current: int | float) -> Chart:
    """Draws what every `min_block_size` gives.

    Args:
        sweep: What every size gives.
        total_operators: Operators of the graph, for coverage.
        current: The size in use.
    """
    finite = current if current != float("inf") else 1
    largest = max([point.min_block_size for point in sweep.points] + [int(finite), 2])
    end = largest * 1.3
    scale = (WIDTH - _LEFT - _RIGHT) / math.log(end)

    def across(size: float) -> float:
        return _LEFT + math.log(size) * scale

    starts = [1.0]
    for point in sweep.points:
        starts.append(point.min_block_size + 1.0 if not sweep.unlimited else end)
    engines = [float(sweep.at(math.floor(start)).engines) for start in starts if start <= end]
    covered = [
        sweep.at(math.floor(start)).operators / max(total_operators, 1) * 100 for start in starts if start <= end
    ]
    edges = [across(start) for start in starts if start <= end] + [across(end)]
    now = sweep.at(current)
    marker = None if current == float("inf") else across(finite)
    most = max([*engines, 1.0])
    share = now.operators / max(total_operators, 1) * 100
    return Chart(
        width=WIDTH,
        panel_height=PANEL_HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        ticks=tuple((across(size), str(size)) for size in _round_sizes(largest)),
        marker=marker,
        panels=(
            _panel("Engines", edges, engines, most, now.engines, f"{now.engines}", marker),
            _panel("Operators in engines, %", edges, covered, 100.0, share, f"{share:.1f} %", marker),
        ),
    )


def _panel(
    title: str, edges: list[float], values: list[float], top: float, now: float, summary: str, marker: float | None
) -> Panel:
    def up(value: float) -> float:
        return PANEL_HEIGHT - 24 - value / top * (PANEL_HEIGHT - 56)

    path = f"M{edges[0]:.1f} {up(values[0]):.1f}"
    for value, edge in zip(values, edges[1:], strict=False):
        path += f"V{up(value):.1f}H{edge:.1f}"
    marks = sorted({0.0, math.ceil(top / 2), top})
    ticks = tuple((up(mark), f"{mark:g}") for mark in marks)
    return Panel(title, path, ticks, up(now) if marker is not None else None, summary)


def _round_sizes(largest: int) -> list[int]:
    sizes: list[int] = []
    magnitude = 1
    while magnitude <= largest * 1.3:
        sizes.extend(size for size in (magnitude, 2 * magnitude, 5 * magnitude) if size <= largest * 1.3)
        magnitude *= 10
    return sizes if len(sizes) <= 10 else [size for size in sizes if str(size)[0] == "1"]
