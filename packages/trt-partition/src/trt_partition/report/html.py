"""The report as one HTML page: everything it needs is inside, and it loads nothing.

Its pictures are computed here: the blocks with what passes between them, and the chart of `min_block_size`.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trt_core import Reason
from trt_core.wording import human_bytes, printable, scaled
from trt_partition.costs import RULE
from trt_partition.plan import BlockKind
from trt_partition.report.data import BlockReport, ReportData
from trt_partition.report.json import report_data
from trt_partition.sweep import Sweep

if TYPE_CHECKING:
    import jinja2


def render_html(report: ReportData, *, title: str, reasons: str) -> str:
    """Returns a report as an HTML page.

    Args:
        report: The report.
        title: Heading of the page.
        reasons: Address of the page about reason codes; each code is an anchor on it, `#trt-f001`. Empty for the
            report's own section about them.
    """
    page = _template().render(
        title=title,
        reasons=reasons,
        report=report,
        picture=draw_blocks(report),
        chart=draw_sweep(report.sweep, report.total_operators, report.min_block_size),
        rule=RULE,
        titles={reason.code: reason.title for reason in Reason},
        met=[reason for reason in Reason if reason.code in {node.verdict.code for node in report.torch_nodes}],
        data=_embedded(report),
        flops=sum(node.flops for node in report.nodes),
        crossing=sum(edge.bytes for edge in report.transitions),
    )
    return printable(page)


def human_flops(count: int) -> str:
    """Returns a number of operations with a decimal unit, `3.6 GFLOP`."""
    return scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _embedded(report: ReportData) -> str:
    """The figures that the page's script needs, safe inside a script element."""
    data: dict[str, Any] = report_data(report)
    index = {node.name: position for position, node in enumerate(report.nodes)}
    nodes = [
        [
            printable(node["op"].removeprefix("torch.ops.")),
            printable(node["name"]),
            printable(node["location"]),
            node["block"],
            [index[name] for name in node["inputs"] if name in index],
            node["code"],
            printable(node["message"]),
            printable(node["source"]),
            node["flops"],
        ]
        for node in data["nodes"]
    ]
    blocks = {block["name"]: [index[name] for name in block["nodes"]] for block in data["blocks"]}
    text = json.dumps({"nodes": nodes, "blocks": blocks}, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _template() -> jinja2.Template:
    import jinja2  # costs more than the whole package otherwise

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trt_partition", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(bytes=human_bytes, flops=human_flops)
    return environment.get_template("report.html.j2")


BOX_WIDTH: Final = 340
BOX_HEIGHT: Final = 52
_GAP: Final = 40
_END_WIDTH: Final = 140
_END_HEIGHT: Final = 30
_LEFT: Final = 12
_LANE: Final = 16
_MOST_LANES: Final = 10
_MOST_ARCS: Final = 3000


@dataclass(frozen=True)
class Box:
    """A block, or the inputs or outputs of the model. Lengths are in pixels."""

    name: str
    kind: str
    x: float
    y: float
    width: float
    height: float
    block: BlockReport | None


@dataclass(frozen=True)
class Arrow:
    """An edge: a straight line between neighbours, an arc beside the boxes otherwise."""

    path: str
    label_x: float
    label_y: float
    bytes: int
    tensors: int
    source: str
    target: str
    crosses: bool


@dataclass(frozen=True)
class Picture:
    """A drawing of a partitioned graph.

    Attributes:
        width: Width in pixels.
        height: Height in pixels.
        boxes: Top to bottom.
        arrows: Edges between boxes.
        hidden: How many arcs were left out because no reader could tell them apart.
    """

    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    hidden: int


def draw_blocks(report: ReportData) -> Picture:
    """Places the blocks below each other, and the edges between them."""
    boxes = _place(report)
    index = {box.name: position for position, box in enumerate(boxes)}
    crossing = {(edge.source, edge.target) for edge in report.transitions}
    arrows: list[Arrow] = []
    hidden = lanes = arcs = 0
    for edge in report.edges:
        start, end = index[edge.source], index[edge.target]
        lane = 0 if end - start == 1 else min(max(1, (end - start).bit_length()), _MOST_LANES)
        arcs += lane > 0
        if lane and arcs > _MOST_ARCS:
            hidden += 1
            continue
        lanes = max(lanes, lane)
        path, x, y = _route(boxes[start], boxes[end], lane)
        arrows.append(
            Arrow(
                path=path,
                label_x=x,
                label_y=y,
                bytes=edge.bytes,
                tensors=edge.tensors,
                source=edge.source,
                target=edge.target,
                crosses=(edge.source, edge.target) in crossing,
            )
        )
    width = _LEFT + BOX_WIDTH + lanes * _LANE + 110
    height = boxes[-1].y + boxes[-1].height + _LEFT
    return Picture(width, height, boxes, tuple(arrows), hidden)


def _place(report: ReportData) -> tuple[Box, ...]:
    center = _LEFT + BOX_WIDTH / 2
    y = float(_LEFT)
    boxes = [Box("inputs", "end", center - _END_WIDTH / 2, y, _END_WIDTH, _END_HEIGHT, None)]
    y += _END_HEIGHT + _GAP
    for block in report.blocks:
        kind = "engine" if block.kind is BlockKind.ENGINE else "torch"
        boxes.append(Box(block.name, kind, _LEFT, y, BOX_WIDTH, BOX_HEIGHT, block))
        y += BOX_HEIGHT + _GAP
    boxes.append(Box("outputs", "end", center - _END_WIDTH / 2, y, _END_WIDTH, _END_HEIGHT, None))
    return tuple(boxes)


def _route(start: Box, end: Box, lane: int) -> tuple[str, float, float]:
    """Returns the path of an arrow and where its label goes."""
    if lane == 0:
        x = start.x + start.width / 2
        top, bottom = start.y + start.height, end.y
        return f"M{x:g} {top:g}V{bottom - 6:g}", x + 10, (top + bottom) / 2 + 4
    right = _LEFT + BOX_WIDTH + lane * _LANE
    from_x, from_y = start.x + start.width, start.y + start.height * 0.7
    to_x, to_y = end.x + end.width, end.y + end.height * 0.3
    path = f"M{from_x:g} {from_y:g}C{right:g} {from_y:g} {right:g} {from_y:g} {right:g} {from_y + 20:g}"
    path += f"V{to_y - 20:g}C{right:g} {to_y:g} {right:g} {to_y:g} {to_x + 6:g} {to_y:g}"
    return path, right + 6, (from_y + to_y) / 2


WIDTH: Final = 640
PANEL_HEIGHT: Final = 130
_PLOT_LEFT: Final = 56
_PLOT_RIGHT: Final = 16


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
    scale = (WIDTH - _PLOT_LEFT - _PLOT_RIGHT) / math.log(end)

    def across(size: float) -> float:
        return _PLOT_LEFT + math.log(size) * scale

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
        left=_PLOT_LEFT,
        right=WIDTH - _PLOT_RIGHT,
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
