"""A decorated plugin as layers see it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trt_portable.enums import DataType, PluginCapabilityType, PluginFieldType, TensorFormat
from trt_portable.plugin.definition import Definition
from trt_portable.plugin.descriptors import ShapeExpr, ShapeExprs, SizeTensorShapeExpr, TensorDesc
from trt_portable.plugin.tensor import Tensor
from trt_portable.plugin_interfaces.expressions import (
    DimsExprs,
    DynamicPluginTensorDesc,
    IDimensionExpr,
    IExprBuilder,
    PluginTensorDesc,
)
from trt_portable.plugin_interfaces.field import PluginField, PluginFieldCollection, PluginFieldCollection_
from trt_portable.plugin_interfaces.plugin import (
    IPluginResourceContext,
    IPluginV3,
    IPluginV3OneBuildV2,
    IPluginV3OneRuntime,
)
from trt_portable.plugin_interfaces.quick import (
    IPluginCreatorV3Quick,
    IPluginV3QuickBuild,
    IPluginV3QuickCore,
    IPluginV3QuickRuntime,
)

VERSION = "1"
_FIELD_TYPES = {
    np.dtype(np.float16): PluginFieldType.FLOAT16,
    np.dtype(np.float32): PluginFieldType.FLOAT32,
    np.dtype(np.float64): PluginFieldType.FLOAT64,
    np.dtype(np.int8): PluginFieldType.INT8,
    np.dtype(np.int16): PluginFieldType.INT16,
    np.dtype(np.int32): PluginFieldType.INT32,
    np.dtype(np.int64): PluginFieldType.INT64,
}
_TACTIC = "tactic:"
"""Name of the field that holds the tactic; no attribute can be called so."""


class QuickPlugin(
    IPluginV3,
    IPluginV3QuickCore,
    IPluginV3QuickBuild,
    IPluginV3QuickRuntime,
    IPluginV3OneBuildV2,
    IPluginV3OneRuntime,
):
    """A use of a decorated plugin, with values for its attributes.

    Args:
        definition: The plugin.
        attributes: Values by name.
        types: Element types of the inputs, where they are known.
        ranks: Numbers of axes of the inputs, where they are known.
        tactic: The tactic of an engine, where one was chosen.
    """

    def __init__(
        self,
        definition: Definition,
        attributes: Mapping[str, Any],
        types: Sequence[DataType] = (),
        ranks: Sequence[int] = (),
        tactic: int | None = None,
    ) -> None:
        self._definition = definition
        self._attributes = dict(attributes)
        self._types = tuple(types)
        self._ranks = tuple(ranks)
        self._tactic = tactic
        self._aliases: list[int] = []
        self._sized: list[set[int]] = []
        self.plugin_name, self.plugin_version, self.plugin_namespace = definition.name, VERSION, definition.namespace

    def get_capability_interface(self, type: PluginCapabilityType) -> Any:
        """Itself, for all three."""
        return self

    def clone(self) -> QuickPlugin:
        """The same use once more."""
        return QuickPlugin(self._definition, self._attributes, self._types, self._ranks, self._tactic)

    def attach_to_context(self, resource_context: IPluginResourceContext) -> IPluginV3:
        """A plugin for one execution context."""
        return self

    # Outputs ---------------------------------------------------------------------------------------

    def _describe(self, extents: Sequence[Sequence[Any]]) -> list[TensorDesc]:
        """The descriptions of the outputs, from the extents of the inputs."""
        types = self._types or (DataType.FLOAT,) * len(extents)
        inputs = [
            TensorDesc([ShapeExpr(extent) for extent in shape], dtype, TensorFormat.LINEAR)
            for shape, dtype in zip(extents, types, strict=True)
        ]
        found = self._definition.describe(*inputs, **self._attributes)
        outputs = list(found) if isinstance(found, tuple) else [found]
        places = {id(tensor): at for at, tensor in enumerate(inputs)}
        self._aliases = [places.get(id(tensor.get_aliased()), -1) for tensor in outputs]
        self.num_outputs = len(outputs)
        return outputs

    def get_output_data_types(self, input_types: Sequence[DataType]) -> list[DataType]:
        """The types that the description gives.

        Raises:
            ValueError: The description gives an output no type.
        """
        self._types = tuple(input_types)
        found = []
        for tensor in self._describe([[None] * rank for rank in self._ranks]):
            if tensor.dtype is None:
                raise ValueError(f"plugin {self._definition.identity!r}: an output has no dtype")
            found.append(tensor.dtype)
        return found

    def get_output_shapes(
        self, inputs: Sequence[DimsExprs], shape_inputs: Sequence[DimsExprs], expr_builder: IExprBuilder
    ) -> list[DimsExprs]:
        """The extents that the description gives."""
        self._ranks = tuple(len(shape) for shape in inputs)
        outputs = self._describe([[shape[axis] for axis in range(len(shape))] for shape in inputs])
        places = {id(tensor): at for at, tensor in enumerate(outputs)}

        def extent(expression: ShapeExpr) -> IDimensionExpr:
            if not isinstance(expression, SizeTensorShapeExpr):
                return expression._known()
            size = expression.size_tensor
            return expr_builder.declare_size_tensor(places[id(size)], size.opt._known(), size.upper_bound._known())

        self._sized = [
            {axis for axis, each in enumerate(tensor.shape_expr) if each.is_size_tensor} for tensor in outputs
        ]
        return [DimsExprs([extent(each) for each in tensor.shape_expr]) for tensor in outputs]

    def get_aliased_input(self, output_index: int) -> int:
        """The input that an output was said to share its memory with, -1 for none."""
        return self._aliases[output_index]

    # Formats and tactics ---------------------------------------------------------------------------

    def supports_format_combination(self, pos: int, in_out: Sequence[DynamicPluginTensorDesc], num_inputs: int) -> bool:
        """Whether a combination fits; without any, LINEAR does."""
        kinds = [tensor.desc.format for tensor in in_out[: pos + 1]]
        if self._definition.combinations is None:
            return kinds[-1] is TensorFormat.LINEAR
        types = [tensor.desc.type for tensor in in_out[: pos + 1]]
        described = [
            TensorDesc(ShapeExprs(len(tensor.desc.dims)), tensor.desc.type, tensor.desc.format) for tensor in in_out
        ]
        options = self._taken(self._definition.combinations)
        options["outputs"] = tuple(described[num_inputs:])
        for combination in self._definition.combinations(*described[:num_inputs], **options):
            if combination.supports(types, kinds):
                self._tactic = next(iter(combination.tactic_numbers), None)
                return True
        return False

    def _taken(self, function: Any) -> dict[str, Any]:
        names = inspect.signature(function).parameters
        return {name: value for name, value in self._attributes.items() if name in names}

    # Running ---------------------------------------------------------------------------------------

    def enqueue(
        self,
        input_desc: Sequence[PluginTensorDesc],
        output_desc: Sequence[PluginTensorDesc],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Calls the implementation.

        Raises:
            RuntimeError: There is none.
        """
        implementation = self._definition.implementation
        if implementation is None:
            raise RuntimeError(f"plugin {self._definition.identity!r} has no implementation: decorate one with impl")
        given = [Tensor(desc, address.tensor) for desc, address in zip(input_desc, inputs, strict=True)]  # type: ignore[attr-defined]
        taken = [
            Tensor(self._output_desc(at, desc), address.tensor, given[alias] if alias >= 0 else None)  # type: ignore[attr-defined]
            for at, (desc, address, alias) in enumerate(zip(output_desc, outputs, self._aliases, strict=True))
        ]
        options = self._taken(implementation)
        if "tactic" in inspect.signature(implementation).parameters:
            options["tactic"] = self._tactic or 0
        implementation(*given, **options, outputs=tuple(taken), stream=stream)

    def _output_desc(self, index: int, desc: PluginTensorDesc) -> PluginTensorDesc:
        """An output's description, -1 for extents that another output will hold."""
        dims = [-1 if axis in self._sized[index] else extent for axis, extent in enumerate(desc.dims)]
        return PluginTensorDesc._of(dims, desc.type, desc.format)

    # Serialization ---------------------------------------------------------------------------------

    def get_fields_to_serialize(self) -> PluginFieldCollection:
        """The attributes: the description needs all of them again to tell extents."""
        fields = PluginFieldCollection(
            write_attribute(name, kind, self._attributes[name]) for name, kind in self._definition.attributes.items()
        )
        if self._tactic is not None:
            fields.append(PluginField(_TACTIC, np.array([self._tactic]), PluginFieldType.INT64))
        return fields


