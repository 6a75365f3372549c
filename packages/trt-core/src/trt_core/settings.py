"""Compilation settings: one frozen dataclass. `trt_core.settings_reader` turns user keywords into it.

The annotation of a field is its rule: type, range, and how users may write it; `read_setting` applies it,
whether the value comes from a keyword or from the constructor. To add a setting, add an annotated field, describe it
in the docstring, and show in `tests/settings` what it changes. One whose other values its type does not tell has an
`Example` of them. One that conversion or building reads has `metadata=read_by_building(...)`, which says what it
becomes on each provider.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import torch

from trt_core.device import Device
from trt_core.dtypes import dtype_name, parse_dtype
from trt_core.errors import InputError, SettingsError, TrtError
from trt_core.operators import canonical_operators
from trt_core.wording import did_you_mean, kind_of

ANY: Final = float("inf")


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of a number, both included.

    Attributes:
        low, high: The bounds.
        whole: Whether what lies between must be a whole number; infinity may be none.
    """

    low: float
    high: float = ANY
    whole: bool = False

    def __str__(self) -> str:
        number = "a whole number" if self.whole else "a value"
        return f"{number} from {self.low} to {self.high}" if self.high < ANY else f"{number} of at least {self.low}"

    def allows(self, value: float) -> bool:
        """Whether a number is one of these."""
        return self.low <= value <= self.high and (not self.whole or value == ANY or value == int(value))


@dataclass(frozen=True, init=False)
class OneOf:
    """The values that there are."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def __str__(self) -> str:
        return f"one of {', '.join(_spelt_value(value) for value in self.values)}"


@dataclass(frozen=True)
class ReadBy:
    """A function that brings what users write into the form that the setting has, before its type is checked."""

    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Example:
    """A value other than the default, as users may write it."""

    value: Any


def read_setting(name: str, annotation: Any, value: Any) -> Any:
    """Returns the value of a setting in its one form: `"half"` becomes `torch.float16`, a list a frozenset.

    Args:
        name: Name of the setting, for the message.
        annotation: Its resolved annotation: `bool`, `int`, `float`, `str`, `torch.dtype`, `Device`, `frozenset` of one
            of them, a tuple, a union of these, each perhaps `Annotated` with `Range`, `OneOf` and `ReadBy`.
        value: What the user gave.

    Raises:
        SettingsError: The value is of another type, or out of range.
    """
    kind, rules = _unwrap(annotation)
    try:
        found = value
        for rule in rules:
            if isinstance(rule, ReadBy):
                found = rule.function(found)
        found = _read(kind, found)
    except SettingsError:
        raise
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise SettingsError(
            f"{name}={value!r} cannot be read", where="compilation settings", **_why_and_hint(value, error)
        ) from error
    for rule in rules:
        if not _allows(rule, found):
            near = (
                did_you_mean(found, map(str, rule.values)) if isinstance(rule, OneOf) and isinstance(found, str) else ""
            )
            raise SettingsError(
                f"{name}={_spelt_value(found)} is out of range",
                where="compilation settings",
                why=f"it is {rule}" if near else "",
                hint=near or f"give {rule}",
            )
    return found


def _why_and_hint(value: Any, error: Exception) -> dict[str, str]:
    """Tells what a reader's error says is wrong from what it says to do: readers that know no more say "give ..."."""
    if isinstance(error, TrtError):
        return {"why": error.what, "hint": error.hint}
    told = str(error)
    if not told.startswith("give "):
        return {"why": told}
    return {"why": "" if ", not " in told else f"it is {kind_of(value)}", "hint": told}


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *rules = typing.get_args(annotation)
        return kind, tuple(rules)
    return annotation, ()


def _allows(rule: Any, value: Any) -> bool:
    if value is None:
        return True
    if isinstance(rule, Range):
        return rule.allows(value)
    return value in rule.values if isinstance(rule, OneOf) else True


