"""The name `torch_tensorrt` for this package, for scripts that are written with it, and types by the names they use."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from types import MappingProxyType
from typing import Any, Final

import torch

from trt_core import InputError
from trt_core.dtypes import parse_dtype
from trt_core.lazy_names import lazy_names


class dtype:
    """Types of PyTorch, which all settings take; they are values of `torch.dtype`, and so have no method `to`."""

    float: Final = torch.float32
    float32: Final = torch.float32
    f32: Final = torch.float32
    single: Final = torch.float32
    half: Final = torch.float16
    float16: Final = torch.float16
    f16: Final = torch.float16
    fp16: Final = torch.float16
    bf16: Final = torch.bfloat16
    bfloat16: Final = torch.bfloat16
    double: Final = torch.float64
    float64: Final = torch.float64
    f64: Final = torch.float64
    f8: Final = torch.float8_e4m3fn
    float8: Final = torch.float8_e4m3fn
    int8: Final = torch.int8
    i8: Final = torch.int8
    uint8: Final = torch.uint8
    u8: Final = torch.uint8
    int32: Final = torch.int32
    i32: Final = torch.int32
    int: Final = torch.int32
    int64: Final = torch.int64
    i64: Final = torch.int64
    long: Final = torch.int64
    bool: Final = torch.bool
    b: Final = torch.bool

    @staticmethod
    def _from(t: Any, use_default: Any = False) -> torch.dtype:
        """Reads a type.

        Args:
            t: A type of PyTorch, NumPy or TensorRT, or its name.
            use_default: Whether anything else is float32.

        Raises:
            InputError: It is none.
        """
        found = dtype.try_from(t)
        if found is None:
            return torch.float32 if use_default else parse_dtype(t)
        return found

    @staticmethod
    def try_from(t: Any, use_default: Any = False) -> torch.dtype | None:
        """Reads a type as `_from` does; None where it is none."""
        with contextlib.suppress(InputError):
            return parse_dtype(t)
        return torch.float32 if use_default else None


class memory_format:
    """Memory formats of PyTorch."""

    contiguous: Final = torch.contiguous_format
    linear: Final = torch.contiguous_format
    channels_last: Final = torch.channels_last
    cdhw4: Final = torch.channels_last_3d


class EngineCapability:
    """What the setting `engine_capability` takes."""

    STANDARD: Final = "standard"
    DEFAULT: Final = "standard"
    SAFETY: Final = "safety"
    DLA_STANDALONE: Final = "dla_standalone"


class DeviceType:
    """Kinds of devices, as `Device` takes them."""

    GPU: Final = "cuda"
    DLA: Final = "dla"


_ALIAS = "torch_tensorrt"
_SUBMODULES = {
    **{f"{part}": "" for part in ("_Device", "_Input", "_compile")},
    "_enums": "torch_tensorrt",
    "distributed": "distributed",
    "distributed._nccl_utils": "distributed",
    "dynamo": "dynamo",
    "dynamo._refit": "dynamo",
    "dynamo._tracer": "dynamo",
    "dynamo._SourceIR": "dynamo",
    "dynamo._compiler": "dynamo",
    "dynamo._settings": "dynamo",
    "dynamo._engine_cache": "custom_engine_cache",
    "dynamo.debugger": "logging",
    "dynamo._defaults": "dynamo.script_values",
    "dynamo.conversion": "dynamo.conversion",
    "dynamo.conversion._ConversionContext": "dynamo.conversion",
    "dynamo.conversion._ConverterRegistry": "dynamo.conversion._ConverterRegistry",
    "dynamo.conversion.converter_utils": "dynamo.conversion.registration",
    "dynamo.conversion.plugins": "dynamo.conversion.registration",
    **{
        f"dynamo.conversion.impl{name}": "dynamo.conversion.impl"
        for name in ("", ".activation", ".condition", ".elementwise", ".reduce", ".shuffle", ".unary")
    },
    "dynamo.lowering": "dynamo.lowering",
    "dynamo.lowering.passes": "dynamo.lowering",
    "dynamo.lowering.passes._aten_lowering_pass": "dynamo.lowering",
    "dynamo.lowering.passes.pass_utils": "dynamo.lowering",
    "dynamo.types": "dynamo.conversion.registration",
    "dynamo.partitioning": "dynamo.partitioning",
    "dynamo.partitioning._hierarchical_partitioner": "dynamo.partitioning",
    "dynamo.runtime": "runtime",
    "dynamo.runtime._PythonTorchTensorRTModule": "runtime",
    "dynamo.runtime._ResourceAllocator": "runtime",
    "dynamo.runtime._TorchTensorRTModule": "runtime",
    "dynamo.utils": "dynamo.script_values",
    "logging": "logging",
    "runtime": "runtime",
}
"""What scripts import, and the module of this package that stands for it."""

_ELSEWHERE = "save a program here and load it there: files of portable engines run on every system"
_ONE_ENGINE = "dynamo.convert_exported_program_to_serialized_trt_engine builds one engine, and compile a module of them"
_PASSES = "add_lowering_pass and remove_lowering_pass change which run, dump_lowering_passes tells their names"
_PREFIX = "formatters of Python's logging write prefixes"
_SPLIT = "make_plan decides what is in which block, and split_into_blocks divides the graph"
ABSENT: Final = {
    "Platform": _ELSEWHERE,
    "cross_compile_for_windows": _ELSEWHERE,
    "load_cross_compiled_exported_program": _ELSEWHERE,
    "dynamo.cross_compile_for_windows": _ELSEWHERE,
    "dynamo.save_cross_compiled_exported_program": _ELSEWHERE,
    "dynamo.load_cross_compiled_exported_program": _ELSEWHERE,
    "dynamo.export": "save(model, path, output_format='exported_program') writes PyTorch's format",
    "dynamo._exporter": "save(model, path, output_format='exported_program') writes PyTorch's format",
    "dynamo.backend": 'torch.compile(model, backend="torch_tensorrt") is all that it takes',
    "dynamo._engine_cache.DiskEngineCache": "compile(engine_cache_dir=...) keeps engines on disk",
    "dynamo.conversion.TRTInterpreter": _ONE_ENGINE,
    "dynamo.conversion._TRTInterpreter": _ONE_ENGINE,
    "dynamo.conversion._conversion": _ONE_ENGINE,
    "dynamo.conversion.aten_ops_converters": "trt_converters.converter(checks=...) takes checks of operators",
    "dynamo.conversion.convert_module": _ONE_ENGINE,
    "dynamo.conversion.interpret_module_to_result": _ONE_ENGINE,
    "dynamo.lowering.ATEN_POST_LOWERING_PASSES": _PASSES,
    "dynamo.lowering.ATEN_PRE_LOWERING_PASSES": _PASSES,
    "dynamo.partitioning.fast_partition": _SPLIT,
    "dynamo.partitioning.global_partition": _SPLIT,
    "dynamo.runtime.CudaGraphsTorchTensorRTModule": "runtime.enable_cudagraphs(module) yields such a module",
    "dynamo.runtime._CudaGraphsTorchTensorRTModule": "runtime.enable_cudagraphs(module) yields such a module",
    "dynamo.utils.get_torch_inputs": "Input.example makes a tensor, on any device",
    "dynamo.utils.parse_dynamo_kwargs": "CompilationSettings(...) reads settings",
    "dynamo.utils.set_log_level": "logging.set_level(logging.DEBUG) sets it",
    "logging.Level": "levels are those of Python, as logging.DEBUG",
    "logging.get_logging_prefix": _PREFIX,
    "logging.get_reportable_log_level": 'logging.getLogger("torch_tensorrt").level is it',
    "logging.log": 'write logging.getLogger("torch_tensorrt").log(level, text)',
    "logging.set_is_colored_output_on": "handlers of Python's logging decide how lines look",
    "logging.set_logging_prefix": _PREFIX,
    "logging.set_reportable_log_level": "write set_level(logging.DEBUG), with Python's levels",
    "ENABLED_FEATURES": "trt_core.current_provider() says what engines are built by; all else is always there",
    "check_method_op_support": "explain(model, inputs) says which operators can run in engines",
    "dump_build_info": "trtc --version says which releases there are",
    "get_build_info": "trtc --version says which releases there are",
    "embed_engine_in_new_module": "keep what compile returns, which is such a module; save(module, path) saves it",
    "set_device": "torch.cuda.set_device, or compile(device=...)",
    "fx": "compile captures models with torch.export; its converters are those of dynamo.conversion",
    "ts": "compile captures models with torch.export, and takes no TorchScript",
    "ptq": "models are quantized by trt_frontends.quantize",
}
"""Names of the other package that mean nothing here, and what to do instead."""


@functools.cache  # every import of a module of this package asks
def _absent_from(module: str) -> dict[str, str]:
    """What scripts look for in a module of this package, and what to do instead."""
    hints = {}
    alias = f"call {__package__}.install_alias(), and import {_ALIAS}."
    aliased = {name: f"{alias}{name}" for name, home in _SUBMODULES.items() if home != name}
    for absent, hint in (aliased | ABSENT).items():
        parent, _, name = absent.rpartition(".")
        if f"{__package__}.{_SUBMODULES.get(parent, parent)}".rstrip(".") == module:
            hints[name] = hint
    return hints


def names_of(
    module: str, homes: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a module that stands for another package's; see `lazy_names`.

    Args:
        module: Its `__name__`.
        homes: What it imports when it is first used.
    """
    vars(sys.modules[module]).setdefault("__path__", [])  # only of packages, Python looks for what `from` misses
    return lazy_names(module, homes, _absent_from(module))


