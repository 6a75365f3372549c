"""The accuracy report: what `verify` found, as data, and as text, JSON and HTML."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Final

import jinja2

from trt_core.wording import ShownReport, printable
from trt_frontends.comparison.output_error import HISTOGRAM_LOW, OutputError, jsonable


@dataclass(frozen=True)
class OutputAccuracy:
    """How far one output of the compiled model is from eager's.

    Attributes:
        name: Where the output stands in the result, such as `[0]` or `['logits']`; empty for a single tensor.
        dtype: Its type.
        error: Compiled against eager, over all inputs.
        worst_input: Name of the inputs with the largest error.
        compiled_from_exact, eager_from_exact: `OutputError.scaled` of compiled and of eager against eager in float64;
            None where float64 was not affordable.
    """

    name: str
    dtype: str
    error: OutputError
    worst_input: str
    compiled_from_exact: float | None = None
    eager_from_exact: float | None = None

    @property
    def nearer(self) -> str:
        """Which of the two is nearer to the exact result: `compiled`, `eager`, `equal`, or empty when unknown."""
        if self.compiled_from_exact is None or self.eager_from_exact is None:
            return ""
        if math.isclose(self.compiled_from_exact, self.eager_from_exact, rel_tol=0.05, abs_tol=1e-15):
            return "equal"
        return "compiled" if self.compiled_from_exact < self.eager_from_exact else "eager"


@dataclass(frozen=True)
class DepthError:
    """How far a node of an engine is from PyTorch's value of it.

    Attributes:
        node: Name of the node.
        operator: What it computes.
        engine: Name of the engine that it is in.
        accumulated: Scaled error when the engine starts from PyTorch's inputs.
    """

    node: str
    operator: str
    engine: str
    accumulated: float


@dataclass(frozen=True, repr=False)
class AccuracyReport(ShownReport):
    """How far a compiled model is from eager PyTorch.

    Attributes:
        model: Name of the model.
        provider: What built and ran the engines.
        tolerance: Largest scaled error that passes.
        inputs: Names of the inputs that were compared.
        outputs: One entry for each tensor that the model returns.
        depth: Errors inside the engines, in the order of the graph; empty unless asked for.
        skipped_exact: Why nothing was compared with float64; empty when it was.
    """

    model: str
    provider: str
    tolerance: float
    inputs: tuple[str, ...]
    outputs: tuple[OutputAccuracy, ...]
    depth: tuple[DepthError, ...] = ()
    skipped_exact: str = ""

    @property
    def worst(self) -> float:
        """The largest scaled error of any output."""
        return max((output.error.scaled for output in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether every output is within the tolerance."""
        return self.worst <= self.tolerance

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [
            f"{self.model}: {'within' if self.passed else 'BEYOND'} tolerance, "
            f"worst error {self.worst:.3g} of the largest magnitude, allowed {self.tolerance:.3g}",
            f"{len(self.inputs)} inputs ({', '.join(self.inputs)}), {self.provider}",
        ]
        for output in self.outputs:
            error = output.error
            lines += [
                "",
                f"output{output.name} ({output.dtype}), worst on {output.worst_input}",
                f"  absolute  max {error.max_abs:.3e}  mean {error.mean_abs:.3e}",
                f"  relative  max {error.max_rel:.3e}  mean {error.mean_rel:.3e}  scaled {error.scaled:.3e}",
                f"  cosine {error.cosine:.9f}  signal to noise {error.snr_db:.1f} dB",
            ]
            if any(error.nans) or any(error.infinities):
                lines.append(
                    f"  NaN {error.nans[0]} (eager {error.nans[1]}), "
                    f"infinite {error.infinities[0]} (eager {error.infinities[1]})"
                )
            if output.nearer:
                lines.append(
                    f"  from float64: compiled {output.compiled_from_exact:.3e}, eager {output.eager_from_exact:.3e}"
                    + (f"; {output.nearer} is nearer" if output.nearer != "equal" else "; equally near")
                )
        if self.skipped_exact:
            lines += ["", f"not compared with float64: {self.skipped_exact}"]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values; what is infinite or no number is a string."""
        data = jsonable(dataclasses.asdict(self))
        assert isinstance(data, dict)
        for output, entry in zip(self.outputs, data["outputs"], strict=True):
            entry["nearer"] = output.nearer
        return {"format": 1, "passed": self.passed, "worst": jsonable(self.worst), **data}

    def to_json(self) -> str:
        """Returns the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_html(self) -> str:
        """Returns the report as one HTML page with plots; it loads nothing."""
        return render_html(self)


# As HTML -------------------------------------------------------------------------------------------------------------


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
    page = template.render(
        report=report,
        bars=[_bars(output.error.histogram) for output in report.outputs],
        curve=_curve(report),
        width=WIDTH,
        height=HEIGHT,
        number="{:.3g}".format,
    )
    return printable(page)


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
