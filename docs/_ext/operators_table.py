"""The lists of the page on operators, from the registry of converters and from what the conformance tests wrote."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from trt_converters import DYNAMO_CONVERTERS, Converter
from trt_converters.checks import computable, promotable
from trt_core import Reason, operator_name

CONFORMANCE: Final = Path(__file__).parents[1] / "data" / "conformance.json"
_OUTCOMES: Final = ("converted", "decomposed", "refused")
_COMMON: Final[dict[Any, str]] = {
    computable: "int8, uint8 and float8",
    promotable: "float8, and int8 and uint8 where the result is of one of them",
}
"""Checks that many converters have, in fewer words."""
_OPERATOR: Final = re.compile(r"^torch\.ops\.([\w.]+): ")


def converters(escape: Callable[[str], str]) -> str:
    """Returns a table for each family of converters: operators by ATen name, and the calls that each refuses."""
    families = defaultdict(list)
    for target in DYNAMO_CONVERTERS:
        for converter in DYNAMO_CONVERTERS.candidates(target):
            if converter.is_builtin:
                families[converter.function.__module__].append(converter)
    parts = []
    for module in sorted(families):
        title = (inspect.getdoc(importlib.import_module(module)) or module).partition("\n")[0].rstrip(".")
        parts.append(f"### {title.partition(':')[0]}\n\n| operator | calls that run in PyTorch |\n|---|---|")
        rows = {_spelt(converter): escape(_refused(converter)) for converter in families[module]}
        parts += [f"| `{name}` | {text} |" for name, text in sorted(rows.items())]
        parts.append("")
    return "\n".join(parts)


def _spelt(converter: Converter) -> str:
    return operator_name(converter.target).removeprefix("torch.ops.")


def _refused(converter: Converter) -> str:
    """What the docstrings of its checks refuse, and what it is registered for."""
    found = [_COMMON.get(check) or inspect.getdoc(check) or "" for check in converter.checks]
    parts = [" ".join(text.partition("\n\n")[0].split()).removeprefix("Refuses ").rstrip(".") for text in found]
    if not converter.dynamic:
        parts.append("symbolic sizes")
    first, end = converter.versions
    if first > (10, 0):
        parts.append(f"TensorRT before {'.'.join(map(str, first))}")
    if end is not None:
        parts.append(f"TensorRT from {'.'.join(map(str, end))} on")
    return "; ".join(dict.fromkeys(parts))


def operators(escape: Callable[[str], str]) -> str:
    """Returns the table of what became of the samples of PyTorch's operator database."""
    data = json.loads(CONFORMANCE.read_text(encoding="utf-8"))
    taken = f"the first {data['limit']} samples" if data["limit"] else "all samples"
    parts = [
        f"With PyTorch {_release(data)}, where no other is named: {len(data['operators'])} entries of the database, "
        f"{taken} of each in float32 and int64, at most four in other types.\n",
        "| entry | converted | decomposed | PyTorch | why |\n|---|--:|--:|--:|---|",
    ]
    for name, entry in data["operators"].items():
        totals = [sum(counts.get(kind, 0) for counts in entry["types"].values()) for kind in _OUTCOMES]
        why = "; ".join(_why(code, text, escape) for code, text in entry["refusals"].items())
        spelt = f"`{name}` ({_release(entry)})" if "torch" in entry else f"`{name}`"
        parts.append(f"| {spelt} | {' | '.join(str(total or '') for total in totals)} | {why} |")
    return "\n".join(parts)


def _release(entry: Mapping[str, Any]) -> str:
    return str(entry["torch"]).partition("+")[0]


def _why(code: str, text: str, escape: Callable[[str], str]) -> str:
    """A reason by its title, which leads to its section, and what it said of which operator."""
    operator, message = _parted(text)
    reason = Reason.from_code(code)
    said = "" if message == reason.explanation else f", {escape(message)}"
    return f"`{operator}`: [{reason.title.lower()}](../reasons.md#{code.lower()}){said}"


def _parted(text: str) -> tuple[str, str]:
    match = _OPERATOR.match(text)
    return (match.group(1), text[match.end() :]) if match else ("", text)


def example_of(reason: Reason) -> str:
    """Returns what the reason said of some operator, the shortest there is; "" where no sample met it."""
    entries = json.loads(CONFORMANCE.read_text(encoding="utf-8"))["operators"].values()
    texts: list[Any] = [entry["refusals"][reason.code] for entry in entries if reason.code in entry["refusals"]]
    told = [text for text in texts if reason.explanation not in text]
    if not told:
        return ""
    operator, message = _parted(min(told, key=lambda text: (len(text), text)))
    return f"`{operator}`: {message}"
