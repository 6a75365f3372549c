"""The partition report: what was decided about a graph, and how to read it as text, JSON and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from trt_core.shown_report import ShownReport
from trt_partition.report.data import ReportData
from trt_partition.report.html import render_html
from trt_partition.report.json import parse_fields, render_json
from trt_partition.report.text import render_text


@dataclass(frozen=True, repr=False)
class PartitionReport(ShownReport, ReportData):
    """What a partition plan makes of a graph, with its renderings; see `ReportData` for what it holds."""

    @property
    def headline(self) -> str:
        """The report in one line."""
        engines, refused = len(self.engines), len(self.unsupported)
        return (
            f"{self.coverage:.2%} coverage of {self.total_operators} operators, {engines} engine{'s' * (engines != 1)}"
            + (f", {refused} kind{'s' * (refused != 1)} of operators in PyTorch" if refused else "")
        )

    def to_text(self) -> str:
        """Returns the report as text."""
        return render_text(self)

    def to_json(self, indent: int | None = 2) -> str:
        """Returns the report as JSON, see `trt_partition.report.json.schema`."""
        return render_json(self, indent)

    @staticmethod
    def from_json(text: str) -> PartitionReport:
        """Reads what `to_json` wrote.

        Raises:
            PartitionError: The text is no report, or one of a later version.
        """
        return PartitionReport(**parse_fields(text))

    def to_html(self, *, title: str = "Partition report", reasons: str = "reasons.html") -> str:
        """Returns the report as one HTML page that needs no other file.

        Args:
            title: Heading of the page.
            reasons: Where the page about reason codes is, for links.
        """
        return render_html(self, title=title, reasons=reasons)
