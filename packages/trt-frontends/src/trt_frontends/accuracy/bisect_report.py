"""What a search for wrong operators found, as data and as text."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trt_core.dtypes import dtype_name
from trt_core.wording import ShownReport
from trt_frontends.comparison.output_error import jsonable


class Stage(enum.Enum):
    """Where an error arises."""

    NONE = "nowhere"
    LOWERING = "lowering"
    PRECISION = "reduced precision"
    ENGINES = "engines"


Remedy = Mapping[str, tuple[str, ...]]
"""Settings that are collections of names, with the names to add to each."""


@dataclass(frozen=True)
class TensorStatistics:
    """What an operand looked like.

    Attributes:
        name: Node that made it.
        dtype, shape: Its type and extents.
        lowest, highest, mean: Of its finite elements.
        nans, infinities: How many elements are not finite.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    lowest: float
    highest: float
    mean: float
    nans: int
    infinities: int


@dataclass(frozen=True)
class Culprit:
    """An operator that makes the output wrong when it runs in an engine, or in a reduced type.

    Attributes:
        node, operator: Its node and what it computes.
        engine: The engine it is in.
        module, source: The module and the line of the model's code that made it; empty when unknown.
        layers: Layers that its converter makes, `name (type)`.
        error_alone: Scaled error of an engine of this operator alone, given PyTorch's inputs; None when it does not
            convert alone. For reduced precision, the error of the model's output when it alone is reduced.
        inputs: Its operands.
    """

    node: str
    operator: str
    engine: str
    module: str
    source: str
    layers: tuple[str, ...]
    error_alone: float | None
    inputs: tuple[TensorStatistics, ...]


@dataclass(frozen=True)
class EngineError:
    """The error of the model's output when one engine runs as an engine, and every other one in PyTorch."""

    name: str
    error: float


@dataclass(frozen=True, repr=False)
class BisectReport(ShownReport):
    """What a search for wrong operators found.

    Attributes:
        model: Name of the model.
        tolerance: Largest scaled error that is right.
        stage: Where the error arises.
        error_before: Error of the compiled model.
        error_after: Error with the proposed setting, found by compiling with it; for `Stage.LOWERING`, the error of the
            lowered graph in PyTorch.
        lowering_passes: The passes that make the lowered graph wrong; none for other stages.
        reduced_to: The type that loses too much, for `Stage.PRECISION`.
        engines: The error that each engine makes.
        culprits: The operators.
        remedy: The setting that avoids the error.
        complete: Whether the culprits are all.
        builds: How many engines the search built.
        in_engines: Where lowering or a reduced type is to blame: what engines make wrong as well, compared with the
            lowered graph as PyTorch runs it. None where they make nothing wrong.
    """

    model: str
    tolerance: float
    stage: Stage
    error_before: float
    error_after: float
    lowering_passes: tuple[str, ...] = ()
    reduced_to: str = ""
    engines: tuple[EngineError, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    remedy: Remedy = field(default_factory=dict)
    complete: bool = True
    builds: int = 0
    in_engines: BisectReport | None = None

    @property
    def lowering_pass(self) -> str:
        """The first pass that makes the lowered graph wrong; empty where lowering is right."""
        return next(iter(self.lowering_passes), "")

    @property
    def setting(self) -> str:
        """The setting that avoids the error, as it is written in a call; empty when there is none."""
        return ", ".join(f"{name}={{{', '.join(map(repr, values))}}}" for name, values in self.remedy.items())

    @property
    def is_proved(self) -> bool:
        """Whether the proposed setting was run and makes the output right."""
        return bool(self.culprits) and self.error_after <= self.tolerance

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [f"{self.model}: error {self.error_before:.3g} of the largest magnitude, allowed {self.tolerance:.3g}"]
        if self.stage is Stage.NONE:
            lines.append("nothing is wrong")
        elif self.stage is Stage.LOWERING:
            passes = ", ".join(map(repr, self.lowering_passes))
            lines.append(f"the error arises in lowering, with pass {passes}, before any engine is built")
        elif self.stage is Stage.PRECISION:
            lines.append(f"the error is what {self.reduced_to} loses; no engine is to blame")
            lines += self._culprit_lines("reduced alone")
        else:
            lines += [f"engine {engine.name} alone: {engine.error:.3g}" for engine in self.engines]
            lines += self._culprit_lines("alone, with the same inputs")
        text = "\n".join(lines) + "\n"
        if self.in_engines is not None:
            text += (
                "\nengines are wrong as well, compared with the lowered graph in PyTorch\n" + self.in_engines.to_text()
            )
        return text

    def _culprit_lines(self, alone: str) -> list[str]:
        lines = []
        for culprit in self.culprits:
            place = ", ".join(part for part in (culprit.module, culprit.source) if part)
            engine = f" in {culprit.engine}" if culprit.engine else ""
            lines += ["", f"{culprit.operator} ({culprit.node}){engine}" + (f", {place}" if place else "")]
            if culprit.error_alone is not None:
                lines.append(f"  {alone}: {culprit.error_alone:.3g}")
            if culprit.layers:
                lines.append(f"  layers: {', '.join(culprit.layers)}")
            for item in culprit.inputs:
                lines.append(
                    f"  {item.name}: {item.dtype}{list(item.shape)} from {item.lowest:.3g} to {item.highest:.3g}, "
                    f"mean {item.mean:.3g}"
                    + (f", {item.nans} NaN" if item.nans else "")
                    + (f", {item.infinities} infinite" if item.infinities else "")
                )
        lines.append("")
        if not self.complete:
            lines.append(f"these {len(self.culprits)} are not all: the error is spread over the model")
        if self.setting:
            verb = "makes it right" if self.is_proved else "does not make it right"
            lines.append(f"{self.setting} {verb}: error {self.error_after:.3g} when run")
        return lines

    def to_json(self) -> str:
        """Returns the report as JSON text; what is infinite or no number is a string."""
        return json.dumps(jsonable({"format": 1, **self._data()}), indent=2) + "\n"

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = dataclasses.asdict(self)
        engines = None if self.in_engines is None else self.in_engines._data()
        more = {"stage": self.stage.value, "in_engines": engines, "setting": self.setting, "is_proved": self.is_proved}
        return {**data, **more}


def describe_tensor(name: str, tensor: torch.Tensor) -> TensorStatistics:
    """Returns the statistics of a tensor."""
    numbers = tensor.detach().cpu().double() if not tensor.is_complex() else tensor.detach().cpu().abs().double()
    finite = numbers[numbers.isfinite()]
    return TensorStatistics(
        name=name,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        lowest=float(finite.min()) if finite.numel() else 0.0,
        highest=float(finite.max()) if finite.numel() else 0.0,
        mean=float(finite.mean()) if finite.numel() else 0.0,
        nans=int(numbers.isnan().sum()),
        infinities=int(numbers.isinf().sum()),
    )