class QuickCreator(IPluginCreatorV3Quick):
    """Makes uses of one decorated plugin from the fields that engines keep.

    Args:
        definition: The plugin.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self.name, self.plugin_version, self.plugin_namespace = definition.name, VERSION, definition.namespace
        self.field_names = PluginFieldCollection(PluginField(name) for name in definition.attributes)

    def create_plugin(
        self,
        name: str,
        namespace: str,
        field_collection: PluginFieldCollection_,
        phase: Any,
        quickPluginType: Any,
    ) -> IPluginV3:
        """Makes a use from its attributes."""
        fields = {field.name: field for field in field_collection}
        tactic = fields.pop(_TACTIC, None)
        attributes = {
            label: read_attribute(self._definition.attributes[label], field) for label, field in fields.items()
        }
        number = None if tactic is None or tactic.data is None else int(tactic.data[0])
        return QuickPlugin(self._definition, attributes, tactic=number)


def write_attribute(name: str, kind: Any, value: Any) -> PluginField:
    """An attribute as a field.

    Raises:
        TypeError: The value is of another type than the attribute.
    """
    if isinstance(kind, np.dtype):
        array = np.asarray(value)
        if array.dtype != kind or array.ndim != 1:
            raise TypeError(
                f"attribute {name!r} is a one-dimensional array of {kind}, not {array.ndim}-D {array.dtype}"
            )
        raw = array.view(np.int8) if kind == np.bool_ else array
        return PluginField(name, raw, _FIELD_TYPES.get(kind, PluginFieldType.INT8))
    if kind is float and isinstance(value, (int, np.integer, np.floating)):
        value = float(value)
    if kind is int and isinstance(value, np.integer):
        value = int(value)
    if type(value) is not kind:
        raise TypeError(f"attribute {name!r} is {kind.__name__}, not {type(value).__name__}")
    if kind is str:
        return PluginField(name, value.encode(), PluginFieldType.CHAR)
    if kind is bytes:
        return PluginField(name, value, PluginFieldType.CHAR)
    if kind is float:
        return PluginField(name, np.array([value]), PluginFieldType.FLOAT64)
    return PluginField(name, np.array([int(value)]), PluginFieldType.INT64)


def read_attribute(kind: Any, field: PluginField) -> Any:
    """Inverse of `write_attribute`."""
    data = np.empty(0, np.int8) if field.data is None else field.data
    if isinstance(kind, np.dtype):
        return data.view(kind)
    if kind is str:
        return data.tobytes().decode()
    return data.tobytes() if kind is bytes else kind(data[0])
