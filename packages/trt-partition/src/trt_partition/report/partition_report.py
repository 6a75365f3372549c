"""The partition report: what was decided about a graph, as text, JSON and HTML, and where it goes.

Users compare its texts, so wording and order of the lines are fixed. JSON follows the schema in `report.schema.json`,
which is published with the package. The HTML page has everything it needs inside, and loads nothing; its pictures, the
blocks with what passes between them and the chart of `min_block_size`, are computed here.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from trt_core import SUPPORTED, CompilationSettings, PartitionError, Reason, Verdict, logger, operator_name
from trt_core.attributes import is_state
from trt_core.files import records, typed
from trt_core.files.replacing import replacing
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.held_arguments import held_to_signature
from trt_core.precision import kept_in_float32
from trt_core.process_groups import group_of, is_collective, terms_of
from trt_core.provenance import node_location
from trt_core.reports import DataReport, ShownReport
from trt_core.sizes.ranges import ShapeRanges
from trt_core.verdicts import IN_FLOATS
from trt_core.wording import counted, human_bytes, printable, scaled
from trt_partition.bridges import find_bridge
from trt_partition.costs import RULE, estimate_flops, estimate_traffic
from trt_partition.plan import Block, BlockKind, PartitionPlan
from trt_partition.report.data import SIZE, BlockReport, Communication, NodeReport, ReportData, Transition, count_names
from trt_partition.split import Boundaries, find_boundaries
from trt_partition.sweep import Sweep
from trt_partition.values import Group, NumberSpec, SpecReader, TensorSpec, regroup, regroup_arguments

if TYPE_CHECKING:
    import jinja2


SCHEMA_VERSION: Final = 1
"""Version of the schema. It rises when a reader of the version before would misread a report."""


def schema() -> dict[str, Any]:
    """Returns the JSON schema of reports."""
    text = resources.files("trt_partition").joinpath("report.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def report_data(report: ReportData) -> dict[str, Any]:
    """Returns a report as JSON values: what is stored, and the figures that follow from it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "total_operators": report.total_operators,
        "supported_operators": report.supported_operators,
        "coverage": report.coverage,
        **records.write(report),
        "transitions": list(map(records.write, report.transitions)),
        "unsupported": dict(report.unsupported),
        "recommendations": [
            {**vars(item), "min_block_size": SIZE.write(item.min_block_size)} for item in report.recommendations
        ],
    }


