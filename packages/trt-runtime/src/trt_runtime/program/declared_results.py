"""What a program declares of the results of its operators, and what compares results with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import ExecutionError
from trt_core.sizes.expressions import Extent, evaluate_extent, symbols_in
from trt_core.wording import kind_of
from trt_runtime.program.graph import NumberType, OperatorCall, Program, SequenceType, TensorType, ValueType

Symbols = Mapping[str, int]
"""Values of the symbols in one call."""

CheckResult = Callable[[Any, Symbols], None]
"""Raises `ExecutionError` where a result is not what is declared."""


def declares_symbols(program: Program) -> bool:
    """Whether the result of a step is declared with extents that a call computes."""

    def has_symbols(kind: ValueType | None) -> bool:
        if isinstance(kind, TensorType):
            return any(symbols_in(extent) for extent in kind.shape)
        return isinstance(kind, SequenceType) and any(has_symbols(item) for item in kind.items)

    return any(isinstance(step, OperatorCall) and has_symbols(step.result) for step in program.steps)


def elements_told(kind: ValueType | None, symbols: Symbols) -> int | None:
    """Returns the elements of the largest tensor that a program declares; None where that depends on data."""
    if isinstance(kind, SequenceType):
        counts = [elements_told(item, symbols) for item in kind.items if item is not None]
        return max((count for count in counts if count is not None), default=0) if None not in counts else None
    if not isinstance(kind, TensorType):
        return 0
    if None in kind.shape:
        return None
    return math.prod(int(_evaluate(extent, symbols)) for extent in kind.shape)


def result_checker(kind: ValueType | None, title: str) -> CheckResult:
    """Returns what compares a result with what the program declares.

    Args:
        kind: What it declares.
        title: How messages call the operator.
    """

    def wrong(found: str, declared: object) -> ExecutionError:
        return ExecutionError(f"{title} made {found}, the program declares {declared}")

    if isinstance(kind, TensorType):
        dtype, rank = kind.dtype, len(kind.shape)
        extents = [(axis, extent) for axis, extent in enumerate(kind.shape) if extent is not None]
        fixed = tuple(kind.shape) if all(isinstance(extent, int) for extent in kind.shape) else None

        def check_tensor(result: Any, symbols: Symbols) -> None:
            if not isinstance(result, torch.Tensor) or result.dtype is not dtype:
                raise wrong(f"a {getattr(result, 'dtype', type(result).__name__)}", dtype_name(dtype))
            shape = result.shape
            if fixed is not None:
                fits = shape == fixed
            else:
                fits = len(shape) == rank and all(
                    _may_equal(shape[axis], _evaluate(extent, symbols)) for axis, extent in extents
                )
            if not fits:
                raise wrong(f"a tensor of shape {tuple(shape)}", f"the shape {kind.shape}")

        return check_tensor
    if isinstance(kind, NumberType):
        wanted = kind.kind

        def check_number(result: Any, symbols: Symbols) -> None:
            if type(result) is not wanted and not isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise wrong(kind_of(result), wanted.__name__)

        return check_number
    if isinstance(kind, SequenceType):
        checks = [result_checker(item, f"{title}, result {index},") for index, item in enumerate(kind.items)]

        def check_sequence(result: Any, symbols: Symbols) -> None:
            if not isinstance(result, (tuple, list)) or len(result) != len(checks):
                raise wrong(kind_of(result), f"{len(checks)} results")
            for check, item in zip(checks, result, strict=True):
                check(item, symbols)

        return check_sequence

    def check_nothing(result: Any, symbols: Symbols) -> None:
        if result is not None:
            raise wrong(kind_of(result), "nothing")

    return check_nothing


def list_checker(kind: ValueType | None, title: str) -> CheckResult:
    """Returns what compares the types in a list with what the program declares.

    How many tensors a split makes, and how large the last ones are, follows from the sizes of the call; programs
    declare it for the sizes that they were captured with. Taking one that is not there fails.

    Args:
        kind, title: See `result_checker`.
    """
    if not isinstance(kind, SequenceType):
        return result_checker(kind, title)
    unsized = [
        replace(item, shape=(None,) * len(item.shape)) if isinstance(item, TensorType) else item for item in kind.items
    ]
    checks = [result_checker(item, f"{title}, result {index},") for index, item in enumerate(unsized)]

    def check_list(result: Any, symbols: Symbols) -> None:
        if not isinstance(result, (tuple, list)):
            raise ExecutionError(f"{title} made {kind_of(result)}, the program declares a list")
        for check, item in zip(checks, result, strict=False):
            check(item, symbols)

    return check_list


def _may_equal(found: int | torch.SymInt, declared: int | torch.SymInt) -> bool:
    """Whether two sizes are equal, or one is a symbol of whoever traces the program."""
    return not (isinstance(found, int) and isinstance(declared, int)) or found == declared


def _evaluate(extent: Extent, symbols: Symbols) -> int | torch.SymInt:
    return extent if isinstance(extent, int) else evaluate_extent(extent, symbols)
