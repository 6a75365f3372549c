"""Signatures of what packages rely on from one another, from the code itself."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any, Final

SIGNATURES: Final = {
    "lowering": (
        "trt_lowering:export_module",
        "trt_lowering:decompose_program",
        "trt_lowering:lower",
        "trt_lowering:begin_lowering",
        "trt_lowering:lower_graph",
        "trt_lowering:keep_whole",
    ),
    "partition": (
        "trt_core:OperatorSupport",
        "trt_core.verdicts:total_verdict",
        "trt_partition:make_plan",
        "trt_partition:split_into_blocks",
        "trt_partition:make_report",
    ),
    "converters": (
        "trt_converters:ConverterSupport",
        "trt_converters:preserve_predicate",
        "trt_converters:build_block",
    ),
    "runtime": (
        "trt_runtime:TRTModule",
        "trt_runtime.engine_file:write_plan",
        "trt_runtime.engine_file:read_plan",
        "trt_runtime:save",
        "trt_runtime:load",
        "trt_runtime.refit:refit_engine",
        "trt_runtime.refit:refit_module",
        "trt_runtime.engine_cache:EngineCache",
    ),
    "core": (
        "trt_core.sizes.expressions:extent_of",
        "trt_core.sizes.expressions:evaluate_extent",
        "trt_core.sizes.ranges:ShapeRanges.from_placeholders",
        "trt_core.sizes.ranges:ShapeRanges.bounds",
        "trt_core.sizes.ranges:ShapeRanges.each",
        "trt_core:read_settings",
    ),
    "portable": (
        "trt_portable.network.serialization:network_to_json",
        "trt_portable.network.serialization:layers_from_json",
        "trt_portable.builder.tactic:Tactic.build",
    ),
}
"""What each group of the page on contracts shows, as `module:name`."""

_WIDTH: Final = 100


def signatures(group: str) -> str:
    """Returns a block of code with the signatures of a group, each under the first line of its docstring."""
    return "```python\n" + "\n\n".join(_describe(place) for place in SIGNATURES[group]) + "\n```"


def _describe(place: str) -> str:
    module, _, name = place.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    text = re.sub(r"<(?:function|class) '?([\w.]+)[^>]*>", r"\1", re.sub(r" at 0x\w+>", ">", text))
    text = re.sub(r"<[\w.]+ object>", "...", text)
    keyword = "class" if inspect.isclass(value) else "def"
    summary = (inspect.getdoc(value) or "").partition("\n")[0]
    line = f"{keyword} {module}.{name}{text}"
    return f"# {summary}\n{line if len(line) <= _WIDTH else _broken(line)}"


def _broken(line: str) -> str:
    """The same with one parameter a line."""
    head, _, rest = line.partition("(")
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(rest):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            parts.append(rest[start:at])
            return f"{head}(\n" + "".join(f"    {part.strip()},\n" for part in parts) + rest[at:]
        if letter == "," and depth == 0:
            parts.append(rest[start:at])
            start = at + 1
    return line
