"""Lowering passes that others write: given with a model's settings, or installed with a distribution."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings, LoweringError, TrtError
from trt_core.entry_points import BLOCK_LIST, Installed, load_installed, warn_of_failures
from trt_core.wording import kind_of
from trt_lowering.contract import GraphPass, check_graph_form

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "trt_lowering.passes"
"""Entry points of installed passes: each names a subclass of `GraphPass`, or a function that returns a pass."""

InstalledPass = Installed[GraphPass]
"""What became of an entry point."""

process_passes: Final[list[Callable[[CompilationSettings], GraphPass]]] = []
"""What makes the passes that every compilation of the process runs, from its settings."""


@functools.cache
def installed_passes() -> tuple[InstalledPass, ...]:
    """Loads the passes that distributions bring, in the order of their entry points' names; later calls cost nothing.

    One that fails is skipped with a warning. `TRT_BLOCKED_PLUGINS` lists names that are not tried, `*` for all.
    """
    found = load_installed(GROUP, _make_pass)
    warn_of_failures("lowering pass", found)
    return tuple(sorted(found, key=lambda item: item.name))


def _make_pass(point: EntryPoint) -> GraphPass:
    made = point.load()()
    if not isinstance(made, GraphPass):
        raise TypeError(f"it made {kind_of(made)}, not a trt_lowering.GraphPass")
    return made


def extension_passes(settings: CompilationSettings) -> list[GraphPass]:
    """Returns the passes of others, held to the form of graphs: installed, of the process, and of the settings."""
    installed = [item.found for item in installed_passes() if item.found is not None]
    return [
        _Held(each) for each in (*installed, *(make(settings) for make in process_passes), *settings.lowering_passes)
    ]


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
        except TrtError as error:
            raise self._broken(str(error).partition("\n")[0]) from error
        except Exception as error:  # the text of a KeyError is the key alone
            raise self._broken(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
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
