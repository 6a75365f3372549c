"""What was measured to choose precision, and what came of it: data, text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trt_core.reports import DataReport


@dataclass(frozen=True)
class GroupPrecision:
    """A group of operators.

    Attributes:
        name: What its operators have in common.
        nodes: Their names.
        flops: Their floating-point operations, at the sizes that engines are tuned for.
        dtype: The type that was chosen.
        error_alone: Error of the output with this group reduced and nothing else; None where it was not measured,
            because everything may be reduced.
        why: Why it stays in float32; empty where it is reduced.
    """

    name: str
    nodes: tuple[str, ...]
    flops: int
    dtype: str
    error_alone: float | None
    why: str


@dataclass(frozen=True, repr=False)
class PrecisionReport(DataReport):
    """How precision was chosen. Errors are relative to the largest magnitude of an output.

    Attributes:
        max_error: The largest error that was asked for.
        dtype: The type that computation was reduced to; `float32` where it was not.
        error: Error of the compiled model; None where none was built.
        expected_error: Error of the same choice when PyTorch runs it.
        error_in_float32: Error with nothing reduced.
        errors_when_all_reduced: Error with everything reduced, by type.
        reference: What errors are measured from: `float64`, or `float32` and why.
        inputs: Names of the inputs that errors were measured on.
        groups: The groups of operators, in the order of the graph.
        measurements: How many choices were measured.
        engines_tried: How many of them as engines.
        conclusion: What came of it, one sentence.
        setting: The choice as settings of `compile`, to be written in place of the search.
        setting_of_graphs: The choice as options of `torch.compile`, whose graphs number their nodes anew: of a kind of
            operator in a module every call stays in float32 that stays so for one, so that more may than was measured.
    """

    DERIVED: ClassVar = ("reduced_share",)

    max_error: float
    dtype: str
    error: float | None
    expected_error: float
    error_in_float32: float
    errors_when_all_reduced: tuple[tuple[str, float], ...]
    reference: str
    inputs: tuple[str, ...]
    groups: tuple[GroupPrecision, ...]
    measurements: int
    engines_tried: int
    conclusion: str
    setting: str
    setting_of_graphs: str

    def __deepcopy__(self, memo: dict[int, object]) -> PrecisionReport:
        return self  # nothing in it can change, so copies of a compiled module share it

    @property
    def kept_in_float32(self) -> tuple[GroupPrecision, ...]:
        """The groups that are not reduced."""
        return tuple(group for group in self.groups if group.why)

    @property
    def reduced_share(self) -> float:
        """Floating-point operations in the reduced type over all, 0 to 1."""
        total = sum(group.flops for group in self.groups)
        reduced = sum(group.flops for group in self.groups if not group.why)
        return reduced / total if total else 0.0

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        error = self.expected_error if self.error is None else self.error
        lines = [
            f"{self.conclusion}: error {error:.3g}, allowed {self.max_error:.3g}, from {self.reference}",
            f"{self.reduced_share:.1%} of the work is reduced; {self.measurements} choices measured on "
            f"{len(self.inputs)} inputs, {self.engines_tried} of them as engines",
        ]
        lines += [f"error of {dtype} everywhere: {error:.3g}" for dtype, error in self.errors_when_all_reduced]
        if self.kept_in_float32 and self.dtype != "float32":
            lines += ["", "kept in float32:"]
            lines += [f"  {group.name}: {group.why}" for group in self.kept_in_float32]
            lines += ["", f"to compile the same without measuring: {self.setting}"]
        return "\n".join(lines) + "\n"
