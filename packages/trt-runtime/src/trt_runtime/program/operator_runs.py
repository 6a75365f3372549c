"""How a program calls an operator: with operands that fit, for no more than it says, and a look at the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trt_core.errors import ExecutionError
from trt_core.internals import OpOverload
from trt_runtime.program.declared_results import Symbols, elements_told, list_checker, result_checker
from trt_runtime.program.graph import OperatorCall, Value
from trt_runtime.program.literals import leaves, replace_values, values_in
from trt_runtime.program.operand_checks import checked
from trt_runtime.program.operator_growth import (
    can_grow,
    elements_in,
    elements_made,
    how_to_allow,
    most_elements,
    operands_of,
)

OperatorRun = Callable[[list[Any], Symbols], Any]
"""Reads slots, and returns the result."""


def operator_run(
    operator: OpOverload, step: OperatorCall, device: torch.device, is_settled: bool, untold: int
) -> OperatorRun:
    """Returns what runs a step that calls an operator.

    Args:
        operator: The operator.
        step: The step.
        device: What `"cuda"` among the arguments means.
        is_settled: Whether all sizes were compared when the program was loaded.
        untold: Elements that the operator may make where how many depends on data.
    """
    call = checked(operator, untold)
    bound = None if is_settled or not can_grow(operator) else _bound(operator, step, untold)
    args = _on_device(list(step.args), device)
    kwargs = _on_device(dict(step.kwargs), device)
    title = f"{step.name}.{step.overload or 'default'}"
    check = list_checker(step.result, title) if _makes_list(operator) else result_checker(step.result, title)
    if not kwargs and all(type(value) is Value or not values_in(value) for value in args):
        places = [(place, value.index) for place, value in enumerate(args) if type(value) is Value]

        def run(slots: list[Any], symbols: Symbols) -> Any:
            given = args.copy()
            for place, index in places:
                given[place] = slots[index]
            if bound is not None:
                bound(given, kwargs, symbols)
            result = call(*given)
            check(result, symbols)
            return result

        return run

    def run_nested(slots: list[Any], symbols: Symbols) -> Any:
        given, named = (replace_values(tree, slots.__getitem__) for tree in (args, kwargs))
        if bound is not None:
            bound(given, named, symbols)
        result = call(*given, **named)
        check(result, symbols)
        return result

    return run_nested


def _bound(
    operator: OpOverload, step: OperatorCall, untold: int
) -> Callable[[Sequence[Any], Mapping[str, Any], Symbols], None]:
    """Returns what refuses a call that would make far more than the program says, or than is there."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any], symbols: Symbols) -> None:
        operands = operands_of(operator, args, kwargs)
        if torch.compiler.is_compiling() or any(isinstance(leaf, torch.SymInt) for leaf in leaves(operands)):
            return  # whoever traces has no numbers
        made = elements_made(operator, operands)
        told = None if made is None else elements_told(step.result, symbols)
        if made is not None and not made <= most_elements(told, operands, untold):
            raise ExecutionError(
                f"{step.name}.{step.overload or 'default'} would make {made:.0f} elements",
                why=f"the program declares {step.result}, and its operands have {elements_in(operands)}",
                hint="" if told is not None else how_to_allow(made),
            )

    return check


def _on_device(tree: Any, device: torch.device) -> Any:
    """Arguments with the device of this process in the place of the kind of device that the program names."""
    if isinstance(tree, torch.device):
        return device if tree.type == device.type else tree
    if isinstance(tree, list):
        return [_on_device(item, device) for item in tree]
    if isinstance(tree, dict):
        return {name: _on_device(item, device) for name, item in tree.items()}
    return tree


def _makes_list(operator: OpOverload) -> bool:
    """Whether an operator makes one list of tensors: splits do."""
    returns = operator._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
