"""Lowering by the names that scripts of this field write: passes of theirs, and the steps before a compilation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch
from torch import fx

from trt_converters import DYNAMO_CONVERTERS
from trt_converters.support import preserve_predicate
from trt_core import CompilationSettings, InputError
from trt_frontends.torch_tensorrt import names_of
from trt_lowering.contract import GraphPass
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.extension import process_passes
from trt_lowering.node_metadata import fake_mode_of

__all__ = [
    "add_lowering_pass",
    "clean_up_graph_after_modifications",
    "dump_lowering_passes",
    "get_decompositions",
    "post_lowering",
    "pre_export_lowering",
    "remove_lowering_pass",
]

__getattr__, __dir__ = names_of(__name__)

Rewrite = Callable[..., fx.GraphModule]
"""`rewrite(gm, settings)` or `rewrite(gm)`, which returns the graph module."""

_Rewrite = TypeVar("_Rewrite", bound=Rewrite)


class _ScriptPass(GraphPass):
    """A function of a script as a pass: it says neither what it changed, nor what its nodes return."""

    def __init__(self, rewrite: Rewrite, settings: CompilationSettings) -> None:
        self.name = rewrite.__name__
        self._rewrite = rewrite
        self._settings = settings

    def call(self, gm: fx.GraphModule) -> int:
        before = str(gm.graph)
        takes_settings = self._rewrite.__code__.co_argcount > 1
        result = self._rewrite(gm, self._settings) if takes_settings else self._rewrite(gm)
        if not isinstance(result, fx.GraphModule):
            raise TypeError(f"it returned {type(result).__name__}, not the graph module")
        if result is not gm:
            gm.graph = result.graph
        if str(gm.graph) == before:
            return 0
        mode = fake_mode_of(gm.graph)
        for node in gm.graph.nodes:
            if node.op == "call_function" and "val" not in node.meta and mode is not None:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda source: source.meta["val"])
                with mode:
                    node.meta["val"] = node.target(*args, **kwargs)
        return 1


@overload
def _aten_lowering_pass(function: _Rewrite) -> _Rewrite: ...
@overload
def _aten_lowering_pass(*, index: int | None = None) -> Callable[[_Rewrite], _Rewrite]: ...
def _aten_lowering_pass(function: Any = None, *, index: int | None = None) -> Any:
    """Has all compilations of the process run a function on the graph, once types are settled; a decorator.

    Args:
        function: `rewrite(gm, settings)`, which returns the graph module.
        index: Its place among the functions that are there; last where it is None.
    """
    if function is None:
        return functools.partial(add_lowering_pass, index=index)
    return add_lowering_pass(function, index)


def add_lowering_pass(lowering_pass: _Rewrite, index: int | None = None) -> _Rewrite:
    """Does what `_aten_lowering_pass` does, for functions of the graph alone, too.

    Raises:
        InputError: It is no function.
    """
    if not hasattr(lowering_pass, "__code__"):
        raise InputError(
            f"a lowering pass is a function of a graph module, not {lowering_pass!r}",
            hint="a trt_lowering.GraphPass goes into the setting `lowering_passes`",
        )
    place = len(process_passes) if index is None else index
    process_passes.insert(place, functools.partial(_ScriptPass, lowering_pass))
    return lowering_pass


def remove_lowering_pass(index: int) -> None:
    """Takes a function out that `add_lowering_pass` put in.

    Raises:
        InputError: There is none of that number.
    """
    if not -len(process_passes) <= index < len(process_passes):
        raise InputError(f"there is no lowering pass {index}", where=dump_lowering_passes())
    del process_passes[index]


def dump_lowering_passes() -> str:
    """Returns the names of the functions in their order, without the passes that are built in."""
    return str([make(CompilationSettings()).name for make in process_passes])


def clean_up_graph_after_modifications(gm: fx.GraphModule) -> fx.GraphModule:
    """Removes what nothing uses, checks the graph and compiles its code; returns the module."""
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    return gm


def get_decompositions(
    enable_experimental_decompositions: bool = False, *_: object, **__: object
) -> dict[Any, Callable[..., Any]]:
    """Returns the table for `ExportedProgram.run_decompositions` that keeps what converters take whole."""
    settings = CompilationSettings(enable_experimental_decompositions=enable_experimental_decompositions)
    rules = DecompositionRules(preserve_predicate(settings, DYNAMO_CONVERTERS), settings)
    return dict(rules.whole_program_table())


def pre_export_lowering(
    exported_program: torch.export.ExportedProgram, settings: CompilationSettings | None = None
) -> torch.export.ExportedProgram:
    """Returns the program: nothing has to be done before `compile`."""
    return exported_program


def post_lowering(gm: fx.GraphModule, settings: CompilationSettings | None = None) -> fx.GraphModule:
    """Runs the functions that `_aten_lowering_pass` put in; all others are run by `compile`.

    Raises:
        LoweringError: A function left a graph that cannot be compiled.
    """
    for make in process_passes:
        make(settings or CompilationSettings())(gm)
    gm.recompile()
    return gm
