"""Where boxes and arrows of the picture of a graph's blocks go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trt_partition.plan import BlockKind
from trt_partition.report_entries import BlockReport

if TYPE_CHECKING:
    from trt_partition.report import PartitionReport

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


def draw_blocks(report: PartitionReport) -> Picture:
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


def _place(report: PartitionReport) -> tuple[Box, ...]:
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
