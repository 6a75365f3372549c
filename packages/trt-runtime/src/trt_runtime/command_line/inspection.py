"""What is in a saved program or plan. Nothing of it runs, and no device is needed."""

from __future__ import annotations

import math
import mmap
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError, PlanError
from trt_core.files import records
from trt_core.files.foreign import foreign_file
from trt_core.files.opening import map_file
from trt_core.sizes.expressions import format_extent
from trt_core.wording import human_bytes
from trt_runtime.engine_file import PLAN, plan_from_memory
from trt_runtime.exchange import device_of
from trt_runtime.header import PlanHeader
from trt_runtime.program.document import program_from_bytes
from trt_runtime.program.fields import OWNER
from trt_runtime.program.graph import Program, operator_calls
from trt_runtime.program.interface import SizeNames, inputs_of, outputs_of
from trt_runtime.program.model_facts import ModelFacts
from trt_runtime.program_file import PROGRAM, SectionKind, graph_in, programs_inside, read_sections
from trt_runtime.token_choice import TokenChoice

MOST_BEYOND: Final = 1 << 28
"""Bytes that a tensor may take beyond those that it lies in, once it is written out."""

_PART: Final = 1 << 24
"""Elements of which a copy in another type is made at once."""


def inspect_file(path: Path, content: mmap.mmap | None = None) -> dict[str, Any]:
    """Describes a file as JSON values.

    Args:
        path: The file.
        content: What it holds, where that was read already (`content_of`).

    Raises:
        PlanError: It is neither a saved program nor a plan, or it is damaged.
        OSError: It cannot be read.
    """
    content = content_of(path) if content is None else content
    data = memoryview(content)
    start = bytes(data[: len(PROGRAM.magic)])
    if start == PLAN.magic:
        header, _ = plan_from_memory(content, where=str(path), check=False)
        return {"kind": "plan", "bytes": data.nbytes, "engines": [_engine(header)]}
    if start != PROGRAM.magic:
        found = foreign_file(path)
        raise PlanError(
            "this is neither a saved program nor a plan",
            where=str(path),
            why=f"it is {found.what}" if found else f"it begins with {start!r}",
            hint=found.hint if found else "give a file that trt_runtime.save or trt_runtime.write_plan wrote",
        )
    return {"kind": "program", "bytes": data.nbytes, **_program(data)}


def content_of(path: Path) -> mmap.mmap:
    """What a saved program or a plan holds, opened once.

    Raises:
        PlanError: It is empty, or no regular file.
        OSError: It cannot be read.
    """
    return map_file(str(path), "a saved program or plan", "trt_runtime.save or trt_runtime.write_plan")


def _program(data: memoryview) -> dict[str, Any]:
    """Describes a program and those inside of it."""
    sections = read_sections(data)
    for section in sections:
        PROGRAM.verify(data, section)
    program = program_from_bytes(graph_in(data, sections))
    facts = ModelFacts.of(program.metadata)
    sizes = SizeNames(program.signature, program.symbols, facts)
    device = device_of(program)
    bytes_of = {kind: sum(section.size for section in sections if section.kind is kind) for kind in SectionKind}
    return {
        "weight_bytes": bytes_of[SectionKind.WEIGHTS],
        "plan_bytes": bytes_of[SectionKind.PLAN],
        "has_host_code": bool(bytes_of[SectionKind.HOST_CODE]),
        "torch_version": program.torch_version,
        "writer_version": program.writer_version,
        "rank": _rank_of(program),
        "inputs": [spec.to_json() for spec in inputs_of(program.signature, sizes)],
        "outputs": [spec.to_json() for spec in outputs_of(program, sizes, device)],
        "symbols": {name: list(bounds) for name, bounds in program.symbols.items()},
        "engines": [_engine(engine.header) for engine in program.engines],
        "operators": dict(sorted(Counter(_operators(program)).items())),
        "libraries": list(program.libraries),
        "plugins": list(facts.plugins),
        "generation": _generation(program),
        "inside": [_program(part) for part in programs_inside(data, sections)],
    }


