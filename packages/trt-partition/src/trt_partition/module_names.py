"""Names of modules in `torch_executed_modules`: dotted paths or classes, matched against the modules of a node."""

from __future__ import annotations

import re
from typing import Final

from torch import fx

from trt_core import CompilationSettings, SettingsError
from trt_core.wording import did_you_mean

_SELF: Final = re.compile(r"^L\['self'\]\.?")
_INDEX: Final = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")
_CALL: Final = re.compile(r"@\d+")
_ARTIFICIAL: Final = "_empty_nn_module_stack_from_metadata_hook"


def module_names(node: fx.Node) -> tuple[str, ...]:
    """Returns what the modules around a node are called, outermost first: path, class, class without its module.

    `nn_module_stack` holds (path, class) pairs; a class is a type or a dotted name, and a module that is called twice
    has `@1` behind its path the second time.
    """
    names: list[str] = []
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        if path == _ARTIFICIAL:
            continue
        cleaned = _INDEX.sub(r".\1", _SELF.sub("", _CALL.sub("", str(path)))).strip(".")
        full = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
        names.extend(name for name in (cleaned, full, full.rpartition(".")[2]) if name)
    return tuple(names)


def matching_module(node: fx.Node, names: frozenset[str]) -> str:
    """Returns the name among `names` that a module around the node has, or an empty string."""
    for name in module_names(node):
        if name in names:
            return name
    return ""


def require_known_modules(graph_module: fx.GraphModule, settings: CompilationSettings) -> None:
    """Checks that every name in `torch_executed_modules` names a module of the graph.

    For graphs that hold a whole model. `torch.compile` may cut a model into graphs that each hold some modules only,
    so a name that is missing from one of those is no mistake.

    Raises:
        SettingsError: A name matches no module; the message suggests the nearest one.
    """
    if not settings.torch_executed_modules:
        return
    known = {name for node in graph_module.graph.nodes for name in module_names(node)}
    for name in sorted(settings.torch_executed_modules - known):
        raise SettingsError(
            f"unknown module {name!r}",
            where="torch_executed_modules",
            why="no node of the graph belongs to a module with that path or class",
            hint=did_you_mean(name, known) or "write a path such as encoder.layer.0, or a class name",
        )
