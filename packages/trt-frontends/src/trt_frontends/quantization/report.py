"""The quantization report: what was quantized, and why the rest was not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from trt_core.wording import ShownReport
from trt_frontends.quantization.config import QuantizationConfig
from trt_frontends.quantization.layers import Choice

REPORT: Final = "quantization_report"
"""Key of the report in `program.graph_module.meta`."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A product of the model.

    Attributes:
        location: Module path and node name.
        operator: Name of the operator.
        quantized: Whether it is quantized.
        scales: Scales of its activations, in the order of the operator's parameters.
        code: Reason code, where it is not quantized.
        why: The reason in words, where it is not.
    """

    location: str
    operator: str
    quantized: bool
    scales: tuple[float, ...] = ()
    code: str = ""
    why: str = ""


@dataclass(frozen=True, repr=False)
class QuantizationReport(ShownReport):
    """What `quantize` did.

    Attributes:
        dtype: Type that was asked for.
        observer: How ranges were chosen.
        samples: How many inputs ranges were measured on.
        layers: Every product of the model, in the order of the graph.
        float_bytes: Bytes of the program's tensors before.
        quantized_bytes: Bytes of them now; integers of 4 bits count half a byte.
    """

    dtype: str
    observer: str
    samples: int
    layers: tuple[QuantizedLayer, ...]
    float_bytes: int
    quantized_bytes: int

    @property
    def quantized(self) -> tuple[QuantizedLayer, ...]:
        """The layers that are quantized."""
        return tuple(layer for layer in self.layers if layer.quantized)

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [
            f"{len(self.quantized)} of {len(self.layers)} products quantized to {self.dtype} "
            f"({self.observer}, {self.samples} inputs)",
            f"weights {self.float_bytes} bytes before, {self.quantized_bytes} now",
        ]
        for layer in self.layers:
            if layer.quantized:
                shown = f"scales {', '.join(f'{scale:.4g}' for scale in layer.scales)}" if layer.scales else "weights"
            else:
                shown = f"stays as it is, {layer.code}: {layer.why}"
            lines.append(f"  {layer.location} ({layer.operator}): {shown}")
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {"format": 1, **asdict(self)}

    def to_json(self) -> str:
        """Returns the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


def make_report(
    choices: Sequence[Choice],
    operands: dict[str, tuple[float, ...]],
    config: QuantizationConfig,
    samples: int,
    before: torch.export.ExportedProgram,
    after: torch.export.ExportedProgram,
) -> QuantizationReport:
    """Returns the report of a quantization.

    Args:
        choices: What was decided about each product.
        operands: Scales of activations, by location of the layer.
        config: What was asked for.
        samples: How many inputs ranges were measured on.
        before, after: The program before and after.
    """
    layers = tuple(
        QuantizedLayer(
            location=choice.location,
            operator=choice.operator,
            quantized=choice.layer is not None,
            scales=operands.get(choice.location, ()),
            code=choice.verdict.code,
            why=choice.verdict.message,
        )
        for choice in choices
    )
    scheme = config.scheme
    small = sum(value.nbytes for name, value in after.state_dict.items() if "_quantized" in name)
    total = _bytes(after) - (small // 2 if scheme.bits == 4 else 0)
    observer = config.observer.value if not isinstance(config.observer, str) else config.observer
    return QuantizationReport(scheme.value, observer, samples, layers, _bytes(before), total)


def _bytes(program: torch.export.ExportedProgram) -> int:
    held = [*program.state_dict.values(), *program.constants.values()]
    return sum(value.nbytes for value in held if isinstance(value, torch.Tensor))
