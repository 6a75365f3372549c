"""Wraps a built engine as the module that replaces its block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from trt_converters import BuiltEngine
from trt_core import CompilationSettings
from trt_core.sizes.expressions import Extent, extent_of, is_extent
from trt_runtime import Binding, PlanHeader, TRTModule


def engine_module(built: BuiltEngine, block: fx.GraphModule, settings: CompilationSettings) -> TRTModule:
    """Returns the module that runs an engine in place of its block.

    Args:
        built: The engine.
        block: The block that it was built from; it tells whether one tensor or a tuple is returned.
        settings: What it was compiled with.
    """
    # the tensor shares the provider's memory and keeps it alive: a plan holds the weights, so no copy is made
    plan = torch.frombuffer(memoryview(built.plan), dtype=torch.uint8)
    namer = _SymbolNamer(built.inputs)
    inputs = [
        Binding(name, meta.dtype, namer.shape(meta)) for name, meta in zip(built.input_names, built.inputs, strict=True)
    ]
    outputs = [
        Binding(name, meta.dtype, namer.shape(meta))
        for name, meta in zip(built.output_names, built.outputs, strict=True)
    ]
    header = PlanHeader.describe(
        plan,
        inputs=inputs,
        outputs=outputs,
        device=settings.device.torch_device,
        symbols=namer.symbols,
        profiles=[[bounds[name] for name in built.input_names] for bounds in built.profiles],
        returns_tuple=_returns_tuple(block),
        name=built.name,
        settings_digest=settings.digest(),
        layer_count=built.layers,
        build_seconds=built.build_seconds,
        version_compatible=settings.version_compatible,
        hardware_compatible=settings.hardware_compatible,
        refit=built.refit,
    )
    return TRTModule(header, plan)


class _SymbolNamer:
    """Names symbolic extents so that each can be read from a dimension of an input.

    A dimension that is an expression, `2*s0`, is a symbol of its own where `s0` itself is no input's dimension.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.symbols: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}
        places = [(index, axis, meta.shape[axis]) for index, meta in enumerate(inputs) for axis in range(meta.dim())]
        # plain symbols first: an expression of symbols that inputs have needs no name of its own
        for plain in (True, False):
            for index, axis, extent in places:
                found = extent_of(extent)
                if isinstance(found, int) or isinstance(found, str) is not plain:
                    continue
                name = found if isinstance(found, str) else f"d{index}_{axis}"
                if self._names.setdefault(_key(found, extent), name) == name:
                    self.symbols.setdefault(name, (index, axis))

    def shape(self, meta: torch.Tensor) -> tuple[Extent, ...]:
        """Returns a shape in terms of the symbols; None for extents that no input determines, or no plan can say."""
        found = [self._rename(_expression(extent)) for extent in meta.shape]
        return tuple(extent if is_extent(extent) else None for extent in found)

    def _rename(self, extent: Extent) -> Extent:
        if isinstance(extent, int):
            return extent
        name = self._names.get(str(extent))
        if name is not None:
            return name
        if not isinstance(extent, list):
            return None
        operands = [self._rename(operand) for operand in extent[1:]]
        return None if any(operand is None for operand in operands) else [extent[0], *operands]


def _expression(extent: int | torch.SymInt) -> Extent:
    found = extent_of(extent)
    return str(extent) if found is None else found


def _key(found: Extent, extent: int | torch.SymInt) -> str:
    return str(extent) if found is None else str(found)


def _returns_tuple(block: fx.GraphModule) -> bool:
    output = next(node for node in reversed(block.graph.nodes) if node.op == "output")
    return isinstance(output.args[0], (tuple, list))