class _Absent(MetaPathFinder):
    """Says of names that scripts import and that are not here what to do instead."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        parent, _, name = fullname.rpartition(".")
        package = parent.partition(".")[0]
        if package not in (_ALIAS, __package__):
            return
        if hint := _absent_from(getattr(sys.modules.get(parent), "__name__", "")).get(name):
            raise ModuleNotFoundError(f"{name} is not in {__package__}: {hint}")
        if package == _ALIAS and sys.modules.get(_ALIAS) is sys.modules[__package__]:
            raise ModuleNotFoundError(
                f"{fullname} is not in {__package__}; the guide from_torch_tensorrt lists the names that are",
                name=fullname,
            )


sys.meta_path.insert(0, _Absent())


def install_alias() -> None:
    """Makes `import torch_tensorrt` mean `trt_frontends` in this process.

    Raises:
        ImportError: A distribution of that name is installed, or already imported.
    """
    package = importlib.import_module(__package__)
    known = sys.modules.get(_ALIAS)
    if known is package:
        return
    if known is not None or importlib.util.find_spec(_ALIAS) is not None:
        raise ImportError(f"a package called {_ALIAS} is installed; the alias would hide it")
    sys.modules[_ALIAS] = package
    for name, own in _SUBMODULES.items():
        module = sys.modules[f"{_ALIAS}.{name}"] = importlib.import_module(f"{__package__}.{own}".rstrip("."))
        parent, _, last = f"{_ALIAS}.{name}".rpartition(".")
        if not hasattr(sys.modules[parent], last):
            setattr(sys.modules[parent], last, module)
