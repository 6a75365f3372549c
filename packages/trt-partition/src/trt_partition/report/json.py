"""The report as JSON, after the schema in `report.schema.json`, which is published with the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

from trt_core import PartitionError, Reason, Verdict
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.precision import KeptInFloat32, PrecisionRule
from trt_partition.bridges import Bridge
from trt_partition.plan import BlockKind
from trt_partition.report.data import BlockReport, Communication, NodeReport, ReportData, Transition
from trt_partition.sweep import Sweep, SweepPoint
from trt_partition.values import Group, NumberSpec, TensorSpec, ValueSpec

SCHEMA_VERSION: Final = 1
"""Version of the schema. It rises when a reader of the version before would misread a report."""


def schema() -> dict[str, Any]:
    """Returns the JSON schema of reports."""
    text = resources.files("trt_partition").joinpath("report.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def render_json(report: ReportData, indent: int | None = 2) -> str:
    """Returns a report as JSON. Only finite numbers occur; an infinite `min_block_size` is `"inf"`."""
    return json.dumps(report_data(report), indent=indent, allow_nan=False)


def report_data(report: ReportData) -> dict[str, Any]:
    """Returns a report as JSON values: what is stored, and the figures that follow from it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "total_operators": report.total_operators,
        "supported_operators": report.supported_operators,
        "coverage": report.coverage,
        "min_block_size": _size(report.min_block_size),
        "settings": dict(report.settings),
        "settings_text": report.settings_text,
        "inputs": _value(report.inputs),
        "outputs": _value(report.outputs),
        "profiles": [_value(profile) for profile in report.profiles],
        "blocks": [_block(block) for block in report.blocks],
        "edges": [_edge(edge) for edge in report.edges],
        "transitions": [_edge(edge) for edge in report.transitions],
        "unsupported": dict(report.unsupported),
        "nodes": [_node(node) for node in report.nodes],
        "sweep": {
            "unlimited": report.sweep.unlimited,
            "points": [
                {"min_block_size": point.min_block_size, "engines": point.engines, "operators": point.operators}
                for point in report.sweep.points
            ],
        },
        "recommendations": [
            {
                "kind": item.kind,
                "min_block_size": _size(item.min_block_size),
                "engines": item.engines,
            }
            for item in report.recommendations
        ],
        "bridge": None
        if report.bridge is None
        else {
            "operator": report.bridge.operator,
            "nodes": report.bridge.nodes,
            "engines_before": report.bridge.engines_before,
            "engines_after": report.bridge.engines_after,
        },
    }


