"""Lowering passes that others write: given with a model's settings, or installed with a distribution."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings, LoweringError
from trt_core.wording import kind_of
from trt_lowering.contract import GraphPass, check_graph_form

GROUP: Final = "trt_lowering.passes"
"""Entry points of installed passes: each names a subclass of `GraphPass`, or a function that returns a pass."""

BLOCK_LIST: Final = "TRT_BLOCKED_PLUGINS"


@dataclass(frozen=True)
class InstalledPass:
    """What became of an entry point.

    Attributes:
        name: Name of the entry point.
        value: What it points to.
        found: The pass; None where it was skipped.
        error: Why it was skipped; empty when it was loaded.
    """

    name: str
    value: str
    found: GraphPass | None
    error: str = ""


@functools.cache
def installed_passes() -> tuple[InstalledPass, ...]:
    """Loads the passes that distributions bring, in the order of their entry points' names; later calls cost nothing.

    One that fails is skipped with a warning. `TRT_BLOCKED_PLUGINS` lists names that are not tried, `*` for all.
    """
    from importlib.metadata import entry_points  # nothing else needs it while a model is compiled

    blocked = {name.strip() for name in os.environ.get(BLOCK_LIST, "").split(",")} - {""}
    return tuple(_load(point, blocked) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _load(point: Any, blocked: set[str]) -> InstalledPass:
    if blocked & {point.name, "*"}:
        return InstalledPass(point.name, point.value, None, f"blocked by {BLOCK_LIST}")
    try:
        made = point.load()()
        if not isinstance(made, GraphPass):
            raise TypeError(f"it made {kind_of(made)}, not a trt_lowering.GraphPass")
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"lowering pass {point.name!r} ({point.value}) was skipped: {message}; "
            f"{BLOCK_LIST}={point.name} keeps it from being tried",
            stacklevel=2,
        )
        return InstalledPass(point.name, point.value, None, message)
    return InstalledPass(point.name, point.value, made)


def extension_passes(settings: CompilationSettings) -> list[GraphPass]:
    """Returns the passes of others, held to the form of graphs: installed ones, then those of the settings."""
    installed = [item.found for item in installed_passes() if item.found is not None]
    return [_Held(each) for each in (*installed, *settings.lowering_passes)]


class _Held(GraphPass):
    """A pass of somebody else: what it leaves is checked before anything relies on it."""

    def __init__(self, inner: GraphPass) -> None:
        self.name = inner.name
        self._inner = inner

    def call(self, gm: fx.GraphModule) -> int:
        before = _interface(gm)
        try:
            result = self._inner(gm)
            gm.graph.lint()
            check_graph_form(gm)
        except Exception as error:
            raise self._broken(str(error).partition("\n")[0] or type(error).__name__) from error
        after = _interface(gm)
        if before != after:
            changed = next(
                (f"{old} became {new}" for old, new in zip(before, after, strict=False) if old != new),
                f"of {len(before)} inputs and results {len(after)} are left",
            )
            raise self._broken(f"it changed what the model takes or returns: {changed}")
        return result.changes

    def _broken(self, why: str) -> LoweringError:
        kind = type(self._inner)
        return LoweringError(
            f"the lowering pass {self.name!r} failed",
            where=f"{kind.__module__}.{kind.__qualname__}",
            why=why,
            hint="it is no pass of trt-lowering's: mend it, or leave it out of `lowering_passes`; "
            f"{BLOCK_LIST} keeps installed ones out",
        )


def _interface(gm: fx.GraphModule) -> list[str]:
    """What the graph takes and returns, by name, type and shape."""
    placeholders = [f"input {node.target} {_described(node)}" for node in gm.graph.find_nodes(op="placeholder")]
    results: Any = gm.graph.output_node().args[0]
    return placeholders + [f"result {index} {_described(item)}" for index, item in enumerate(results)]


def _described(item: Any) -> str:
    value = item.meta.get("val") if isinstance(item, fx.Node) else item
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return str(value)
