"""How compiled models run, by the names that scripts of this field write.

What those names switch on elsewhere and always holds here is taken in silence; what has no effect says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from torch import nn

from trt_core import CompilationSettings, InputError
from trt_core.held_arguments import held_to_signature
from trt_core.settings_reader import has_no_effect
from trt_frontends.torch_tensorrt import names_of
from trt_runtime import PreAllocatedOutputs, TRTModule, weight_streaming
from trt_runtime.context_pool import MOST_IDLE
from trt_runtime.graphed_calls import cuda_graphs
from trt_runtime.module import engines_of, running_device

__all__ = [
    "PythonTorchTensorRTModule",
    "ResourceAllocationStrategy",
    "TorchTensorRTModule",
    "enable_cudagraphs",
    "enable_output_allocator",
    "enable_pre_allocated_outputs",
    "get_cudagraphs_mode",
    "get_whole_cudagraphs_mode",
    "optimization_profile",
    "set_cudagraphs_mode",
    "set_multi_device_safe_mode",
    "weight_streaming",
]

__getattr__, __dir__ = names_of(__name__)

_WHOLE: Final = (
    "calls of one whole module are recorded: call what enable_cudagraphs(module) yields, or set use_cuda_graphs"
)

_Module = TypeVar("_Module", bound=nn.Module)


class _AnyEngineModule(type(TRTModule)):  # type: ignore[misc]  # a computed base, which is `type`
    """Modules of engines are of one class; scripts ask for it, and make its objects, by another name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, TRTModule)


class TorchTensorRTModule(TRTModule, metaclass=_AnyEngineModule):
    """Makes a `trt_runtime.TRTModule` of a serialized engine; every such module is an instance.

    Args:
        serialized_engine: As `convert_exported_program_to_serialized_trt_engine` or TensorRT's builder returns it.
        input_binding_names: Names of its inputs in the order of a call; by default in the engine's order.
        output_binding_names: Names of its outputs in the order of the result.
        name: What messages call it.
        settings: Their device is where it runs; by default the current GPU where there is one.
        weight_name_map, requires_output_allocator, symbolic_shape_expressions: No effect: the engine says what is to
            be known of its sizes, and `refit` of a compiled model replaces weights.

    Raises:
        InputError: There is no engine.
        PlanError: The provider cannot load it, or it has other inputs or outputs.
    """

    @held_to_signature
    def __new__(  # type: ignore[misc]  # the module of an engine
        cls,
        serialized_engine: bytes | bytearray | memoryview | None = None,
        input_binding_names: Sequence[str] | None = None,
        output_binding_names: Sequence[str] | None = None,
        *,
        name: str = "",
        settings: CompilationSettings | None = None,
        weight_name_map: Mapping[Any, Any] | None = None,
        requires_output_allocator: bool = False,
        symbolic_shape_expressions: Any = None,
    ) -> TRTModule:
        """Makes the module."""
        if serialized_engine is None:
            raise InputError(
                "TorchTensorRTModule needs an engine",
                hint="give its bytes; trt_runtime.load reads saved programs, and their engines with them",
            )
        device = None if settings is None else settings.device
        inputs, outputs = input_binding_names, output_binding_names
        return TRTModule.of_engine(serialized_engine, inputs, outputs, device=device, name=name)


PythonTorchTensorRTModule = TorchTensorRTModule


@held_to_signature
def enable_cudagraphs(compiled_module: nn.Module | None = None) -> contextlib.AbstractContextManager[nn.Module | None]:
    """Runs calls of a module as CUDA graphs inside a block; see `trt_runtime.cuda_graphs`.

    Args:
        compiled_module: A compiled model or a loaded program.

    Returns:
        What yields the module to call. On the CPU that is the module itself.

    Raises:
        ExecutionError: Calls of the module cannot be recorded; the message says why.

    Warns:
        UserWarning: Nothing is recorded: the module runs on the CPU, or there is none.
    """
    if compiled_module is None:
        has_no_effect("enable_cudagraphs() without a module", _WHOLE)
        return contextlib.nullcontext()
    if running_device(compiled_module).type != "cuda":
        has_no_effect("enable_cudagraphs", "the module runs on the CPU")
        return contextlib.nullcontext(compiled_module)
    return cuda_graphs(compiled_module)


@held_to_signature
def set_cudagraphs_mode(mode: bool) -> None:
    """Takes False; True has no effect, for no mode of the process records calls.

    Args:
        mode: Whether all engines of the process are to run as CUDA graphs.

    Warns:
        UserWarning: The mode is True.
    """
    if mode:
        has_no_effect("set_cudagraphs_mode(True)", _WHOLE)


def get_cudagraphs_mode() -> bool:
    """Whether all engines of the process run as CUDA graphs: never."""
    return False


def get_whole_cudagraphs_mode() -> bool:
    """Whether whole modules of the process run as CUDA graphs by a mode: never, `enable_cudagraphs` records them."""
    return False


@held_to_signature
def enable_pre_allocated_outputs(module: nn.Module) -> PreAllocatedOutputs:
    """Allocates the outputs of the next call while a call runs: inside a block, or by the switch that it returns.

    Args:
        module: A compiled model or a loaded program.
    """
    return PreAllocatedOutputs(module)


@held_to_signature
def enable_output_allocator(module: nn.Module) -> Switch:
    """Returns a switch without an effect: outputs whose sizes depend on data are always allocated as they come.

    Args:
        module: A compiled model or a loaded program.
    """
    return Switch(module)


@held_to_signature
def set_multi_device_safe_mode(mode: bool) -> contextlib.AbstractContextManager[None]:
    """Has no effect: engines always run on the device of their tensors, and refuse those of another.

    Args:
        mode: Whether that is to be made sure of.

    Returns:
        What may be entered by `with`.
    """
    return contextlib.nullcontext()


@held_to_signature
def optimization_profile(module: _Module, profile: int | str = "auto") -> contextlib.AbstractContextManager[_Module]:
    """Has no effect beyond `"auto"`: each call runs in the profile that fits its sizes best.

    Args:
        module: A compiled model or a loaded program.
        profile: Number of a profile, or `"auto"`.

    Returns:
        What yields the module.

    Warns:
        UserWarning: A profile is named.
    """
    if profile != "auto":
        has_no_effect(
            f"optimization_profile(..., {profile!r})", "each call runs in the profile that fits its sizes best"
        )
    return contextlib.nullcontext(module)


class Switch:
    """What scripts switch on and off where nothing is to be switched here.

    Args:
        module: What it is for.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def set_output_allocator_output(self, enable: bool) -> None:
        """Switches nothing."""

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ResourceAllocationStrategy:
    """Has engines give the memory that they compute in back after each call, inside a block or for good.

    Otherwise they keep it for the next call. Giving it back makes calls slower: each makes a new execution context, and
    waits for the device. Engines of one plan are one engine, also in other modules.

    Args:
        compiled_module: A compiled model or a loaded program.
        dynamically_allocate_resources: Whether memory is given back; False keeps it.
    """

    def __init__(self, compiled_module: nn.Module, dynamically_allocate_resources: bool = True) -> None:
        self.compiled_module = compiled_module
        self._engines = engines_of(compiled_module)
        for engine in self._engines:
            engine.keep_contexts(0 if dynamically_allocate_resources else MOST_IDLE)

    def __enter__(self) -> ResourceAllocationStrategy:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines:
            engine.keep_contexts(MOST_IDLE)
