"""What is in a saved program or plan. Nothing of it runs, and no device is needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import PlanError
from trt_core.files.opening import map_file
from trt_core.sizes.expressions import format_extent
from trt_runtime.container import PLAN, plan_from_memory
from trt_runtime.header import PlanHeader
from trt_runtime.program.document import program_from_bytes
from trt_runtime.program.graph import FixedInput, Leaf, OperatorCall, Program, TensorInput
from trt_runtime.program.layout import PROGRAM, SectionKind, read_sections


def inspect_file(path: Path) -> dict[str, Any]:
    """Describes a file as JSON values.

    Raises:
        PlanError: It is neither a saved program nor a plan, or it is damaged.
        OSError: It cannot be read.
    """
    content = map_file(str(path), "a saved program or plan", "trt_runtime.save or trt_runtime.write_plan")
    data = memoryview(content)
    start = bytes(data[: len(PROGRAM.magic)])
    if start == PLAN.magic:
        header, _ = plan_from_memory(content, where=str(path), check=False)
        return {"kind": "plan", "bytes": data.nbytes, "engines": [_engine(header)]}
    if start != PROGRAM.magic:
        raise PlanError(
            "this is neither a saved program nor a plan",
            where=str(path),
            why=f"it begins with {start!r}",
            hint="give a file that trt_runtime.save or trt_runtime.write_plan wrote",
        )
    sections = read_sections(data)
    for section in sections:
        PROGRAM.verify(data, section)
    (graph,) = (section for section in sections if section.kind is SectionKind.GRAPH)
    program = program_from_bytes(bytes(graph.of(data)))
    sizes = {kind: sum(section.size for section in sections if section.kind is kind) for kind in SectionKind}
    return {
        "kind": "program",
        "bytes": data.nbytes,
        "weight_bytes": sizes[SectionKind.WEIGHTS],
        "plan_bytes": sizes[SectionKind.PLAN],
        "has_host_code": bool(sizes[SectionKind.HOST_CODE]),
        "torch_version": program.torch_version,
        "writer_version": program.writer_version,
        "inputs": _inputs(program),
        "symbols": {name: list(bounds) for name, bounds in program.symbols.items()},
        "engines": [_engine(engine.header) for engine in program.engines],
        "operators": dict(sorted(Counter(_operators(program)).items())),
        "libraries": list(program.libraries),
    }


def to_text(found: dict[str, Any]) -> str:
    """Writes what `inspect_file` returned as people read it."""
    lines = [f"{found['kind']}, {_size(found['bytes'])}"]
    if found["kind"] == "program":
        lines[0] += f" ({_size(found['weight_bytes'])} of weights, {_size(found['plan_bytes'])} of plans)"
        lines.append(f"saved by trt-runtime {found['writer_version']} with PyTorch {found['torch_version']}")
        lines += ["inputs:", *(f"  {text}" for text in found["inputs"])]
        if found["symbols"]:
            lines.append("sizes that vary (min, tuned, max):")
            lines += [f"  {name}: {', '.join(map(str, bounds))}" for name, bounds in found["symbols"].items()]
    lines.append("engines:" if found["engines"] else "no engines")
    for engine in found["engines"]:
        lines.append(
            f"  {engine['name'] or '(no name)'}: {engine['provider']} {engine['provider_version']}, "
            f"{engine['device']}, {engine['layers']} layers, {_size(engine['bytes'])}"
        )
        lines += [f"    takes {text}" for text in engine["inputs"]]
        lines += [f"    returns {text}" for text in engine["outputs"]]
    if found.get("operators"):
        lines.append("operators that run in PyTorch:")
        lines += [f"  {name}: {count}" for name, count in found["operators"].items()]
    if found.get("libraries"):
        lines.append(f"needs the operators of {', '.join(found['libraries'])}")
    if found.get("has_host_code"):
        lines.append("carries compiled code for one kind of host, which is loaded only where it is allowed")
    return "\n".join(lines)


def describe_tensor(value: torch.Tensor) -> str:
    """Type, shape, and the range of values of a tensor."""
    text = f"{dtype_name(value.dtype)} {tuple(value.shape)}"
    if not value.numel():
        return text
    if value.dtype is torch.bool:
        return f"{text}, {int(value.sum())} of {value.numel()} true"
    numbers = value.double()
    return f"{text}, {numbers.min().item():.6g} to {numbers.max().item():.6g}, mean {numbers.mean().item():.6g}"


def _inputs(program: Program) -> list[str]:
    names = program.signature.names
    leaves = program.signature.leaves
    shown = [_leaf(leaf) for leaf in leaves]
    if len(names) == len(leaves):
        return [f"{name}: {text}" for name, text in zip(names, shown, strict=True)]
    return [f"({', '.join(names)}), whose leaves are:", *shown]


def _leaf(leaf: Leaf) -> str:
    if isinstance(leaf, TensorInput):
        extents = [
            f"{dimension.low} to {dimension.high}" if dimension.extent is None else format_extent(dimension.extent)
            for dimension in leaf.shape
        ]
        return f"{dtype_name(leaf.dtype)}[{', '.join(extents)}] on {leaf.device}"
    if isinstance(leaf, FixedInput):
        return f"always {leaf.value!r}"
    return f"any {leaf.kind.__name__}"


def _engine(header: PlanHeader) -> dict[str, Any]:
    return {
        "name": header.name,
        "provider": header.provider,
        "provider_version": header.provider_version,
        "torch_version": header.torch_version,
        "compute_capability": header.compute_capability,
        "device": header.device,
        "layers": header.layer_count,
        "bytes": header.payload_bytes,
        "build_seconds": header.build_seconds,
        "inputs": [str(binding) for binding in header.inputs],
        "outputs": [str(binding) for binding in header.outputs],
    }


def _operators(program: Program) -> list[str]:
    return [f"{step.name}.{step.overload or 'default'}" for step in program.steps if isinstance(step, OperatorCall)]


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
