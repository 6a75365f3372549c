"""What changed between two reports of a model: after an upgrade, another setting, a new converter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trt_core.held_arguments import held_to_signature
from trt_core.wording import printable
from trt_partition.report.data import NodeReport
from trt_partition.report.partition_report import PartitionReport


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


@dataclass(frozen=True)
class ReportDiff:
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

    def to_dict(self) -> dict[str, Any]:
        """Returns the changes as JSON values."""
        return {
            "figures": {name: list(pair) for name, pair in self.figures.items()},
            "unsupported": {name: list(pair) for name, pair in self.unsupported.items()},
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "moved": [vars(change) for change in self.moved],
            "added": list(self.added),
            "removed": list(self.removed),
        }

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