def _rank_of(program: Program) -> int | None:
    """The rank that saved a program which talks to others; None for one that does not."""
    owner = program.metadata.get(OWNER)
    if owner is None:
        return None
    return int(owner) if re.fullmatch("[0-9]{1,9}", owner) else 0  # whoever made the file may write anything


def require_one_process(found: dict[str, Any], path: str) -> None:
    """Refuses the program of one rank of several, which nobody starts where programs are served.

    Args:
        found: What `inspect_file` says of it.
        path: Of its file.

    Raises:
        InputError: It is such.
    """
    if (rank := found.get("rank")) is not None:
        raise InputError(
            "the program talks to other ranks, and is served by one process",
            where=path,
            why=f"it is the program of rank {rank}",
            hint="give a program of the whole model",
        )


def _generation(program: Program) -> dict[str, Any] | None:
    """What a program generates text with: limits, choice of tokens, size of caches; None where it generates none."""
    from trt_runtime.generation.limits import METADATA, GenerationLimits

    try:
        limits = GenerationLimits.from_text(program.metadata[METADATA])
    except (KeyError, PlanError):
        return None
    held = (
        program.tensors[number - program.first_tensor] for number in program.written if number >= program.first_tensor
    )
    sizes = [(tensor.shape, math.prod(tensor.shape) * tensor.dtype.itemsize) for tensor in held]
    a_token = sum(size / (shape[0] * shape[2]) for shape, size in sizes if len(shape) == 4 and size)
    caches = {
        "cache_tensors": len(sizes),
        "cache_bytes": sum(size for _, size in sizes),
        "cache_bytes_per_token": a_token,
    }
    return {**asdict(limits), **caches}


def to_text(found: dict[str, Any]) -> str:
    """Writes what `inspect_file` returned as people read it."""
    lines = [f"{found['kind']}, {human_bytes(found['bytes'])}"]
    if found["kind"] == "program":
        lines[0] += f" ({human_bytes(found['weight_bytes'])} of weights, {human_bytes(found['plan_bytes'])} of plans)"
        lines.append(f"saved by trt-runtime {found['writer_version']} with PyTorch {found['torch_version']}")
    if (rank := found.get("rank")) is not None:
        lines.append(f"talks to other ranks: it is the program of rank {rank}")
    if (generation := found.get("generation")) is not None:
        lines += _generation_lines(generation)
    lines += _contents(found)
    for inner in found.get("inside", ()):
        what = f"{human_bytes(inner['weight_bytes'])} of weights, {human_bytes(inner['plan_bytes'])} of plans"
        lines += ["", f"the encoder ({what})" if generation else f"a program inside ({what})", *_contents(inner)]
    return "\n".join(lines)


def _generation_lines(found: dict[str, Any]) -> list[str]:
    rows = f"{found['max_batch']} row{'s' * (found['max_batch'] > 1)}"
    chosen = {name: value for name, value in found["choice"].items() if value != getattr(TokenChoice(), name)}
    lines = [
        "generates text:",
        f"  {rows} of {found['max_length']} tokens, prompts in pieces of {found['prefill_chunk']}",
        f"  caches: {found['cache_tensors']} tensors, {human_bytes(found['cache_bytes'])}, "
        f"{human_bytes(round(found['cache_bytes_per_token']))} a token",
        f"  rows end with {', '.join(map(str, found['eos_token_ids'])) or 'no token'}, and are filled up with "
        f"{found['pad_token_id']}",
    ]
    if chosen:
        lines.append("  tokens are chosen with " + ", ".join(f"{name}={value}" for name, value in chosen.items()))
    if found["assisted_tokens"] > 1:
        lines.append(f"  takes guesses of {found['assisted_tokens'] - 1} tokens")
    if (source := found["source"]) is not None:
        most = f" of up to {source['max_length']} tokens" if source["max_length"] else ""
        lines.append(f"  follows from {', '.join(source['inputs'])}{most}")
    return lines