def parse_fields(text: str) -> dict[str, Any]:
    """Reads the fields of a `ReportData`.

    Raises:
        PartitionError: The text is not JSON, no report, or of a version that this one cannot read.
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
        return _parse_report(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PartitionError(
            "the JSON is no partition report", why=f"{type(error).__name__}: {error}", hint="validate it by the schema"
        ) from error


def _parse_report(data: dict[str, Any]) -> dict[str, Any]:
    inputs, outputs = _parse_value(data["inputs"]), _parse_value(data["outputs"])
    if not (isinstance(inputs, Group) and isinstance(outputs, Group)):
        raise TypeError("inputs and outputs must be groups")
    profiles = tuple(map(_parse_value, data.get("profiles", ())))
    if not all(isinstance(profile, Group) for profile in profiles):
        raise TypeError("profiles must be groups")
    size = data["min_block_size"]
    return {
        "inputs": inputs,
        "outputs": outputs,
        "nodes": tuple(_parse_node(item) for item in data["nodes"]),
        "blocks": tuple(_parse_block(item) for item in data["blocks"]),
        "edges": tuple(Transition(**item) for item in data["edges"]),
        "min_block_size": float("inf") if size == "inf" else int(size),
        "settings": dict(data["settings"]),
        "settings_text": str(data["settings_text"]),
        "sweep": Sweep(tuple(SweepPoint(**item) for item in data["sweep"]["points"]), bool(data["sweep"]["unlimited"])),
        "bridge": None if data["bridge"] is None else Bridge(**data["bridge"]),
        "profiles": profiles,
    }


def _size(min_block_size: int | float) -> int | str:
    return "inf" if min_block_size == float("inf") else int(min_block_size)


def _edge(edge: Transition) -> dict[str, Any]:
    return {"source": edge.source, "target": edge.target, "tensors": edge.tensors, "bytes": edge.bytes}


def _value(value: ValueSpec) -> dict[str, Any]:
    if isinstance(value, Group):
        return {"kind": value.kind, "items": [_value(item) for item in value.items]}
    if isinstance(value, NumberSpec):
        return {"kind": "Number", "name": value.name, "type": value.kind}
    shape = [extent if isinstance(extent, int) else list(extent) for extent in value.shape]
    return {
        "kind": "Tensor",
        "name": value.name,
        "shape": shape,
        "dtype": value.dtype,
        "item_bytes": value.item_bytes,
    }


def _parse_value(data: dict[str, Any]) -> ValueSpec:
    kind = data["kind"]
    if kind in ("List", "Tuple", "Dict"):
        return Group(kind, tuple(_parse_value(item) for item in data["items"]))
    if kind == "Number":
        return NumberSpec(data["name"], data["type"])
    if kind != "Tensor":
        raise ValueError(f"unknown kind of value {kind!r}")
    shape = tuple(extent if isinstance(extent, int) else _range(extent) for extent in data["shape"])
    return TensorSpec(data["name"], shape, data["dtype"], data["item_bytes"])


def _range(extent: list[int]) -> tuple[int, int, int]:
    low, best, high = extent
    return low, best, high


def _parse_leaf(data: dict[str, Any]) -> TensorSpec | NumberSpec:
    value = _parse_value(data)
    if isinstance(value, Group):
        raise TypeError("a block takes and returns tensors, not groups")
    return value


def _block(block: BlockReport) -> dict[str, Any]:
    return {
        "name": block.name,
        "kind": block.kind.value,
        "operators": block.operators,
        "computations": block.computations,
        "operators_by_kind": dict(block.operators_by_kind),
        "inputs": [_value(value) for value in block.inputs],
        "outputs": [_value(value) for value in block.outputs],
        "parameters": block.parameters,
        "parameter_bytes": block.parameter_bytes,
        "flops": block.flops,
        "memory_bytes": block.memory_bytes,
        "nodes": list(block.nodes),
    }


def _parse_block(data: dict[str, Any]) -> BlockReport:
    return BlockReport(
        **{
            **data,
            "kind": BlockKind(data["kind"]),
            "inputs": tuple(_parse_leaf(item) for item in data["inputs"]),
            "outputs": tuple(_parse_leaf(item) for item in data["outputs"]),
            "nodes": tuple(data["nodes"]),
        }
    )


def _node(node: NodeReport) -> dict[str, Any]:
    return {
        "op": node.op,
        "name": node.name,
        "location": node.location,
        "block": node.block,
        "inputs": list(node.inputs),
        "is_convertible": node.is_convertible,
        "flops": node.flops,
        "code": node.verdict.code,
        "message": node.verdict.message,
        "source": node.verdict.source,
        **({"converter": node.converter} if node.converter else {}),
        **({"kept_in_float32": _kept(node.kept_in_float32)} if node.kept_in_float32 else {}),
        **({"communication": _communication(node.communication)} if node.communication else {}),
        **({"weight_in_floats": node.weight_in_floats} if node.weight_in_floats else {}),
    }


def _parse_node(data: dict[str, Any]) -> NodeReport:
    code = data["code"]
    reason = Reason.from_code(code) if code else None
    return NodeReport(
        op=data["op"],
        name=data["name"],
        location=data["location"],
        block=data["block"],
        inputs=tuple(data["inputs"]),
        is_convertible=data["is_convertible"],
        verdict=Verdict(reason is None, reason, data["message"], data["source"]),
        flops=data["flops"],
        converter=data.get("converter", ""),
        kept_in_float32=_parse_kept(data.get("kept_in_float32")),
        communication=_parse_communication(data.get("communication")),
        weight_in_floats=data.get("weight_in_floats", ""),
    )


def _communication(moved: Communication) -> dict[str, Any]:
    return {"group": moved.group, "ranks": list(moved.ranks), "sent_bytes": moved.sent_bytes}


def _parse_communication(data: dict[str, Any] | None) -> Communication | None:
    return None if data is None else Communication(data["group"], tuple(data["ranks"]), data["sent_bytes"])


def _kept(kept: KeptInFloat32) -> dict[str, str]:
    return {"rule": kept.rule.value, "why": kept.why}


def _parse_kept(data: dict[str, str] | None) -> KeptInFloat32 | None:
    return None if data is None else KeptInFloat32(PrecisionRule(data["rule"]), data["why"])
