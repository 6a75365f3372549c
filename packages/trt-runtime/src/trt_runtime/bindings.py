"""Bindings: the tensors that go into an engine and come out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import torch

from trt_core.dtypes import TRT_NAMES, dtype_name
from trt_core.errors import PlanError
from trt_core.files import typed
from trt_core.files.records import Form
from trt_core.sizes.expressions import Extent, evaluate_extent, format_extent, read_extent

_DTYPES: Final[dict[str, torch.dtype]] = {dtype_name(dtype): dtype for dtype in TRT_NAMES}
_MOST_BYTES: Final = 2**63 - 1

MAX_RANK: Final = 64
"""Most dimensions of a tensor, as in PyTorch."""


def _read_shape(value: Any, place: str) -> tuple[Extent, ...]:
    shape = typed.items(value, place)
    if len(shape) > MAX_RANK:
        raise typed.BadField(place, f"{shape!r:.80} is not a shape")
    return tuple(read_extent(extent, place) for extent in shape)


@dataclass(frozen=True)
class Binding:
    """An input or output of an engine.

    Attributes:
        name: The name under which the engine knows the tensor.
        dtype: Element type.
        shape: One extent per dimension: an int, a symbol, an expression of symbols, or None for an extent
            that depends on data (see `trt_core.sizes.expressions`).
    """

    name: str
    dtype: Annotated[torch.dtype, Form(partial(typed.choice, _DTYPES, what="data type"), dtype_name)]
    shape: Annotated[tuple[Extent, ...], Form(_read_shape, list)]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __str__(self) -> str:
        extents = ", ".join(format_extent(extent) for extent in self.shape)
        return f"{self.name}: {dtype_name(self.dtype)}[{extents}]"


def format_shape(shape: tuple[Extent, ...] | list[Extent]) -> str:
    """Writes a shape as people write it, `(s0, 3, ?)`."""
    return "(" + ", ".join(format_extent(extent) for extent in shape) + ")"


def extent_in_call(
    binding: Binding, axis: int, symbols: Mapping[str, int | torch.SymInt], title: str
) -> int | torch.SymInt | None:
    """Computes an extent that a tensor has in a call; None where it depends on data.

    Args:
        binding: The input or output.
        axis: Which dimension of it.
        symbols: What `symbol_values` returned.
        title: How messages call the engine.

    Raises:
        PlanError: It divides by zero or exceeds 64 bits.
    """
    extent = binding.shape[axis]
    try:
        return None if extent is None else evaluate_extent(extent, symbols)
    except (ArithmeticError, ValueError) as error:
        raise PlanError(f"the shape of {binding.name!r} in {title} cannot be computed", why=str(error)) from error


def shape_in_call(
    binding: Binding, symbols: Mapping[str, int | torch.SymInt], title: str
) -> list[int | torch.SymInt | None]:
    """Computes all extents that a tensor has in a call; see `extent_in_call` for arguments and errors."""
    return [extent_in_call(binding, axis, symbols, title) for axis in range(binding.rank)]


def require_addressable(binding: Binding, shape: Sequence[int | torch.SymInt], title: str) -> None:
    """Refuses a shape for which PyTorch makes no tensor, not even one without elements.

    PyTorch multiplies extents in order and in 64 bits, so that a zero among them does not make the others fit.

    Args:
        binding: The output.
        shape: Its extents in a call; symbolic ones, and those below 0, which are not known yet, do not count.
        title: How messages call the engine.

    Raises:
        PlanError: It has too many bytes for 64 bits.
    """
    known = [max(extent, 1) for extent in shape if isinstance(extent, int)]
    if math.prod(known) * binding.dtype.itemsize > _MOST_BYTES:
        raise PlanError(
            f"output {binding.name!r} of {title} would have shape {tuple(shape)}",
            why="PyTorch has no tensors of that many bytes, empty ones included",
            hint="compile the model again, with inputs of narrower ranges",
        )


def symbol_values(symbols: Mapping[str, tuple[int, int]], inputs: list[torch.Tensor]) -> dict[str, int | torch.SymInt]:
    """Reads the value of each symbol from the shapes of the inputs.

    Args:
        symbols: (input index, axis) by symbol name.
        inputs: Tensors whose ranks fit; under fake tensors the values are symbolic.
    """
    return {name: inputs[index].shape[axis] for name, (index, axis) in symbols.items()}