def _contents(found: dict[str, Any]) -> list[str]:
    """What a program or plan takes, returns and runs, in lines."""
    lines: list[str] = []
    if "operators" in found:
        lines += ["inputs:", *(f"  {_shown(entry)}" for entry in found["inputs"])]
        lines += ["outputs:", *(f"  {_shown(entry)}" for entry in found["outputs"])]
        if sizes := _sizes(found):
            lines.append("sizes that vary (min, tuned, max):")
            lines += [f"  {name}: {text}" for name, text in sizes.items()]
    lines.append("engines:" if found["engines"] else "no engines")
    for engine in found["engines"]:
        lines.append(
            f"  {engine['name'] or '(no name)'}: {engine['provider']} {engine['provider_version']}, "
            f"{engine['device']}, {engine['layers']} layers, {human_bytes(engine['bytes'])}"
        )
        lines += [f"    takes {_binding(entry)}" for entry in engine["inputs"]]
        lines += [f"    returns {_binding(entry)}" for entry in engine["outputs"]]
    if found.get("operators"):
        lines.append("operators that run in PyTorch:")
        lines += [f"  {name}: {count}" for name, count in found["operators"].items()]
    if found.get("plugins"):
        lines.append(f"engines need the plugins {', '.join(found['plugins'])}")
    if found.get("libraries"):
        lines.append(f"needs the operators of {', '.join(found['libraries'])}")
    if found.get("has_host_code"):
        lines.append("carries compiled code for one kind of host, which is loaded only where it is allowed")
    return lines


def describe_tensor(value: torch.Tensor) -> str:
    """Type, shape, and the range of values of a tensor."""
    text = f"{dtype_name(value.dtype)} {tuple(value.shape)}"
    if not value.numel():
        return text
    if value.dtype is torch.bool:
        return f"{text}, {int(value.sum())} of {value.numel()} true"
    parts = (part.double() for part in _parts(value))
    least, most, total = torch.stack([torch.stack([one.min(), one.max(), one.sum()]) for one in parts]).unbind(1)
    mean = total.sum() / value.numel()
    return f"{text}, {least.min().item():.6g} to {most.max().item():.6g}, mean {mean.item():.6g}"


def require_memory(name: str, value: torch.Tensor) -> None:
    """Refuses a result that is far larger when it is written out than it is in memory, such as an expanded one.

    Raises:
        InputError: It is.
    """
    beyond = value.nbytes - value.untyped_storage().nbytes()
    if beyond > MOST_BEYOND:
        raise InputError(
            f"{name} of shape {tuple(value.shape)} takes {beyond} bytes more when it is written out than in memory",
            why=f"a program may say so of a single element, and more than {MOST_BEYOND} are not made of it",
        )


def _parts(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor piece by piece, so that no copy of all of it is made."""
    if value.numel() <= _PART:
        yield value
    elif len(value) == 1:
        yield from _parts(value[0])
    else:
        for part in value.split(max(len(value) * _PART // value.numel(), 1)):
            yield from _parts(part)


def _shown(entry: dict[str, Any]) -> str:
    """One input or output as people read it."""
    if "always" in entry:
        return f"{entry['name']}: always {entry['always']!r}"
    if "number" in entry:
        return f"{entry['name']}: any {entry['number']}"
    extents = ", ".join(_extent(extent) for extent in entry["shape"])
    return f"{entry['name']}: {entry['dtype']}[{extents}] on {entry['device']}"


def _extent(extent: Any) -> str:
    if not isinstance(extent, dict):
        return str(extent)
    if extent["name"]:
        return str(extent["name"])
    return "?" if extent["min"] is None else f"{extent['min']} to {extent['max']}"


def _sizes(found: dict[str, Any]) -> dict[str, str]:
    """The sizes of inputs that vary, by name, each once."""
    entries = [extent for entry in found["inputs"] for extent in entry.get("shape", ()) if isinstance(extent, dict)]
    return {entry["name"]: f"{entry['min']}, {entry['opt']}, {entry['max']}" for entry in entries if entry["name"]}


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
        "inputs": list(map(records.write, header.inputs)),
        "outputs": list(map(records.write, header.outputs)),
    }


def _binding(entry: dict[str, Any]) -> str:
    return f"{entry['name']}: {entry['dtype']}[{', '.join(map(format_extent, entry['shape']))}]"


def _operators(program: Program) -> list[str]:
    return [f"{call.name}.{call.overload or 'default'}" for call in operator_calls(program.steps)]
