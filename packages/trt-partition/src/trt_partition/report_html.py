"""The report as one HTML page: everything it needs is inside, and it loads nothing."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from trt_core import Reason
from trt_partition.block_picture import draw_blocks
from trt_partition.computation import RULE
from trt_partition.report_json import report_data
from trt_partition.sweep_chart import draw_sweep

if TYPE_CHECKING:
    import jinja2

    from trt_partition.report import PartitionReport


def render_html(report: PartitionReport, *, title: str, reasons: str) -> str:
    """Returns a report as an HTML page.

    Args:
        report: The report.
        title: Heading of the page.
        reasons: Address of the page about reason codes; each code is an anchor on it, `#trt-f001`.
    """
    return _template().render(
        title=title,
        reasons=reasons,
        report=report,
        picture=draw_blocks(report),
        chart=draw_sweep(report.sweep, report.total_operators, report.min_block_size),
        rule=RULE,
        titles={reason.code: reason.title for reason in Reason},
        data=_embedded(report),
        flops=sum(node.flops for node in report.nodes),
        crossing=sum(edge.bytes for edge in report.transitions),
    )


def human_bytes(size: int) -> str:
    """Returns a size with a binary unit, `1.5 MiB`."""
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def human_flops(count: int) -> str:
    """Returns a number of operations with a decimal unit, `3.6 GFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < base:
            return f"{_short(value)} {unit}"
        value /= base
    return f"{_short(value)} {units[-1]}"


def _short(value: float) -> str:
    """Three significant digits, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _embedded(report: PartitionReport) -> str:
    """The figures that the page's script needs, safe inside a script element."""
    data: dict[str, Any] = report_data(report)
    index = {node.name: position for position, node in enumerate(report.nodes)}
    nodes = [
        [
            node["op"].removeprefix("torch.ops."),
            node["name"],
            node["location"],
            node["block"],
            [index[name] for name in node["inputs"] if name in index],
            node["code"],
            node["message"],
            node["source"],
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
