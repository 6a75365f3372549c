"""PyTorch operators inside engines: a plugin in Python that calls the operator, and the converter that adds it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from trt_converters.converter import Check, Converter
from trt_converters.plugin_call import PluginCall, describe_call, plugin_extents, refuse_call
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import to_trt, trt
from trt_core.dtypes import from_trt, parse_dtype
from trt_core.internals import OpOverload
from trt_core.provider import provider_module

VERSION = "1"


def plugin_from_operator(
    op: OpOverload,
    *,
    checks: tuple[Check, ...] | Check = (),
    priority: int = 0,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> Any:
    """Lets engines run an operator as a plugin that calls its PyTorch implementation.

    The operator must be functional, take tensors and plain constants, and have a fake implementation, from which the
    extents of its results are known. Operators that draw random numbers stay in PyTorch.

    Plans hold the plugin by name, so a process that loads one must have called this function as well: call it where the
    operator is defined.

    Args:
        op: The operator, an overload such as `torch.ops.my_library.smooth.default`.
        checks: Further support checks.
        priority: See `Converter`.
        registry: Where the converter is registered.

    Returns:
        The plugin creator, registered with the provider of TensorRT's API that is in use.

    Raises:
        TypeError: The argument is not an operator overload, or the operator writes to its arguments.
    """
    if not isinstance(op, OpOverload):
        raise TypeError(f"{op!r} is not an operator overload; write torch.ops.<namespace>.<name>.<overload>")
    if op._schema.is_mutable:
        raise TypeError(f"{op} writes to its arguments, and engines do not; give an operator that returns its result")
    creator = _creator(op)

    def convert(ctx: Any, **arguments: Any) -> Any:
        call = describe_call(ctx.call)
        inputs = [ctx.tensor(arguments[name]) for name in call.tensors]
        plugin = _plugin_classes(provider_module())[0](op, call)
        layer = ctx.own(ctx.network.add_plugin_v3(inputs, [], plugin))
        outputs = [layer.get_output(index) for index in range(len(call.output_types))]
        return outputs if isinstance(ctx.result, (tuple, list)) else outputs[0]

    convert.__name__ = op.name().replace("::", "_").replace(".", "_")
    all_checks = (refuse_call, *(checks if isinstance(checks, tuple) else (checks,)))
    registry.register(Converter(op, convert, all_checks, priority, origin=op.namespace))
    return creator


def _creator(op: OpOverload) -> Any:
    """Returns the operator's creator, made and registered when there is none."""
    known = trt.get_plugin_registry().get_creator(op.name(), VERSION, "")
    if known is not None:
        return known
    made = _plugin_classes(provider_module())[1](op)
    trt.get_plugin_registry().register_creator(made, "")
    return made


@functools.lru_cache(maxsize=2)
def _plugin_classes(api: ModuleType) -> tuple[Any, Any]:
    """The plugin and its creator, whose bases are known once the provider is."""

    # the bases are known at run time
    class OperatorPlugin(
        api.IPluginV3,  # type: ignore[misc, name-defined]
        api.IPluginV3OneCore,  # type: ignore[misc, name-defined]
        api.IPluginV3OneBuild,  # type: ignore[misc, name-defined]
        api.IPluginV3OneRuntime,  # type: ignore[misc, name-defined]
    ):
        """Runs one call of an operator."""

        def __init__(self, op: OpOverload, call: PluginCall) -> None:
            for base in (api.IPluginV3, api.IPluginV3OneCore, api.IPluginV3OneBuild, api.IPluginV3OneRuntime):
                base.__init__(self)
            self.op, self.call = op, call
            self.plugin_name, self.plugin_version, self.plugin_namespace = op.name(), VERSION, ""
            self.num_outputs = len(call.output_types)
            # TensorRT refers to the bytes of a field, and the collection to the field: both stay as long as the plugin
            self._content = call.to_bytes()
            self._field = api.PluginField("call", self._content, api.PluginFieldType.CHAR)
            self._fields = api.PluginFieldCollection([self._field])

        def get_capability_interface(self, type: Any) -> Any:  # noqa: A002 - TensorRT's name
            return self

        def clone(self) -> OperatorPlugin:
            return OperatorPlugin(self.op, self.call)

        def attach_to_context(self, resource_context: Any) -> OperatorPlugin:
            return self.clone()

        def get_fields_to_serialize(self) -> Any:
            return self._fields

        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            return [to_trt(parse_dtype(name)) for name in self.call.output_types]

        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any) -> list[Any]:
            return [api.DimsExprs(shape) for shape in plugin_extents(self.call, inputs, expr_builder)]

        def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
            wanted = parse_dtype((*self.call.input_types, *self.call.output_types)[pos])
            described = in_out[pos].desc
            return bool(described.format == api.TensorFormat.LINEAR and described.type == to_trt(wanted))

        def configure_plugin(self, in_: Sequence[Any], out: Sequence[Any]) -> None:
            """Needs nothing: the call says everything."""

        def on_shape_change(self, in_: Sequence[Any], out: Sequence[Any]) -> None:
            """Needs nothing: the operator sees the tensors."""

        def enqueue(
            self,
            input_desc: Sequence[Any],
            output_desc: Sequence[Any],
            inputs: Sequence[int],
            outputs: Sequence[int],
            workspace: int,
            stream: int,
        ) -> None:
            given = [_memory(address, described) for address, described in zip(inputs, input_desc, strict=True)]
            wanted = [_memory(address, described) for address, described in zip(outputs, output_desc, strict=True)]
            tensors = dict(zip(self.call.tensors, given, strict=True))
            with torch.no_grad(), _on_stream(stream):
                made = self.op(**self.call.constants, **tensors)
                for target, value in zip(wanted, made if isinstance(made, (tuple, list)) else (made,), strict=True):
                    target.copy_(value)

    class OperatorPluginCreator(api.IPluginCreatorV3One):  # type: ignore[misc, name-defined]
        """Makes the plugins of one operator."""

        def __init__(self, op: OpOverload) -> None:
            api.IPluginCreatorV3One.__init__(self)
            self.op = op
            self.name, self.plugin_version, self.plugin_namespace = op.name(), VERSION, ""
            self.field_names = api.PluginFieldCollection([api.PluginField("call")])

        def create_plugin(self, name: str, field_collection: Any, phase: Any) -> OperatorPlugin:
            return OperatorPlugin(self.op, PluginCall.from_bytes(bytes(field_collection[0].data)))

    return OperatorPlugin, OperatorPluginCreator


def _memory(address: int, described: Any) -> torch.Tensor:
    """The tensor at an address that TensorRT hands to a plugin."""
    known = getattr(address, "tensor", None)
    if isinstance(known, torch.Tensor):  # the portable provider gives the memory itself
        return known
    dtype, shape = from_trt(described.type), tuple(described.dims)
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype, device="cuda")
    memory = _DeviceBytes(int(address), math.prod(shape) * dtype.itemsize)
    return torch.as_tensor(memory, device="cuda").view(dtype).reshape(shape)


class _DeviceBytes:
    """Bytes on the current GPU, in the interface that PyTorch reads addresses from."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _on_stream(stream: int) -> contextlib.AbstractContextManager[Any]:
    if not stream or not torch.cuda.is_available():
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))
