"""Partitioning: which part of a graph runs in engines, which in PyTorch, and the report that says why."""

from __future__ import annotations

from trt_core import OperatorSupport
from trt_partition.bridges import Bridge
from trt_partition.plan import Block, BlockKind, PartitionPlan, find_obstacles
from trt_partition.planner import make_plan
from trt_partition.report.data import BlockReport, Communication, NodeReport, Transition
from trt_partition.report.partition_report import (
    NodeChange,
    PartitionReport,
    ReportDiff,
    diff_reports,
    make_report,
    require_report_path,
    save_report,
    write_report,
)
from trt_partition.split import Boundaries, Boundary, find_boundaries, split_into_blocks
from trt_partition.support_rules import compose_support, get_graph_converter_support, modules_in, require_known_modules
from trt_partition.sweep import Recommendation, Sweep, SweepPoint
from trt_partition.values import Group, NumberSpec, TensorSpec

__all__ = [
    "Block",
    "BlockKind",
    "BlockReport",
    "Boundaries",
    "Boundary",
    "Bridge",
    "Communication",
    "Group",
    "NodeChange",
    "NodeReport",
    "NumberSpec",
    "OperatorSupport",
    "PartitionPlan",
    "PartitionReport",
    "Recommendation",
    "ReportDiff",
    "Sweep",
    "SweepPoint",
    "TensorSpec",
    "Transition",
    "compose_support",
    "diff_reports",
    "find_boundaries",
    "find_obstacles",
    "get_graph_converter_support",
    "make_plan",
    "make_report",
    "modules_in",
    "require_known_modules",
    "require_report_path",
    "save_report",
    "split_into_blocks",
    "write_report",
]
