"""The names of a package for its reference page: what people call comes first, the rest of what it exports after it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

_REST: Final = "Everything else"

API: Final[dict[str, Mapping[str, tuple[str, ...]]]] = {
    "trt_frontends": {
        "See, compile, save": ("explain", "compile", "save", "load", "Input", "CompilationSettings"),
        "Text, pipelines, models whose weights change": (
            "compile_generation",
            "compile_pipeline",
            "MutableModule",
            "refit_module_weights",
        ),
        "Are the results right": ("verify", "bisect", "quantize"),
        "`torch.compile`": ("optimize", "model_report"),
    },
    "trt_runtime": {
        "Load and run": ("load", "LoadedProgram", "cuda_graphs", "weight_streaming", "profile_layers"),
        "Generate text": ("TextGenerator",),
        "New weights": ("refit_module",),
        "Engines and plans": ("TRTModule", "PlanHeader", "Binding", "write_plan", "read_plan"),
    },
    "trt_converters": {
        "Write a converter": ("converter", "ConversionContext", "Call", "plugin_from_operator", "plugin_status"),
        "The registry": ("ConverterRegistry", "Converter"),
    },
    "trt_partition": {
        "Read a report": ("PartitionReport", "NodeReport", "BlockReport", "diff_reports", "save_report"),
        "Decide and split": ("make_plan", "split_into_blocks", "make_report", "PartitionPlan"),
    },
    "trt_lowering": {
        "Write a pass": ("GraphPass", "PassResult", "run_passes", "installed_passes"),
        "Export and lower": ("export_module", "lower"),
    },
    "trt_core": {
        "What people give": ("Input", "CompilationSettings", "Device", "set_provider"),
        "Why something runs in PyTorch": ("Verdict", "Reason", "OperatorSupport"),
        "Errors": ("TrtError",),
    },
}
"""Groups of names by package, in the order of the page; what a package exports beyond these follows them."""

_DOCUMENTED_AS: Final = {
    "trt_frontends.bisect": "trt_frontends.accuracy.bisect",
    "trt_frontends.model_report": "trt_frontends.torch_compile.model_report.model_report",
    "trt_frontends.ModelReport": "trt_frontends.torch_compile.model_report.ModelReport",
    "trt_frontends.quantize": "trt_frontends.quantization.quantize",
    "trt_frontends.QuantizationConfig": "trt_frontends.quantization.QuantizationConfig",
    "trt_frontends.verify": "trt_frontends.accuracy.verify",
    "trt_frontends.AccuracyReport": "trt_frontends.accuracy.AccuracyReport",
    "trt_frontends.BisectReport": "trt_frontends.accuracy.BisectReport",
}
"""Names that stand in a section of their own on the same page."""

_HOMES: Final = ("trt_core", "trt_partition", "trt_runtime")
"""Packages that document what others export too."""


def api(package: str) -> str:
    """Returns a table of what people call, and the documentation of all names of a package, in that order.

    Raises:
        ValueError: A group names what the package does not export.
    """
    module = importlib.import_module(package)
    groups = dict(API[package])
    named = [name for names in groups.values() for name in names]
    if unknown := set(named) - set(module.__all__):
        raise ValueError(f"{package} does not export {', '.join(sorted(unknown))}")
    rest = [name for name in module.__all__ if name not in named and _is_documented(getattr(module, name))]
    rows = [
        f"| {{py:obj}}`{name} <{_target(package, name)}>` | {_summary(getattr(module, name))} |"
        for name in named
        if _is_documented(getattr(module, name))
    ]
    parts = ["| name | |\n|---|---|", *rows, ""]
    for title, names in {**groups, _REST: tuple(rest)}.items():
        own = [name for name in names if _target(package, name) == f"{package}.{name}"]
        directives = [text for name in own if (text := _directive(package, name, getattr(module, name)))]
        if directives:
            parts += [f"## {title}\n", "```{eval-rst}\n" + "\n".join(directives) + "```\n"]
    return "\n".join(parts)


def _target(package: str, name: str) -> str:
    """The name under which something is documented."""
    value = getattr(importlib.import_module(package), name)
    for home in _HOMES:
        if home == package:
            break
        if name in (module := importlib.import_module(home)).__all__ and getattr(module, name) is value:
            return f"{home}.{name}"
    return _DOCUMENTED_AS.get(f"{package}.{name}", f"{package}.{name}")


def _is_documented(value: Any) -> bool:
    return inspect.isroutine(value) or inspect.isclass(value)


def _directive(package: str, name: str, value: Any) -> str:
    if isinstance(value, ModuleType) or not _is_documented(value):
        return ""
    kind = "autofunction" if inspect.isroutine(value) else "autoclass"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "autoexception"
    return f".. {kind}:: {package}.{name}\n"


def _summary(value: Any) -> str:
    """The first sentence of a docstring, for a table's cell."""
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".").replace("|", "\\|")