def _read(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_first(typing.get_args(kind), value)
    if origin is frozenset:
        return _read_set(typing.get_args(kind)[0], value)
    if origin is tuple:
        return tuple(value)
    return _READERS[kind](value)


def _read_first(kinds: tuple[Any, ...], value: Any) -> Any:
    """Returns what the first alternative that fits makes of the value."""
    reasons = []
    for kind in kinds:
        try:
            return _read(kind, value)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            reasons.append(str(error))
    first, *others = dict.fromkeys(reasons)
    raise TypeError(", or ".join([first, *(reason.removeprefix("give ") for reason in others)]))


def _read_set(kind: Any, value: Any) -> frozenset[Any]:
    if isinstance(value, str) and kind is str:
        raise TypeError("give a collection of names, not one string")
    single = isinstance(value, str) or not isinstance(value, Iterable)
    return frozenset(_read(kind, item) for item in ([value] if single else value))


def _read_none(value: Any) -> None:
    if value is not None:
        raise TypeError("give None")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError("give True or False")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _read_int(value: Any) -> int:
    if not _is_number(value) or not math.isfinite(value) or value % 1:
        raise TypeError("give a whole number")
    return int(value)


def _read_float(value: Any) -> float:
    if not _is_number(value) or value != value:
        raise TypeError("give a number")
    return float(value)


def _read_text(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str):
            return text
    raise TypeError("give a string")


_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    type(None): _read_none,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_text,
    torch.dtype: parse_dtype,
    Device: Device,
}


def _spelt_value(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value if isinstance(value, str) else repr(value)


def read_patterns(value: Any) -> frozenset[str]:
    """Regular expressions, with the flags of those that are compiled; None means none."""
    if isinstance(value, re.Pattern):
        raise TypeError("give a collection of regular expressions, not one")
    return frozenset(map(read_pattern, _collection(value, "regular expressions")))


def read_pattern(item: Any) -> str:
    """Returns a regular expression as text, with the flags of one that is compiled.

    Raises:
        InputError: It is none.
    """
    pattern = item
    if isinstance(item, re.Pattern):
        pattern = item.pattern
        flags = "".join(letter for letter, flag in _INLINE_FLAGS.items() if item.flags & flag)
        if isinstance(pattern, str) and flags:
            pattern = f"(?{flags}:{_GLOBAL_FLAGS.sub('', pattern)})"
    if not isinstance(pattern, str):
        raise InputError(f"{pattern!r} is no regular expression", hint="give strings")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"{pattern!r} is no regular expression: {error}",
            hint="write signs that stand for themselves with a backslash before them, as re.escape does",
        ) from error
    return pattern


_GLOBAL_FLAGS: Final = re.compile(r"\A\(\?[aimsux]+\)")
_INLINE_FLAGS: Final = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def read_modules(value: Any) -> frozenset[str]:
    """Modules may be given as classes; None means none."""
    names = set()
    for item in _collection(value):
        if not isinstance(item, (str, type)):
            raise TypeError(f"give dotted paths or classes, not {kind_of(item)}")
        names.add(item if isinstance(item, str) else item.__qualname__)
    return frozenset(names)


def read_passes(value: Any) -> tuple[Any, ...]:
    """Lowering passes, in order; None means none."""
    if value is not None and (isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable)):
        raise TypeError(f"give a list of passes, not {kind_of(value)}")
    passes = () if value is None else tuple(value)
    for item in passes:
        if isinstance(item, type) or not callable(item) or not isinstance(getattr(item, "name", None), str):
            told = f"the class {item.__qualname__}" if isinstance(item, type) else kind_of(item)
            raise TypeError(f"give instances of trt_lowering.GraphPass, not {told}")
    return passes


def read_operators(value: Any) -> frozenset[str]:
    """Operators; None means none."""
    return canonical_operators(_collection(value))


def read_excluded_operators(value: Any) -> frozenset[str]:
    """Operators; None means none."""
    return canonical_operators(_collection(value), "autocast_excluded_ops")


def _collection(value: Any, held: str = "names") -> Iterable[Any]:
    if isinstance(value, str):
        raise TypeError(f"give a collection of {held}, not one string")
    if value is not None and not isinstance(value, Iterable):
        raise TypeError(f"give a collection of {held}, not {kind_of(value)}")
    return () if value is None else value


def read_device(value: Any) -> Any:
    """None means the default."""
    return Device.current() if value is None else value


def read_report_path(value: Any) -> Any:
    """A path, or whether to report at all; an empty path would be read as both."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if found == "":
        raise InputError("the path is empty", hint="give the path of a file, or True to print alone")
    return found


def read_capability(value: Any) -> Any:
    """A member of TensorRT's enumeration stands for its name; its first version called the standard one `DEFAULT`."""
    name = str(getattr(value, "name", value)).lower()
    return "standard" if name == "default" else name


