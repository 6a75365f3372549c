"""Compilation settings: one frozen dataclass. `trt_core.settings_reader` turns user keywords into it."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch

from trt_core.device import Device
from trt_core.dtypes import dtype_name
from trt_core.errors import SettingsError
from trt_core.operators import canonical_operators

MiB = 1 << 20


@dataclass(frozen=True)
class CompilationSettings:
    """How a model is compiled.

    Operators and precision:

    Attributes:
        precision: Type that floating-point computation is converted to by lowering; inputs and outputs keep theirs.
            `torch.float32` (default) leaves the model's own types alone.
        enabled_precisions: Types the compiler may compute in, as an older generation of this API had it. Kept for
            reading; giving it maps to `enable_autocast` with a `DeprecationWarning`.
        use_explicit_typing: Respect the types in the model (default True). Networks are always strongly typed, so
            False has no effect other than a warning.
        enable_autocast: Let lowering run matrix and convolution work in `autocast_dtype`, the rest in float32.
        autocast_dtype: Type that `enable_autocast` uses, float16 by default.
        truncate_long_and_double: Narrow int64 and float64 inputs and weights of engines to int32 and float32.
        torch_executed_ops: Operators that run in PyTorch whatever the converters can do.
        torch_executed_modules: Modules (dotted paths or class names) whose nodes run in PyTorch.
        enable_experimental_decompositions: Decompose everything that PyTorch's core ATen decompositions cover, not
            only what has no converter.

    Partitioning:

    Attributes:
        min_block_size: Fewest operators that make an engine worthwhile, default 5; `float("inf")` builds none.
        use_fast_partitioner: True (default) grows blocks in one pass; False searches for larger ones.
        require_full_compilation: Raise when any node would run in PyTorch.
        dryrun: True prints the partition report and builds nothing; a path saves it as well.
        debug: Print details of the compilation through the `torch_tensorrt` logger.

    Building:

    Attributes:
        device: Device engines are built for; by default the current GPU, else the CPU.
        workspace_size: Workspace limit in bytes; 0 leaves the builder's own limit.
        optimization_level: Builder effort, 0 to 5; None is the builder's default (3).
        max_aux_streams: Most auxiliary streams per engine; None lets the builder choose.
        num_avg_timing_iters: Timing iterations averaged per tactic.
        disable_tf32: Compute float32 products without TF32.
        sparse_weights: Let the builder use 2:4 sparse weights.
        refit: Build engines whose weights can be replaced.
        version_compatible: Build plans that later TensorRT versions can load.
        hardware_compatible: Build plans that run on other GPUs than the building one (Ampere and newer).
        engine_capability: `"standard"`, `"safety"` or `"dla_standalone"`.
        dla_sram_size: Bytes of software-managed SRAM for DLA, default 1 MiB.
        dla_local_dram_size: Bytes of host RAM for DLA intermediates, default 1 GiB.
        dla_global_dram_size: Bytes of host RAM for DLA weights and metadata, default 512 MiB.
        use_python_runtime: Kept for reading: engines always run through one registered operator.
        pass_through_build_failures: Raise when an engine cannot be built, instead of running its block in PyTorch.
    """

    precision: torch.dtype = torch.float32
    enabled_precisions: frozenset[torch.dtype] = frozenset({torch.float32})
    use_explicit_typing: bool = True
    enable_autocast: bool = False
    autocast_dtype: torch.dtype = torch.float16
    truncate_long_and_double: bool = False
    torch_executed_ops: frozenset[str] = frozenset()
    torch_executed_modules: frozenset[str] = frozenset()
    enable_experimental_decompositions: bool = False

    min_block_size: int | float = 5
    use_fast_partitioner: bool = True
    require_full_compilation: bool = False
    dryrun: bool | str = False
    debug: bool = False

    device: Device = field(default_factory=Device.current)
    workspace_size: int = 0
    optimization_level: int | None = None
    max_aux_streams: int | None = None
    num_avg_timing_iters: int = 1
    disable_tf32: bool = False
    sparse_weights: bool = False
    refit: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False
    engine_capability: str = "standard"
    dla_sram_size: int = 1 * MiB
    dla_local_dram_size: int = 1024 * MiB
    dla_global_dram_size: int = 512 * MiB
    use_python_runtime: bool | None = False
    pass_through_build_failures: bool = False

    def __post_init__(self) -> None:
        operators = canonical_operators(self.torch_executed_ops)
        object.__setattr__(self, "torch_executed_ops", operators)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingsError(
                    f"{name}={value!r} is out of range",
                    where="CompilationSettings",
                    hint=f"give a value from {low} to {high}" if high < _ANY else f"give a value of at least {low}",
                )
        if self.engine_capability not in _CAPABILITIES:
            raise SettingsError(
                f"unknown engine_capability {self.engine_capability!r}",
                hint=f"choose one of {', '.join(_CAPABILITIES)}",
            )

    def replace(self, **changes: Any) -> CompilationSettings:
        """Returns a copy with the given fields changed."""
        return dataclasses.replace(self, **changes)

    def digest(self) -> str:
        """Returns a hex digest of every field that can change an engine, for caches and plan headers."""
        relevant = [f"{name}={_stable(getattr(self, name))}" for name in _field_names() if name not in _NO_EFFECT]
        return hashlib.sha256("\n".join(relevant).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON values, types and devices by name, `min_block_size` inf as `"inf"`."""
        return {name: _jsonable(getattr(self, name)) for name in _field_names()}

    def __str__(self) -> str:
        parts = ", ".join(f"{name}={_spell(getattr(self, name))}" for name in _field_names())
        return f"CompilationSettings({parts})"


_ANY = float("inf")
_RANGES = (
    ("min_block_size", 1, _ANY),
    ("workspace_size", 0, _ANY),
    ("optimization_level", 0, 5),
    ("max_aux_streams", 0, _ANY),
    ("num_avg_timing_iters", 1, _ANY),
    ("dla_sram_size", 4096, _ANY),
    ("dla_local_dram_size", 4096, _ANY),
    ("dla_global_dram_size", 4096, _ANY),
)
_CAPABILITIES = ("standard", "safety", "dla_standalone")
_NO_EFFECT = frozenset({"dryrun", "debug", "pass_through_build_failures", "require_full_compilation"})


def _field_names() -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(CompilationSettings))


def _stable(value: Any) -> str:
    if isinstance(value, frozenset):
        return ",".join(sorted(str(item) for item in value))
    return str(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(str(_jsonable(item)) for item in value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, Device):
        return str(value)
    return "inf" if value == _ANY else value


def _spell(value: Any) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(_spell(item) for item in value)) + "}" if value else "set()"
    if isinstance(value, torch.dtype):
        return f"dtype.{_SHORT.get(value, dtype_name(value))}"
    return str(value) if isinstance(value, (Device, str)) else repr(value)


_SHORT = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.float8_e4m3fn: "f8",
}
