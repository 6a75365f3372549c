"""Which operators are decomposed, and by what."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core import CompilationSettings
from trt_core.internals import OpOverload, has_kernel
from trt_lowering.internals import DisableTorchFunction, DispatchKey, core_decompositions, decomposition_table
from trt_lowering.operator_traits import (
    is_data_dependent,
    is_kept_in_torch,
    is_random,
    is_size_query,
)
from trt_lowering.own_decompositions import (
    COLLECTIVE_DECOMPOSITIONS,
    QUANTIZATION_DECOMPOSITIONS,
    short_time_fourier_transform,
    transformer_encoder_layer,
)

_UNFAITHFUL: Final = frozenset(
    f"aten::{name}.{overload}"
    for name in ("linspace", "logspace")
    for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
)
"""Operators whose decomposition differs from them: integer results are truncated from other intermediate values."""

_ONE_LIBRARY: Final = frozenset({"aten::lstm.input"})
"""Operators that PyTorch decomposes on the CPU into one of oneDNN's, which nothing converts and no program may hold."""

_OWN: Final[dict[str, Callable[..., Any]]] = {
    "aten::_transformer_encoder_layer_fwd": transformer_encoder_layer,
    **QUANTIZATION_DECOMPOSITIONS,
    **COLLECTIVE_DECOMPOSITIONS,
    "aten::stft.center": short_time_fourier_transform,
    "aten::_neg_view": torch.neg,
}
"""Decompositions by operator."""

Preserve = Callable[[OpOverload], bool]
"""Says whether an operator has a converter, and therefore stays whole."""


class Source(enum.Enum):
    """Where a decomposition comes from, which decides how far it is trusted."""

    OWN = "a table of ours, for operators that PyTorch does not decompose, or not into operators that convert"
    COMPOSITE = "the operator's own composite kernel"
    CORE = "the core ATen table"
    REFERENCE = "PyTorch's wider table"


@dataclass(frozen=True)
class Decomposition:
    """A decomposition of one operator.

    Attributes:
        function: Computes the operator out of others, with the operator's arguments.
        source: Where it comes from. A `REFERENCE` decomposition is used only when everything that it leads to has a
            converter: it may lead far away from ATen, and a whole operator in PyTorch beats its fragments there.
    """

    function: Callable[..., Any]
    source: Source


class DecompositionRules:
    """Decides for each operator whether it stays whole.

    Args:
        preserve: Whether an operator has a converter.
        settings: `torch_executed_ops` stay whole; `enable_experimental_decompositions` decomposes whatever the core
            ATen decompositions cover, even with a converter.
    """

    def __init__(self, preserve: Preserve, settings: CompilationSettings) -> None:
        self._preserve = preserve
        self._settings = settings
        self._kept: dict[OpOverload, bool] = {}

    def keeps(self, target: OpOverload) -> bool:
        """Whether the operator stays whole by rule, before asking whether a decomposition exists."""
        known = self._kept.get(target)
        if known is None:
            known = self._kept[target] = self._decide(target)
        return known

    def has_converter(self, target: OpOverload) -> bool:
        """Whether the operator counts as a goal of decomposition."""
        return is_size_query(target) or self._preserve(target)

    def whole_program_table(self) -> dict[OpOverload, Callable[..., Any]]:
        """Returns the table with which `ExportedProgram.run_decompositions` keeps the same operators whole.

        Operators whose schema declares a view cannot be kept by it and are decomposed to simpler views.
        """
        table = torch.export.default_decompositions()
        for target in list(table):
            if isinstance(target, OpOverload) and (self.keeps(target) or is_random(target)):
                del table[target]
        return table  # type: ignore[return-value]

    def _decide(self, target: OpOverload) -> bool:
        if is_size_query(target) or is_data_dependent(target) or target.name() in _UNFAITHFUL | _ONE_LIBRARY:
            return True
        if is_kept_in_torch(target, self._settings):
            return True
        if not self._preserve(target):
            return False
        if not self._settings.enable_experimental_decompositions:
            return True
        found = find_decomposition(target)
        return found is None or found.source is Source.REFERENCE


@functools.cache
def find_decomposition(target: OpOverload) -> Decomposition | None:
    """Returns the decomposition of an operator, None when PyTorch has none."""
    own = _OWN.get(target.name())
    if own is not None:
        return Decomposition(own, Source.OWN)
    if is_composite(target):
        return Decomposition(functools.partial(_run_composite, target), Source.COMPOSITE)
    core = _core_table().get(target)
    if core is not None:
        return Decomposition(core, Source.CORE)
    reference = decomposition_table.get(target)
    if reference is not None:
        return Decomposition(reference, Source.REFERENCE)
    return None


@functools.cache
def is_composite(target: OpOverload) -> bool:
    """Whether the operator is defined by other operators (`CompositeImplicitAutograd`)."""
    key = DispatchKey.CompositeImplicitAutograd
    return key in target.py_kernels or has_kernel(target.name(), key)


def _run_composite(target: OpOverload, *args: Any, **kwargs: Any) -> Any:
    # a torch function mode of the tracer would send the call back to the operator itself
    with DisableTorchFunction():
        return target.decompose(*args, **kwargs)


@functools.lru_cache(maxsize=1)
def _core_table() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = core_decompositions()
    return table