_KEY: Final = "provider_option"


@dataclass(frozen=True)
class ProviderOption:
    """The option of a builder that a setting is handed to.

    Attributes:
        tensorrt: Names of TensorRT's API, such as `"IBuilderConfig.max_aux_streams"`.
        since: TensorRT release that brought the option, where its documentation says so; otherwise "", and all that
            is known is that the oldest supported release has it.
        portable: What `trt_portable` does with it, one sentence. A setting that changes nothing there says so in the
            log of the build, too.
    """

    tensorrt: tuple[str, ...]
    portable: str
    since: str = ""


def read_by_building(*tensorrt: str, portable: str, since: str = "") -> dict[str, Any]:
    """Metadata of a field that conversion or building reads: another value may give another engine.

    Args:
        tensorrt, portable, since: See `ProviderOption`.
    """
    return {_KEY: ProviderOption(tensorrt, portable, since)}


def provider_option(field: dataclasses.Field[Any]) -> ProviderOption | None:
    """Returns what a setting becomes on each provider; None for one that building doesn't read."""
    found: ProviderOption | None = field.metadata.get(_KEY)
    return found


MiB = 1 << 20


_COMPUTED: Final = OneOf(torch.float32, torch.float16, torch.bfloat16)
_DLA_BYTES: Final = Range(4096)


