"""The accuracy report as one HTML page: everything it needs is inside, and it loads nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import jinja2

from trt_frontends.comparison.output_error import HISTOGRAM_LOW

if TYPE_CHECKING:
    from trt_frontends.accuracy.report import AccuracyReport

WIDTH: Final = 640
HEIGHT: Final = 180
_FLOOR: Final = 1e-12


def render_html(report: AccuracyReport) -> str:
    """Returns a report as an HTML page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trt_frontends.accuracy", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("accuracy.html.j2")
    return template.render(
        report=report,
        bars=[_bars(output.error.histogram) for output in report.outputs],
        curve=_curve(report),
        width=WIDTH,
        height=HEIGHT,
        number="{:.3g}".format,
    )


def _bars(histogram: tuple[int, ...]) -> list[dict[str, Any]]:
    """Bars of a histogram of absolute errors: counts on a logarithmic scale."""
    highest = math.log10(max(histogram) + 1) or 1.0
    step = WIDTH / len(histogram)
    bars = []
    for index, count in enumerate(histogram):
        tall = HEIGHT * math.log10(count + 1) / highest
        label = "exact" if index == 0 else f"1e{HISTOGRAM_LOW + index - 1}"
        bars.append(
            {"x": index * step, "y": HEIGHT - tall, "width": step * 0.85, "tall": tall, "label": label, "count": count}
        )
    return bars


def _curve(report: AccuracyReport) -> dict[str, Any] | None:
    """The error along the depth of the engines, on a logarithmic scale."""
    if not report.depth:
        return None
    values = [min(max(point.accumulated, _FLOOR), 1e4) for point in report.depth]
    logs = [math.log10(value) for value in values]
    low, high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
    step = WIDTH / max(len(logs) - 1, 1)
    points = [
        {
            "x": index * step,
            "y": HEIGHT * (high - value) / (high - low),
            "title": f"{point.node} ({point.operator}) in {point.engine}: {point.accumulated:.3g}",
        }
        for index, (value, point) in enumerate(zip(logs, report.depth, strict=True))
    ]
    return {"points": points, "low": low, "high": high}
