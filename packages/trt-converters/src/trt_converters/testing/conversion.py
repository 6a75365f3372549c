"""Converts one operator call, runs the plan once through TensorRT's API, and compares the engine with eager PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from trt_converters.build import build_block
from trt_converters.interpreter import BlockInterpreter
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_converters.support import ConverterSupport
from trt_converters.testing.calls import DynamicAxes, OperatorCall, record_call
from trt_converters.testing.comparison import compare, rounding_bounds
from trt_core import CompilationSettings, Device, Provider, Verdict, current_provider, device_scope, trt
from trt_core.dtypes import from_trt
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.output_allocator import output_allocator


def default_settings(tensors: Sequence[torch.Tensor] = ()) -> CompilationSettings:
    """Returns what the kit compiles with: the lowest optimization level, which builds fastest.

    Args:
        tensors: Inputs; the engine is for their device, so that it runs beside eager on the same one. TensorRT has no
            other device than the current GPU.
    """
    device = Device.current()
    if tensors and current_provider() is Provider.PORTABLE:
        device = Device(tensors[0].device)
    return CompilationSettings(optimization_level=0, device=device)


def run_engine(
    plan: Any,
    input_names: Sequence[str],
    inputs: Sequence[torch.Tensor],
    settings: CompilationSettings | None = None,
) -> tuple[torch.Tensor, ...]:
    """Deserializes a plan and runs it once.

    Args:
        plan: What the builder returned.
        input_names: Names of the bindings that the inputs belong to.
        inputs: One tensor per name.
        settings: What the plan was compiled with, for the device.

    Raises:
        RuntimeError: The provider refused the plan, an input, or the execution; the message repeats its log.
    """
    device = (settings or default_settings(inputs)).device.torch_device
    forget_errors()
    logger = provider_logger()

    def require(condition: Any, what: str) -> None:
        if not condition:
            raise RuntimeError(f"{what}: {take_errors() or 'the provider gave no reason'}")

    with device_scope(device):
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        require(engine is not None, "the plan was refused")
        context = engine.create_execution_context()
        held = [tensor.to(device).contiguous() for tensor in inputs]
        for name, tensor in zip(input_names, held, strict=True):
            if engine.get_tensor_mode(name) == trt.TensorIOMode.NONE:  # no output depends on it: the builder drops it
                continue
            require(context.set_input_shape(name, tuple(tensor.shape)), f"{name} of shape {tuple(tensor.shape)}")
            # an empty tensor has no memory of its own, yet every binding needs an address
            require(context.set_tensor_address(name, tensor.data_ptr() or _byte_address(held)), f"address of {name}")
        require(not context.infer_shapes(), "not every shape could be inferred")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        readers = [
            _bind_output(engine, context, name, device, require)
            for name in names
            if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
        ]
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        require(context.execute_async_v3(stream), "execution failed")
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return tuple(read() for read in readers)


def _byte_address(held: list[torch.Tensor]) -> int:
    """Adds one byte of memory to what is held, and returns its address."""
    held.append(torch.empty(1, dtype=torch.uint8, device=held[0].device))
    return held[-1].data_ptr()


def _bind_output(
    engine: Any, context: Any, name: str, device: torch.device, require: Callable[[Any, str], None]
) -> Callable[[], torch.Tensor]:
    dtype = from_trt(engine.get_tensor_dtype(name))
    shape = tuple(context.get_tensor_shape(name))
    if any(extent < 0 for extent in shape):
        allocator = output_allocator(dtype, device)
        require(context.set_output_allocator(name, allocator), f"output allocator of {name}")
        return lambda: allocator.take(name)
    numel = max(1, torch.Size(shape).numel())
    memory = torch.empty(numel, dtype=dtype, device=device)
    require(context.set_tensor_address(name, memory.data_ptr()), f"address of {name}")
    return lambda: memory[: torch.Size(shape).numel()].reshape(shape)


@dataclass(frozen=True)
class ConversionResult:
    """What came of a conversion.

    Attributes:
        call: The call that was converted.
        verdict: Whether it is supported, and why not.
        outputs: What the engine returned for the call's own tensors; empty when refused.
        expected: What PyTorch returned for them.
        settings: What it was converted with.
    """

    call: OperatorCall = field(repr=False)
    verdict: Verdict
    outputs: tuple[torch.Tensor, ...] = ()
    expected: tuple[torch.Tensor, ...] = ()
    settings: CompilationSettings = field(repr=False, default_factory=CompilationSettings)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Types of the layers that the converter made, such as `("CONSTANT", "ELEMENTWISE")`, in network order."""
        return _layer_types(self.call, self.settings, DYNAMO_CONVERTERS)