@dataclass(frozen=True)
class CompilationSettings:
    """How a model is compiled.

    Values may be written as users write them: `"half"` for a type, `"cuda:1"` for a device, a list for a set. One of
    another type, or out of range, is a `SettingsError` that names the setting.

    Operators and precision:

    Attributes:
        precision: Type that floating-point computation is converted to by lowering; inputs and outputs keep theirs.
            `torch.float32` (default) leaves the model's own types alone. Constants beyond the range of a reduced type
            stop at its largest number, so that masks made of `finfo.min` stay finite; inputs beyond it become infinite.
        enabled_precisions: Types the compiler may compute in, as an older generation of this API had it. Giving it
            asks for `enable_autocast` where it has a reduced type, with a `DeprecationWarning`.
        use_explicit_typing: Respect the types in the model (default True). Networks are always strongly typed, so
            False has no effect other than a warning.
        enable_autocast: Let lowering run matrix and convolution work in `autocast_dtype`, the rest in float32.
        autocast_dtype: Type that `enable_autocast` uses, float16 by default.
        autocast_excluded_ops: Operators that compute in float32 whatever `precision` or `enable_autocast` ask for.
        autocast_excluded_nodes: Regular expressions of nodes that compute in float32; each is matched from the start of
            a node's name, of the path of every module around it, and of its place in reports (`module/node`).
        autocast_max_output_threshold: Operators with an operand or result of a larger magnitude compute in float32.
            Magnitudes are measured on `autocast_calibration_dataloader`, an argument of `compile`, else on its example
            inputs and random ones like them. None (default) measures nothing.
        autocast_max_depth_of_reduction: Operators that add up more elements than this for one element of their result
            compute in float32. None (default) is no limit.
        max_error: Choose by measuring which operators are reduced, so that the error of the output, relative to its
            largest magnitude, is at most this. The type is that of `precision` or `enable_autocast` where these reduce,
            else the better one of float16 and bfloat16. `precision="auto"` stands for `max_error=1e-2`. None (default)
            measures nothing.
        truncate_long_and_double: Compute in float32 what the model computes in float64, which engines cannot. A
            constant beyond float32's range is an error, inputs beyond it become infinite. Engines take int64 as it is.
        torch_executed_ops: Operators that run in PyTorch whatever the converters can do.
        torch_executed_modules: Modules (dotted paths or class names) whose nodes run in PyTorch.
        check_indices: Keep operators that look up computed indices (`embedding`, `gather`, `index`, ...) in PyTorch,
            which raises where one is out of range; an engine returns zeros, or whatever lies there. Default False.
        enable_experimental_decompositions: Decompose everything that PyTorch's core ATen decompositions cover, not
            only what has no converter.
        lowering_passes: Passes of yours (`trt_lowering.GraphPass`), run in order once types are settled, after those
            that installed distributions bring.

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
        refit: Build engines whose weights can be replaced; see `trt_frontends.refit_module_weights`.
        enable_weight_streaming: Build engines whose weights need not all lie on the GPU: those for which it has no
            memory come from the host while an engine runs; see `trt_runtime.weight_streaming`.
        version_compatible: Build plans that later TensorRT versions can load.
        hardware_compatible: Build plans that run on other GPUs than the building one (Ampere and newer).
        engine_capability: `"standard"`, `"safety"` or `"dla_standalone"`.
        dla_sram_size: Bytes of software-managed SRAM for DLA, default 1 MiB.
        dla_local_dram_size: Bytes of host RAM for DLA intermediates, default 1 GiB.
        dla_global_dram_size: Bytes of host RAM for DLA weights and metadata, default 512 MiB.
        use_python_runtime: No effect, and True says so in a warning: engines always run through one registered
            operator.
        pass_through_build_failures: Raise when an engine cannot be built, instead of running its block in PyTorch.

    Running what `compile` returns:

    Attributes:
        use_cuda_graphs: Record calls of the whole module as CUDA graphs, one for each combination of input shapes;
            see `trt_runtime.cuda_graphs`. Refused under `torch.compile`, which sees no whole module.
        offload_module_to_cpu: Move the weights of the model to the CPU once it is captured, so that a GPU never holds
            them twice; the compiled model has those that its PyTorch blocks need. A model that cannot be compiled goes
            back. Refused under `torch.compile`, whose model goes on to be called.

    Caching:

    Attributes:
        cache_built_engines: Store built engines on disk. None (default): where `engine_cache_dir` is given.
        reuse_cached_engines: Load engines from disk that were built from the same block. None (default): where
            `engine_cache_dir` is given.
        engine_cache_dir: Private directory of the engine cache; `""` is the user's own cache directory.
        engine_cache_size: Bytes that cached engines may take, 5 GiB by default; those unused for longest go first.
        timing_cache_path: File that tactic timings are kept in; `""` keeps them beside the engine cache, where one is
            used, else only in memory.

    Running under `torch.compile`; outside it, `gradients="pytorch"` is refused, and the others have no effect:

    Attributes:
        check_weights: Look at every call whether a tensor that is part of an engine has changed (default True). False
            is the promise that none does.
        gradients: What to do where gradients are recorded: `"raise"` (default) runs engines, and `backward()` is an
            error; `"pytorch"` runs the graph in PyTorch, with gradients.
        torch_fallback: How what stays in PyTorch runs: `"eager"` (default) operator by operator; `"inductor"` compiled
            by PyTorch's own compiler.
    """

    precision: Annotated[torch.dtype, _COMPUTED] = torch.float32
    enabled_precisions: Annotated[frozenset[torch.dtype], Example([torch.float32, torch.float16])] = frozenset(
        {torch.float32}
    )
    use_explicit_typing: bool = True
    enable_autocast: bool = False
    autocast_dtype: Annotated[torch.dtype, _COMPUTED] = torch.float16
    autocast_excluded_ops: Annotated[frozenset[str], ReadBy(read_excluded_operators), Example(["aten.softmax"])] = (
        frozenset()
    )
    autocast_excluded_nodes: Annotated[frozenset[str], ReadBy(read_patterns), Example(["^head"])] = frozenset()
    autocast_max_output_threshold: Annotated[float | None, Range(0), Example(512.0)] = None
    autocast_max_depth_of_reduction: Annotated[int | None, Range(1), Example(1024)] = None
    max_error: Annotated[float | None, Range(0), Example(1e-2)] = None
    truncate_long_and_double: bool = False
    torch_executed_ops: Annotated[frozenset[str], ReadBy(read_operators), Example(["aten.relu"])] = frozenset()
    torch_executed_modules: Annotated[frozenset[str], ReadBy(read_modules), Example(["encoder.layers.0"])] = frozenset()
    check_indices: bool = False
    enable_experimental_decompositions: bool = False
    lowering_passes: Annotated[tuple[Any, ...], ReadBy(read_passes)] = ()

    min_block_size: Annotated[int | float, Range(1, whole=True), Example(3)] = 5
    use_fast_partitioner: bool = True
    require_full_compilation: bool = False
    dryrun: Annotated[bool | str, ReadBy(read_report_path), Example("report.html")] = False
    debug: bool = field(
        default=False,
        metadata=read_by_building(
            "IBuilderConfig.profiling_verbosity",
            portable="as TensorRT: DETAILED, so that inspectors and profilers name every layer",
        ),
    )

    device: Annotated[Device, ReadBy(read_device), Example("cuda:1")] = field(
        default_factory=Device.current,
        metadata=read_by_building(
            "IBuilderConfig.default_device_type",
            "IBuilderConfig.DLA_core",
            "BuilderFlag.GPU_FALLBACK",
            portable="CPU or GPU; a DLA is refused",
        ),
    )
    workspace_size: Annotated[int, Range(0), Example(1 << 30)] = field(
        default=0,
        metadata=read_by_building(
            "MemoryPoolType.WORKSPACE", portable="no effect: PyTorch allocates what its kernels need", since="8.4"
        ),
    )
    optimization_level: Annotated[int | None, Range(0, 5), Example(5)] = field(
        default=None,
        metadata=read_by_building(
            "IBuilderConfig.builder_optimization_level", portable="0 interprets; more times more tactics", since="8.6"
        ),
    )
    max_aux_streams: Annotated[int | None, Range(0), Example(2)] = field(
        default=None,
        metadata=read_by_building(
            "IBuilderConfig.max_aux_streams", portable="no effect: an engine uses one stream", since="8.6"
        ),
    )
    num_avg_timing_iters: Annotated[int, Range(1), Example(4)] = field(
        default=1,
        metadata=read_by_building(
            "IBuilderConfig.avg_timing_iterations", portable="as TensorRT, of every tactic that is timed"
        ),
    )
    disable_tf32: bool = field(
        default=False,
        metadata=read_by_building(
            "BuilderFlag.TF32", portable="as TensorRT; where TF32 is allowed, torch.backends decides"
        ),
    )
    sparse_weights: bool = field(
        default=False,
        metadata=read_by_building(
            "BuilderFlag.SPARSE_WEIGHTS", portable="no effect: products are computed densely", since="8.0"
        ),
    )
    refit: bool = field(
        default=False, metadata=read_by_building("BuilderFlag.REFIT_INDIVIDUAL", portable="as TensorRT")
    )
    enable_weight_streaming: bool = field(
        default=False,
        metadata=read_by_building(
            "BuilderFlag.WEIGHT_STREAMING",
            portable="as TensorRT on a GPU; on the CPU weights are read from the mapped plan anyway",
            since="10.0",
        ),
    )
    version_compatible: bool = field(
        default=False,
        metadata=read_by_building(
            "BuilderFlag.VERSION_COMPATIBLE", portable="no effect: plans load under any release of PyTorch", since="8.6"
        ),
    )
    hardware_compatible: bool = field(
        default=False,
        metadata=read_by_building(
            "IBuilderConfig.hardware_compatibility_level",
            portable="no effect: a plan for GPUs runs on any GPU",
            since="8.6",
        ),
    )
    engine_capability: Annotated[str, ReadBy(read_capability), OneOf("standard", "safety", "dla_standalone")] = field(
        default="standard",
        metadata=read_by_building("IBuilderConfig.engine_capability", portable="anything but standard is refused"),
    )
    dla_sram_size: Annotated[int, _DLA_BYTES, Example(2 * MiB)] = field(
        default=1 * MiB,
        metadata=read_by_building("MemoryPoolType.DLA_MANAGED_SRAM", portable="never read: a DLA is refused"),
    )
    dla_local_dram_size: Annotated[int, _DLA_BYTES, Example(512 * MiB)] = field(
        default=1024 * MiB,
        metadata=read_by_building("MemoryPoolType.DLA_LOCAL_DRAM", portable="never read: a DLA is refused"),
    )
    dla_global_dram_size: Annotated[int, _DLA_BYTES, Example(256 * MiB)] = field(
        default=512 * MiB,
        metadata=read_by_building("MemoryPoolType.DLA_GLOBAL_DRAM", portable="never read: a DLA is refused"),
    )
    use_python_runtime: bool | None = False
    pass_through_build_failures: bool = False

    use_cuda_graphs: bool = False
    offload_module_to_cpu: bool = False

    cache_built_engines: bool | None = None
    reuse_cached_engines: bool | None = None
    engine_cache_dir: Annotated[str, Example("engines")] = ""
    engine_cache_size: Annotated[int, Range(0), Example(20 * 1024 * MiB)] = 5 * 1024 * MiB
    timing_cache_path: Annotated[str, Example("timings.cache")] = ""

    check_weights: bool = True
    gradients: Annotated[str, OneOf("raise", "pytorch")] = "raise"
    torch_fallback: Annotated[str, OneOf("eager", "inductor")] = "eager"

    def __post_init__(self) -> None:
        for name, annotation in setting_annotations().items():
            object.__setattr__(self, name, read_setting(name, annotation, getattr(self, name)))

    def replace(self, **changes: Any) -> CompilationSettings:
        """Returns a copy with the given fields changed.

        Raises:
            SettingsError: A value is of another type than the field, or out of range.
        """
        return dataclasses.replace(self, **changes)

    def for_building(self) -> dict[str, str]:
        """Returns every field that conversion and building read, as stable text by name."""
        return {name: _stable(getattr(self, name)) for name in building_fields()}

    def digest(self) -> str:
        """Returns a hex digest of exactly the fields that building reads, for caches and plan headers."""
        relevant = [f"{name}={text}" for name, text in self.for_building().items()]
        return hashlib.sha256("\n".join(relevant).encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON values, types and devices by name, `min_block_size` inf as `"inf"`."""
        return {name: _jsonable(getattr(self, name)) for name in setting_names()}

    def __str__(self) -> str:
        parts = ", ".join(f"{name}={_spell(getattr(self, name))}" for name in setting_names())
        return f"CompilationSettings({parts})"


@functools.cache
def building_fields() -> tuple[str, ...]:
    """Returns the names of the fields that conversion and building read.

    A field says so where it is defined, and `trt_core.settings` tells when something else is read after all.
    What only lowering and partitioning read is left out: it shapes the graph that is built, not how.
    """
    return tuple(item.name for item in dataclasses.fields(CompilationSettings) if provider_option(item) is not None)


def setting_names() -> tuple[str, ...]:
    """Returns the names of all settings, in the order of their definition."""
    return tuple(item.name for item in dataclasses.fields(CompilationSettings))


@functools.cache
def setting_annotations() -> dict[str, Any]:
    """Returns the resolved annotation of every setting, with what it is annotated with."""
    return typing.get_type_hints(CompilationSettings, include_extras=True)


def other_value(name: str) -> Any:
    """Returns a value of a setting that is not its default: its example, the other of two, or another that there is.

    Raises:
        ValueError: The setting should have an `Example`, and has none.
    """
    kind, rules = _unwrap(setting_annotations()[name])
    default = next(item.default for item in dataclasses.fields(CompilationSettings) if item.name == name)
    for rule in rules:
        if isinstance(rule, Example):
            return rule.value
    for rule in rules:
        if isinstance(rule, OneOf):
            return next(value for value in rule.values if value != default)
    if bool in (kind, *typing.get_args(kind)):
        return not default
    raise ValueError(f"what would another value of {name} be? annotate it with an Example")


def _stable(value: Any) -> str:
    if isinstance(value, frozenset):
        return ",".join(sorted(str(item) for item in value))
    return str(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(str(_jsonable(item)) for item in value)
    if isinstance(value, tuple):
        return [each.name for each in value]  # passes
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, Device):
        return str(value)
    return "inf" if value == ANY else value


def _spell(value: Any) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(_spell(item) for item in value)) + "}" if value else "set()"
    if isinstance(value, tuple):
        return f"[{', '.join(each.name for each in value)}]"
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


class ObservedSettings(CompilationSettings):
    """Settings that remember which of their fields were read.

    Args:
        settings: What to observe.
    """

    def __init__(self, settings: CompilationSettings) -> None:
        vars(self).update(vars(settings))
        object.__setattr__(self, "_read", set())

    def replace(self, **changes: Any) -> CompilationSettings:
        """Returns a copy, no longer observed, with the given fields changed; reads every field."""
        return CompilationSettings(**{**{name: getattr(self, name) for name in setting_names()}, **changes})

    def __getattribute__(self, name: str) -> Any:
        if name in CompilationSettings.__dataclass_fields__:
            object.__getattribute__(self, "_read").add(name)
        return object.__getattribute__(self, name)

    def fields_read(self) -> frozenset[str]:
        """Returns the names of the fields that were read until now."""
        found: set[str] = object.__getattribute__(self, "_read")
        return frozenset(found)
