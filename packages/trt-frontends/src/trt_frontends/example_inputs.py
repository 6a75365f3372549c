"""Example inputs: what users give for a model's inputs, as tensors to export with and ranges to compile for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from trt_core import Device, Input, InputError


@dataclass(frozen=True)
class ExampleInputs:
    """Inputs of a model, positional and by keyword, each a tensor, an `Input`, or a plain value.

    Attributes:
        args: Positional inputs.
        kwargs: Inputs by keyword.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def read(
        cls,
        inputs: Sequence[Any] | None = None,
        arg_inputs: Sequence[Any] | None = None,
        kwarg_inputs: Mapping[str, Any] | None = None,
    ) -> ExampleInputs | None:
        """Reads what an entry point was called with; None when no inputs were given at all.

        Raises:
            InputError: Inputs were given twice, are not a sequence, or hold NumPy arrays.
        """
        if inputs is not None and arg_inputs is not None:
            raise InputError("inputs and arg_inputs are the same thing", hint="give arg_inputs alone")
        positional = inputs if inputs is not None else arg_inputs
        if positional is None and kwarg_inputs is None:
            return None
        if isinstance(positional, (torch.Tensor, Input)):
            positional = (positional,)
        if positional is not None and not isinstance(positional, Sequence):
            raise InputError(
                f"inputs must be a tuple or list of the model's inputs, not {type(positional).__name__}",
                hint="write arg_inputs=(x, y), also for a single input: arg_inputs=(x,)",
            )
        examples = cls(tuple(positional or ()), dict(kwarg_inputs or {}))
        for leaf in examples.leaves():
            if type(leaf).__module__.partition(".")[0] == "numpy":
                raise InputError("an input is a NumPy array", hint="convert it with torch.from_numpy")
        return examples

    def tensors(self, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) to export with: `Input`s become example tensors, the rest stays as it is."""

        def materialize(leaf: Any) -> Any:
            return _export_example(leaf, device) if isinstance(leaf, Input) else leaf

        return pytree.tree_map(materialize, self.args), pytree.tree_map(materialize, self.kwargs)

    def dynamic_shapes(self, parameters: Sequence[str]) -> dict[str, Any] | None:
        """Returns `dynamic_shapes` for `torch.export.export`, None when every input is static.

        Args:
            parameters: Names of the parameters that the positional inputs bind to.
        """
        if not any(isinstance(leaf, Input) and leaf.is_dynamic for leaf in self.leaves()):
            return None
        args = get_dynamic_shapes_args(parameters, self.args)
        return {**args, **get_dynamic_shapes_kwargs(self.kwargs)}

    def leaves(self) -> list[Any]:
        """Returns every input, nested ones flattened, positional before keyword."""
        return list(pytree.tree_leaves((self.args, self.kwargs)))

    def in_order_of(self, keywords: Sequence[str]) -> list[Any]:
        """Returns every input flattened, with keyword inputs in the order that a program wants them.

        Raises:
            InputError: A keyword is missing, or the program does not know it.
        """
        missing = [name for name in keywords if name not in self.kwargs]
        unknown = [name for name in self.kwargs if name not in keywords]
        if missing or unknown:
            raise InputError(
                "keyword inputs do not fit the program",
                why=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}",
                hint=f"the program takes {', '.join(keywords) or 'no keyword inputs'}",
            )
        return list(pytree.tree_leaves((self.args, {name: self.kwargs[name] for name in keywords})))

    def device(self) -> Device | None:
        """Returns the device of the first tensor among the inputs."""
        for leaf in self.leaves():
            if isinstance(leaf, torch.Tensor) and leaf.device.type in ("cpu", "cuda"):
                return Device(leaf.device)
        return None


def get_dynamic_shapes_args(parameters: Sequence[str], inputs: Sequence[Any]) -> dict[str, Any]:
    """Returns the dynamic dimensions of positional inputs, by parameter name.

    Args:
        parameters: Names of the parameters, in order. A `*args` parameter takes what is left, as a tuple.
        inputs: Tensors, `Input`s, or nested structures of them.
    """
    if len(inputs) > len(parameters):  # what is left belongs to the *args parameter, the last one
        head = list(inputs[: len(parameters) - 1])
        return get_dynamic_shapes_args(parameters, [*head, tuple(inputs[len(parameters) - 1 :])])
    return {name: _dynamic_dims(value) for name, value in zip(parameters, inputs, strict=False)}


def get_dynamic_shapes_kwargs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dynamic dimensions of keyword inputs, by name."""
    return {name: _dynamic_dims(value) for name, value in inputs.items()}


def _dynamic_dims(value: Any) -> Any:
    def dims_of(leaf: Any) -> Any:
        if not isinstance(leaf, Input):
            return None
        # DYNAMIC, not a named Dim: inputs may share a dimension without the user having to name it,
        # and a dimension that the model fixes is still an error
        return {
            axis: torch.export.Dim.DYNAMIC(min=leaf.min_shape[axis], max=leaf.max_shape[axis])
            for axis in leaf.dynamic_axes
        }

    return pytree.tree_map(dims_of, value)


def _export_example(spec: Input, device: torch.device) -> torch.Tensor:
    """An example of the opt shape; dynamic extents of 0 or 1, which export would take as fixed, are raised to 2."""
    shape = list(spec.opt_shape)
    for axis in spec.dynamic_axes:
        shape[axis] = min(max(shape[axis], 2), spec.max_shape[axis])
    return Input(shape, dtype=spec.dtype, format=spec.format, tensor_domain=spec.tensor_domain).example(device=device)