def check_conversion(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicAxes | None = None,
    constants: Sequence[int] = (),
    expect_supported: bool | None = True,
    rtol: float | None = None,
    atol: float | None = None,
    settings: CompilationSettings | None = None,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    results: Sequence[int] | None = None,
) -> ConversionResult:
    """Converts one call of an operator and compares the engine with eager PyTorch.

    Args:
        op: An operator overload, such as `torch.ops.aten.add.Tensor`.
        args: Its positional arguments. Tensors, also inside lists, are counted from 0 in the order they appear;
            `ExtentOf` stands for an extent of one of them.
        kwargs: Its keyword arguments; their tensors are counted after those of `args`.
        dynamic: Axes with symbolic extents, `{tensor: {axis: (min, opt, max)}}`. One engine is then run with tensors
            of the given, the minimal and the maximal extents; rows are repeated or dropped to make them.
        constants: Tensors (by position) that are constants of the graph instead of inputs.
        expect_supported: Whether the verdict must be supported (True), a refusal (False), or either (None).
        rtol, atol: Tolerances instead of those of `TOLERANCES`.
        settings: What to compile with; by default nothing but the lowest optimization level, which builds fastest.
        registry: Where converters are looked up.
        results: Which items of a list or tuple of results are used; by default all of them.

    Returns:
        The verdict and, when supported, the outputs.

    Raises:
        AssertionError: The verdict is not the expected one, or the engine's results differ from eager's.
        ConversionError: The converter accepted the call and failed on it.
        BuildError: The provider refused the network.
    """
    call = record_call(op, args, kwargs, dynamic=dynamic, constants=constants, results=results)
    settings = settings or default_settings(call.tensors)
    verdict = ConverterSupport(settings, registry).verdict(call.node)
    if expect_supported is not None and verdict.supported is not expect_supported:
        found = "is supported" if verdict.supported else f"is refused, {verdict.code}: {verdict.message}"
        raise AssertionError(f"{op} {found}")
    if not verdict.supported:
        return ConversionResult(call, verdict, settings=settings)
    engine = build_block(call.block, settings, call.ranges, "block", registry)
    runs = []
    for tensors in _variants(call, dynamic):
        expected = call.eager(tensors)
        outputs = run_engine(engine.plan, engine.input_names, [tensors[i] for i in call.input_positions], settings)
        compare(
            outputs,
            expected,
            rtol=rtol,
            atol=atol,
            what=f"{op} on {[tuple(t.shape) for t in tensors]}",
            bounds=functools.partial(rounding_bounds, call.eager, tensors, [item.dtype for item in expected]),
        )
        runs.append((outputs, expected))
    return ConversionResult(call, verdict, *runs[0], settings=settings)


def emitted_layers(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicAxes | None = None,
    constants: Sequence[int] = (),
    settings: CompilationSettings | None = None,
) -> tuple[str, ...]:
    """Returns the types of the layers that converting a call makes; nothing is built. See `check_conversion`."""
    call = record_call(op, args, kwargs, dynamic=dynamic, constants=constants)
    return _layer_types(call, settings or default_settings(call.tensors), DYNAMO_CONVERTERS)


def _layer_types(call: OperatorCall, settings: CompilationSettings, registry: ConverterRegistry) -> tuple[str, ...]:
    with device_scope(settings.device.torch_device):
        builder = trt.Builder(provider_logger())
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        BlockInterpreter(call.block, network, settings, call.ranges, registry).run()
        # pooling and activation layers have a `type` of their own, which hides the kind of layer
        kind_of = trt.ILayer.type.fget
        return tuple(kind_of(network.get_layer(index)).name for index in range(network.num_layers))


def _variants(call: OperatorCall, dynamic: DynamicAxes | None) -> list[list[torch.Tensor]]:
    """The call's own tensors, then ones of minimal and of maximal extents."""
    variants = [list(call.tensors)]
    if dynamic:
        for choice in (0, 2):
            variants.append(
                [
                    _resize(tensor, {axis: bounds[choice] for axis, bounds in dynamic.get(position, {}).items()})
                    for position, tensor in enumerate(call.tensors)
                ]
            )
    return variants


def _resize(tensor: torch.Tensor, extents: Mapping[int, int]) -> torch.Tensor:
    for axis, extent in extents.items():
        rows = torch.arange(extent, device=tensor.device) % tensor.shape[axis]
        tensor = tensor.index_select(axis, rows)
    return tensor