def render_html(report: ReportData, *, title: str, reasons: str) -> str:
    """Returns a report as an HTML page.

    Args:
        report: The report.
        title: Heading of the page.
        reasons: Address of the page about reason codes; each code is an anchor on it, `#trt-f001`. Empty for the
            report's own section about them.
    """
    page = page_template("trt_partition", "report.html.j2").render(
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
def page_template(package: str, name: str) -> jinja2.Template:
    """Returns the template of a report's page, from the `templates` of a package; what it is given is escaped."""
    import jinja2  # costs more than the whole package otherwise

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(bytes=human_bytes, flops=human_flops)
    return environment.get_template(name)


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
    edge: Transition
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
        arrows.append(Arrow(path, x, y, edge, crosses=(edge.source, edge.target) in crossing))
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


@dataclass(frozen=True, repr=False)
class PartitionReport(ShownReport, ReportData):
    """What a partition plan makes of a graph, with its renderings; see `ReportData` for what it holds."""

    @property
    def headline(self) -> str:
        """The report in one line."""
        refused = len(self.unsupported)
        return (
            f"{self.coverage:.2%} coverage of {counted(self.total_operators, 'operator')}, "
            f"{counted(len(self.engines), 'engine')}"
            + (f", {counted(refused, 'kind')} of operators in PyTorch" if refused else "")
        )

    def to_text(self) -> str:
        """Returns the report as text."""
        return printable("\n".join(_lines(self)) + "\n")

    def to_json(self, indent: int | None = 2) -> str:
        """Returns the report as JSON, see `trt_partition.report.partition_report.schema`; there are no infinities."""
        return json.dumps(report_data(self), indent=indent, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> PartitionReport:
        """Reads what `to_json` wrote.

        Raises:
            PartitionError: The text is no report, or one of a later version.
        """
        content = text.encode(errors="surrogatepass")  # what is no text is told as such
        try:
            data = parse_json(content, max_bytes=len(content))
        except BadJson as error:
            raise PartitionError("the text is not JSON", why=str(error), hint="give what to_json wrote") from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise PartitionError(
                f"the report has schema version {version!r:.80}, this version reads {SCHEMA_VERSION}",
                hint="give a file that a dry run wrote, and read it with the version that wrote it",
            )
        try:
            stored = {
                name: data[name] for name in records.forms_of(PartitionReport) if name in data or name != "profiles"
            }
            report = records.read(PartitionReport, {"profiles": [], **stored}, "the report")
            _check(report)
            return report
        except (KeyError, TypeError, ValueError) as error:
            raise PartitionError(
                "the JSON is no partition report",
                why=f"{type(error).__name__}: {error}",
                hint="validate it by the schema",
            ) from error

    def to_html(self, *, title: str = "Partition report", reasons: str = "") -> str:
        """Returns the report as one HTML page that needs no other file.

        Args:
            title: Heading of the page.
            reasons: Where the page about reason codes is, for links; empty for the report's own section about them.
        """
        return render_html(self, title=title, reasons=reasons)


def _check(report: ReportData) -> None:
    """Sees whether nodes and blocks that a report names are there, once, and whether its sizes are some.

    Raises:
        BadField: One is not.
    """
    sizes = [point.min_block_size for point in report.sweep.points]
    if report.min_block_size < 1 or sorted({*sizes}) != sizes or not all(sizes):
        raise typed.BadField("the report", "sizes of blocks are 1 or larger, and ascend")
    if not all(point.engines for point in report.sweep.points):
        raise typed.BadField("the report", "a size that leaves no engine is no point of a sweep")
    nodes, blocks = ([part.name for part in parts] for parts in (report.nodes, report.blocks))
    ends = {"inputs", "outputs", *blocks}
    if len(set(nodes)) < len(nodes) or len(ends) < len(blocks) + 2:
        raise typed.BadField("the report", "two nodes or blocks have one name")
    held = {name for block in report.blocks for name in block.nodes}
    if unknown := [
        *(held - set(nodes)),
        *({end for edge in report.edges for end in (edge.source, edge.target)} - ends),
    ]:
        raise typed.BadField("the report", f"there is no {min(unknown)!r:.80}, which it names")


def _lines(report: ReportData) -> Iterator[str]:
    rule = "+" * 50
    yield f"{rule} Dry-Run Results for Graph {rule}"
    yield ""
    yield (
        f"The graph consists of {report.total_operators} Total Operators, of which {report.supported_operators} "
        f"operators are supported, {report.coverage * 100:.2f}% coverage"
    )
    if report.unsupported:
        yield ""
        yield (
            "The following ops are currently unsupported or excluded from conversion, "
            "and are listed with their op-count in the graph:"
        )
        for operator, count in report.unsupported.items():
            yield f" {operator}: {count}"
    yield from _nodes("are currently set to run in Torch", report.torch_nodes, _reason)
    if report.torch_nodes:
        yield "Note: Some of the above nodes may be supported, but were not included in a TRT graph by the partitioner"
    yield from _nodes("are kept in float32", report.kept_in_float32, lambda node: node.kept_in_float32)
    code = Reason.WEIGHT_IN_FLOATS.code
    yield from _nodes(
        "read weights that the model stores in few bits, as floats",
        report.weights_in_floats,
        lambda node: f"{code}: {node.weight_in_floats}",
    )
    yield from _nodes("communicate with other processes", report.collectives, lambda node: node.communication)
    yield ""
    yield f"Compiled with: {report.settings_text}"
    yield ""
    yield "  Graph Structure:"
    yield ""
    yield f"   Inputs: {report.inputs}"
    for index, profile in enumerate(report.profiles):
        yield f"   Optimization Profile #{index}: {profile}"
    yield from _structure(report)
    yield "    ..."
    yield f"   Outputs: {report.outputs}"
    yield ""
    if not report.engines:
        yield "Aggregate stats not available since no TRT Engines were generated."
        return
    sizes = [engine.operators for engine in report.engines]
    yield f"  {'-' * 25} Aggregate Stats {'-' * 25}"
    yield ""
    yield f"   Average Number of Operators per TRT Engine: {round(sum(sizes) / len(sizes), 2)}"
    yield f"   Fewest Operators in a TRT Engine: {min(sizes)}"
    yield f"   Most Operators in a TRT Engine: {max(sizes)}"
    yield ""
    yield f"  {'*' * 10} Recommendations {'*' * 10}"
    yield ""
    for recommendation in report.recommendations:
        yield f"   - {recommendation}"


def _nodes(what: str, nodes: Sequence[NodeReport], said: Callable[[NodeReport], object]) -> Iterator[str]:
    """Lines of a section about nodes, none where there are no such nodes."""
    if nodes:
        yield ""
        yield f"The following nodes {what}:"
    for node in nodes:
        yield f"Node: {node.op}, with layer location: {node.location}"
        yield f"  {said(node)}"


def _structure(report: ReportData) -> Iterator[str]:
    number = 0
    for block in report.blocks:
        yield "    ..."
        if block.kind is BlockKind.TORCH:
            yield f"    PyTorch Block - Submodule name: {block.name}"
            continue
        number += 1
        yield from _engine(number, block)


def _engine(number: int, engine: BlockReport) -> Iterator[str]:
    yield f"    TRT Engine #{number} - Submodule name: {engine.name}"
    yield f"     Engine Inputs: {_listing(engine.inputs)}"
    yield f"     Number of Operators in Engine: {engine.operators}"
    yield f"     Engine Outputs: {_listing(engine.outputs)}"


def _listing(specs: Sequence[TensorSpec | NumberSpec]) -> str:
    return f"List[{', '.join(map(str, specs))}]"


def _reason(node: NodeReport) -> str:
    verdict = node.verdict
    message = " ".join(verdict.message.split())
    source = f" ({verdict.source})" if verdict.source else ""
    return f"{verdict.code}: {message}{source}"


@held_to_signature
def write_report(report: PartitionReport, dryrun: bool | str) -> None:
    """Publishes a report as the `dryrun` setting asks.

    Args:
        report: The report.
        dryrun: True prints the text. A path prints it and saves the report: as JSON or HTML when the path ends in
            `.json` or `.html`, as text otherwise. An existing file is kept, and a warning says so. False sends the
            text to the `torch_tensorrt` logger at DEBUG.

    Raises:
        PartitionError: The file cannot be written.
    """
    if dryrun is False:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", report.to_text())
        return
    sys.stdout.write(report.to_text())
    if isinstance(dryrun, str):
        save_report(report, dryrun)


@held_to_signature
def save_report(report: PartitionReport, path: str | os.PathLike[str]) -> bool:
    """Saves a report under a path that does not exist yet, wholly or not at all.

    Args:
        report: The report.
        path: Where to; its extension decides the format, see `write_report`.

    Returns:
        Whether the file was written; False when there was one already, which a warning on the logger says.

    Raises:
        PartitionError: The file cannot be written.
    """
    require_report_path(path)
    target = Path(path)
    text = _render(report, target.suffix.lower())
    try:
        with replacing(target, is_new=True) as file:
            file.write(text.encode())
    except FileExistsError:
        logger.warning("%s exists already and is kept; remove it to save the partition report there", target)
        return False
    except OSError as error:
        raise PartitionError(
            "the partition report cannot be saved", where=str(target), why=str(error), hint="give another path"
        ) from error
    return True


@held_to_signature
def require_report_path(path: str | os.PathLike[str]) -> None:
    """Refuses a path under which no file can be, before the work that the report tells of.

    Raises:
        PartitionError: It is a directory, or lies in none.
    """
    target = Path(path)
    if target.is_dir():
        why = "it is a directory"
    elif not target.parent.is_dir():
        why = f"there is no directory {target.parent}"
    else:
        return
    raise PartitionError(
        "the partition report cannot be saved", where=str(target), why=why, hint="give the path of a file"
    )


def _render(report: PartitionReport, suffix: str) -> str:
    if suffix == ".json":
        return report.to_json()
    if suffix in (".html", ".htm"):
        return report.to_html()
    return report.to_text()


@dataclass(frozen=True)
class NodeChange:
    """A node that moved between PyTorch and an engine, or runs in PyTorch for another reason.

    Attributes:
        op: Name of its operator.
        location: Module path and node name.
        before: Reason code before; empty when an engine ran it.
        after: Reason code after; empty when an engine runs it.
    """

    op: str
    location: str
    before: str
    after: str


@dataclass(frozen=True, repr=False)
class ReportDiff(DataReport):
    """What changed from one report to another.

    Attributes:
        figures: (before, after) of the figures that differ: `total_operators`, `supported_operators`, `coverage`,
            `engines`, `torch_nodes`, `crossing_bytes`.
        unsupported: (before, after) counts of refused operators that differ, by name.
        settings: (before, after) of the settings that differ, by name; None for one that a side does not have.
        moved: Nodes that both reports have and that changed sides or reasons.
        added: Locations of nodes that only the second report has.
        removed: Locations of nodes that only the first report has.
    """

    figures: Mapping[str, tuple[float, float]]
    unsupported: Mapping[str, tuple[int, int]]
    settings: Mapping[str, tuple[Any, Any]]
    moved: tuple[NodeChange, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return any((self.figures, self.unsupported, self.settings, self.moved, self.added, self.removed))

    @property
    def headline(self) -> str:
        """How much changed, in one line."""
        counts = [f"{len(value)} {name}" for name, value in vars(self).items() if value]
        return ", ".join(counts) or "No differences."

    def to_text(self) -> str:
        """Returns the changes as text, one per line; `No differences.` when there are none."""
        if not self:
            return "No differences.\n"
        lines: list[str] = []
        _section(lines, "Figures", [f"{n}: {_show(a)} -> {_show(b)}" for n, (a, b) in self.figures.items()])
        _section(lines, "Settings", [f"{n}: {a} -> {b}" for n, (a, b) in self.settings.items()])
        _section(lines, "Refused operators", [f"{n}: {a} -> {b}" for n, (a, b) in self.unsupported.items()])
        _section(lines, "Nodes that moved", [_describe(change) for change in self.moved])
        _section(lines, "New nodes", list(self.added))
        _section(lines, "Nodes that are gone", list(self.removed))
        return printable("\n".join(lines)) + "\n"


@held_to_signature
def diff_reports(before: PartitionReport, after: PartitionReport) -> ReportDiff:
    """Compares two reports.

    Nodes are matched by location and operator, so the reports should be of the same model.
    """
    old, new = _by_place(before), _by_place(after)
    moved = tuple(
        NodeChange(node.op, node.location, old[place].verdict.code, node.verdict.code)
        for place, node in new.items()
        if place in old and old[place].verdict.code != node.verdict.code
    )
    return ReportDiff(
        figures=_differing(_figures(before), _figures(after), 0),
        unsupported=_differing(before.unsupported, after.unsupported, 0),
        settings=_differing(before.settings, after.settings, None),
        moved=moved,
        added=tuple(node.location for place, node in new.items() if place not in old),
        removed=tuple(node.location for place, node in old.items() if place not in new),
    )


def _figures(report: PartitionReport) -> dict[str, float]:
    return {
        "total_operators": report.total_operators,
        "supported_operators": report.supported_operators,
        "coverage": report.coverage,
        "engines": len(report.engines),
        "torch_nodes": len(report.torch_nodes),
        "crossing_bytes": sum(edge.bytes for edge in report.transitions),
    }


def _by_place(report: PartitionReport) -> dict[tuple[str, str], NodeReport]:
    return {(node.location, node.op): node for node in report.nodes}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any], missing: Any) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys((*before, *after))
    pairs = {name: (before.get(name, missing), after.get(name, missing)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _section(lines: list[str], title: str, entries: list[str]) -> None:
    if entries:
        lines.append(f"{title}:")
        lines.extend(f"  {entry}" for entry in entries)


def _describe(change: NodeChange) -> str:
    sides = [f"PyTorch ({code})" if code else "engine" for code in (change.before, change.after)]
    return f"{change.op} at {change.location}: {sides[0]} -> {sides[1]}"


def _show(figure: float) -> str:
    return f"{figure:.4f}" if isinstance(figure, float) else str(figure)


@held_to_signature
def make_report(
    graph_module: fx.GraphModule,
    plan: PartitionPlan,
    settings: CompilationSettings,
    ranges: ShapeRanges | None = None,
    origin: Callable[[fx.Node], str] | None = None,
) -> PartitionReport:
    """Describes what a plan makes of a graph.

    Args:
        graph_module: The graph that the plan was made for, not split.
        plan: What `make_plan` returned.
        settings: The settings that the plan was made with.
        ranges: What the symbols in shapes may be; by default what the graph was exported with.
        origin: Names the package whose converter takes a node, where it is not the built-in one; else an empty string.

    Raises:
        PartitionError: The plan was made for another graph.
    """
    graph = graph_module.graph
    ranges = ranges or ShapeRanges.from_placeholders(graph_module)
    reader = SpecReader(ranges)
    boundaries = find_boundaries(graph_module, plan)
    nodes = _describe_nodes(graph, plan, reader, origin)
    flops = {node.name: node.flops for node in nodes}
    writer = _BlockDescriber(graph_module, boundaries, reader, flops)
    inputs, outputs = _describe_interface(graph, reader)
    return PartitionReport(
        inputs=inputs,
        outputs=outputs,
        nodes=nodes,
        blocks=tuple(writer.describe(block) for block in plan.blocks),
        edges=_describe_edges(plan, boundaries, writer),
        min_block_size=settings.min_block_size,
        settings=settings.to_dict(),
        settings_text=str(settings),
        sweep=plan.sweep,
        bridge=find_bridge(graph_module, plan, settings),
        profiles=tuple(_describe_interface(graph, SpecReader(profile))[0] for profile in ranges.profiles),
    )


def _describe_nodes(
    graph: fx.Graph, plan: PartitionPlan, reader: SpecReader, origin: Callable[[fx.Node], str] | None
) -> tuple[NodeReport, ...]:
    homes = {name: block.name for block in plan.blocks for name in block.nodes}
    return tuple(
        NodeReport(
            op=operator_name(node.target),
            name=node.name,
            location=node_location(node),
            block=homes.get(node.name, ""),
            inputs=tuple(operand.name for operand in node.all_input_nodes if operand.op == "call_function"),
            is_convertible=plan.verdicts[node.name].supported,
            verdict=_final_verdict(plan, node.name),
            flops=estimate_flops(node, reader.opt),
            converter=origin(node) if origin and plan.verdicts[node.name].supported else "",
            kept_in_float32=kept_in_float32(node),
            weight_in_floats=node.meta.get(IN_FLOATS, ""),
            communication=_communication(node, reader) if is_collective(node) else None,
        )
        for node in graph.nodes
        if node.op == "call_function"
    )


def _communication(node: fx.Node, reader: SpecReader) -> Communication:
    """Describes a collective."""
    group = group_of(node)
    ranks = () if group is None else group.ranks
    name = str(node.kwargs.get("group_name", node.args[-1] if node.args else "")) if group is None else group.name
    return Communication(name, ranks, estimate_traffic(node, reader.opt, len(ranks)), terms_of(node))


def _final_verdict(plan: PartitionPlan, name: str) -> Verdict:
    refusal = plan.refusal(name)
    return SUPPORTED if refusal is None else refusal


class _BlockDescriber:
    """Describes blocks one by one; metadata is read once per value."""

    def __init__(
        self, graph_module: fx.GraphModule, boundaries: Boundaries, reader: SpecReader, flops: Mapping[str, int]
    ) -> None:
        self._nodes = {node.name: node for node in graph_module.graph.nodes}
        self._boundaries = boundaries
        self._reader = reader
        self._flops = flops
        self._specs: dict[fx.Node, TensorSpec | NumberSpec] = {}

    def spec(self, node: fx.Node) -> TensorSpec | NumberSpec:
        """Describes what a node returns."""
        if node not in self._specs:
            described = self._reader.describe(node.meta.get("val"), node.name)
            self._specs[node] = NumberSpec(node.name, str(described)) if isinstance(described, Group) else described
        return self._specs[node]

    def describe(self, block: Block) -> BlockReport:
        """Describes a block."""
        boundary = self._boundaries.blocks[block.name]
        members = [self._nodes[name] for name in block.nodes]
        inputs = tuple(self.spec(node) for node in boundary.inputs)
        outputs = tuple(self.spec(node) for node in boundary.outputs)
        count, size = self._weigh(members)
        return BlockReport(
            name=block.name,
            kind=block.kind,
            operators=len(members),
            computations=block.computations,
            operators_by_kind=count_names(operator_name(node.target) for node in members),
            inputs=inputs,
            outputs=outputs,
            parameters=count,
            parameter_bytes=size,
            flops=sum(self._flops[node.name] for node in members),
            memory_bytes=sum(spec.bytes for spec in (*inputs, *outputs)) + size,
            nodes=block.nodes,
        )

    def _weigh(self, members: Iterable[fx.Node]) -> tuple[int, int]:
        """Returns elements and bytes of the attributes that nodes use, each attribute once."""
        used = {
            operand.target: operand.meta.get("val")
            for node in members
            for operand in node.all_input_nodes
            if operand.op == "get_attr" and not is_state(operand)
        }
        tensors = [value for value in used.values() if isinstance(value, torch.Tensor)]
        counts = [math.prod(self._reader.opt(extent) for extent in value.shape) for value in tensors]
        return sum(counts), sum(count * value.dtype.itemsize for count, value in zip(counts, tensors, strict=True))


def _describe_edges(plan: PartitionPlan, boundaries: Boundaries, writer: _BlockDescriber) -> tuple[Transition, ...]:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    takers = [(block.name, boundaries.blocks[block.name].inputs) for block in plan.blocks]
    takers.append(("outputs", boundaries.root.inputs))
    for target, taken in takers:
        for node in taken:
            source = boundaries.homes[node].name if node in boundaries.homes else "inputs"
            tensors, size = totals.get((source, target), (0, 0))
            totals[source, target] = tensors + 1, size + writer.spec(node).bytes
    return tuple(Transition(source, target, *total) for (source, target), total in totals.items())


def _describe_interface(graph: fx.Graph, reader: SpecReader) -> tuple[Group, Group]:
    """Describes inputs and outputs of the model, grouped as the model has them."""
    info = getattr(getattr(graph, "_codegen", None), "pytree_info", None)
    inputs = [reader.describe(node.meta.get("val"), node.name) for node in graph.nodes if node.op == "placeholder"]
    results: Any = graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        results = (results,)
    outputs = [
        reader.describe(result.meta.get("val"), result.name) if isinstance(result, fx.Node) else reader.describe(result)
        for result in results
    ]
    return (
        regroup_arguments(inputs, getattr(info, "in_spec", None)),
        regroup(outputs, getattr(info, "out_spec", None)),
    )
