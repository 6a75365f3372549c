"""Extents as a plan says them, so that no run has to infer them: those of the core, of extents of the engine's inputs.

Symbols are extents of inputs: ``"0.2"`` is that of axis 2 of the first. None stands for what extents of inputs do not
tell: numbers of shape tensors, or data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from trt_core.files.records import Form
from trt_core.sizes.expressions import (
    Extent,
    evaluate_extent,
    extent_of_expression,
    is_extent,
    is_integer_arithmetic,
    read_extent,
    symbols_in,
)
from trt_portable.errors import Refusal
from trt_portable.plan.tables import EXTENT_SYMBOL

Expression: TypeAlias = Annotated[Extent, Form()]

_LARGEST: Final = 1 << 48


def sizes_by_symbol(shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Extents of inputs by symbol."""
    return {
        EXTENT_SYMBOL.format(source, axis): extent
        for source, shape in enumerate(shapes)
        for axis, extent in enumerate(shape)
    }


def symbols_of_ranks(ranks: Sequence[int]) -> Collection[str]:
    """The symbols of extents of inputs of some ranks."""
    return sizes_by_symbol([[0] * rank for rank in ranks]).keys()


def expression_of(extent: Any, sizes: Mapping[Any, tuple[int, int]]) -> Expression:
    """An extent that shape inference found, as a plan writes it.

    Args:
        extent: An integer, or a symbolic expression.
        sizes: Input and axis of each of PyTorch's symbols.

    Returns:
        None where it depends on anything but extents of inputs, or cannot be said in as many words as are read.
    """
    if isinstance(extent, int):
        return extent
    import sympy  # which made the extent, and which no run needs

    names = {symbol: EXTENT_SYMBOL.format(*place) for symbol, place in sizes.items()}
    symbols = {symbol: sympy.Symbol(name, integer=True, nonnegative=True) for symbol, name in names.items()}
    said = extent_of_expression(extent.xreplace(symbols)) if isinstance(extent, sympy.Basic) else None
    is_known = is_integer_arithmetic(said) and symbols_in(said) <= set(names.values()) and is_extent(said)
    return said if is_known else None


def read_expression(value: Any, what: str, ranks: Sequence[int]) -> Expression:
    """Reads an expression from a plan.

    Args:
        value: Parsed JSON.
        what: What messages call it.
        ranks: Rank of each input.

    Raises:
        BadField: It is no expression, or names an axis that no input has.
    """
    return read_extent(value, what, symbols_of_ranks(ranks))


def evaluate(expression: Expression, symbols: Mapping[str, int]) -> int:
    """The extent for extents of inputs; see `sizes_by_symbol`.

    Raises:
        Refusal: There is none: a division by zero, or a number that is no extent.
    """
    try:
        extent: int = evaluate_extent(expression, symbols)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise Refusal(f"an output extent cannot be computed: {error}") from error
    if not 0 <= extent <= _LARGEST:
        raise Refusal(f"an output extent would be {extent}")
    return extent
