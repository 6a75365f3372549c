"""Plugins that call PyTorch operators, in the form that scripts of this field ask for them."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters import plugin_from_operator
from trt_core import InputError
from trt_core.operator_plugin import register_operator
from trt_frontends.dynamo.conversion.registration import ConverterPriority, Validator, validator_check

__all__ = ["custom_op", "generate_plugin", "generate_plugin_converter"]


def generate_plugin(plugin_id: str) -> None:
    """Registers a plugin that calls an operator, for whoever converts it; see `custom_op` for both at once.

    Args:
        plugin_id: The operator's name, `"library::name"`.

    Raises:
        InputError: There is no such operator.
    """
    register_operator(_operator(plugin_id))


def generate_plugin_converter(
    plugin_id: str,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = True,
    requires_output_allocator: bool = False,
) -> None:
    """Lets engines run an operator as a plugin that calls it; see `custom_op`."""
    custom_op(plugin_id, capability_validator, priority, supports_dynamic_shapes, requires_output_allocator)


def custom_op(
    op_name: str,
    capability_validator: Validator | None = None,
    priority: ConverterPriority = ConverterPriority.STANDARD,
    supports_dynamic_shapes: bool = True,
    requires_output_allocator: bool = False,
) -> None:
    """Lets engines run an operator as a plugin that calls it; see `trt_converters.plugin_from_operator`.

    Args:
        op_name: Its name, `"library::name"`.
        capability_validator, priority: See `dynamo_tensorrt_converter`.
        supports_dynamic_shapes: No effect: sizes may vary where the operator's fake implementation says how.
        requires_output_allocator: Only False: plugins say the sizes of their results.

    Raises:
        InputError: There is no such operator, or sizes of its results depend on data.
        TypeError: The operator writes to its arguments.
    """
    if requires_output_allocator:
        raise InputError(
            f"{op_name} cannot be a plugin",
            why="sizes of its results depend on data (requires_output_allocator=True)",
            hint="leave it to PyTorch, which runs it between engines",
        )
    operator = _operator(op_name)
    plugin_from_operator(operator, checks=validator_check(capability_validator), priority=priority.value)


def _operator(op_name: str) -> Any:
    library, _, name = op_name.partition("::")
    base, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, library), base), overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise InputError(
            f"there is no operator {op_name!r}", hint='define it first; its name is written "library::name"'
        ) from error
