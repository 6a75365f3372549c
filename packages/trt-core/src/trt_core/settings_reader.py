"""Turns user keywords into `CompilationSettings`: the one place that does."""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import SettingsError
from trt_core.settings import CompilationSettings, read_setting, setting_annotations, setting_names
from trt_core.wording import did_you_mean, kind_of

DEFAULT_MAX_ERROR: Final = 1e-2
"""Error that `precision="auto"` allows where `max_error` is not given."""


def read_settings(options: Mapping[str, Any] | None = None, /, **keywords: Any) -> CompilationSettings:
    """Builds settings from what users write.

    Args:
        options: A mapping, as `torch.compile(options=...)` passes it.
        keywords: The same as keywords; these win.

    Returns:
        Validated settings.

    Raises:
        SettingsError: An unknown key (the message suggests the nearest name), one that is refused (see
            `RETIRED_SETTINGS`), a setting that was given under two names, or a value that cannot be read.

    Warns:
        DeprecationWarning: A retired key was given; the message says what to write now.
        UserWarning: A key was given that has no effect here; the message says why.
    """
    if options is not None and not isinstance(options, Mapping):
        raise SettingsError(f"settings must be a mapping of names to values, not {kind_of(options)}")
    given = {**(options or {}), **keywords}
    base = given.pop("settings", None)
    if base is not None and not isinstance(base, CompilationSettings):
        raise SettingsError(f"settings must be a CompilationSettings, not {type(base).__name__}")
    fields = present_settings(given)
    if fields.get("use_explicit_typing") is False:
        _retired("use_explicit_typing=False", "nothing: networks are always strongly typed")
    if fields.get("use_python_runtime"):
        has_no_effect("use_python_runtime=True", "engines always run through one registered operator")
    return base.replace(**fields) if base is not None else CompilationSettings(**fields)


def present_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by the names that they have today; those without an effect are left out.

    Args:
        given: Settings as users write them, of this generation and of those before. What only asks for other settings
            is these.

    Raises:
        SettingsError: See `read_settings`.

    Warns:
        DeprecationWarning, UserWarning: See `read_settings`.
    """
    fields: dict[str, Any] = {}
    named: dict[str, str] = {}
    for key, value in given.items():
        for name, current in _current(key, value):
            if name in named:
                raise SettingsError(f"{named[name]!r} and {key!r} are the same setting", hint=f"give {name} alone")
            fields[name], named[name] = current, key
    _map_automatic_precision(fields)
    _map_enabled_precisions(fields)
    return fields


def _take_names_of_other_generations() -> None:
    """Has the class itself take every keyword that `compile` takes, so that no door knows less than another.

    Converters of scripts read them by these names, too: what has no effect is as where it is not asked for.
    """
    make, replace = CompilationSettings.__init__, CompilationSettings.replace

    @functools.wraps(make)
    def make_with(self: CompilationSettings, *values: Any, **given: Any) -> None:
        make(self, *values, **present_settings(given))

    @functools.wraps(replace)
    def replace_with(self: CompilationSettings, **changes: Any) -> CompilationSettings:
        return replace(self, **present_settings(changes))

    def read(self: CompilationSettings, name: str) -> Any:
        fate = RETIRED_SETTINGS.get(name)
        if isinstance(fate, Renamed):
            value = getattr(self, fate.target)
            return not value if fate.opposite else value
        if fate is None or not fate.silent:
            raise AttributeError(f"CompilationSettings has no setting {name!r}", name=name, obj=self)
        return fate.silent[0]

    CompilationSettings.__getattr__ = read  # type: ignore[attr-defined]
    CompilationSettings.__init__ = make_with  # type: ignore[method-assign]
    CompilationSettings.replace = replace_with  # type: ignore[method-assign]


def _current(key: Any, value: Any) -> list[tuple[str, Any]]:
    """Returns the setting that a key stands for today, with its value; nothing when the key has no effect."""
    known = setting_names()
    if key in known:
        return [(key, value)]
    fate = RETIRED_SETTINGS.get(key) if isinstance(key, str) else None
    if isinstance(fate, Renamed):
        if _is_among(value, fate.silent):
            return []
        meant = _opposite(key, value) if fate.opposite else value
        _retired(key, f"{fate.target}={meant if isinstance(meant, bool) else '...'}")
        return [(fate.target, meant)]
    if isinstance(fate, Refused):
        if not _is_among(value, fate.silent):
            near = did_you_mean(value, filter(None, map(_text, fate.silent))) if _text(value) else ""
            hint = f"{near} {fate.instead}".strip()
            raise SettingsError(f"{key}={value!r:.60} cannot be had", why=fate.why, hint=hint)
        return []
    if isinstance(fate, NoEffect):
        if not _is_among(value, fate.silent):
            has_no_effect(f"{key}={value!r:.60}", fate.why)
        return []
    raise SettingsError(
        f"unknown setting {key!r}",
        where="compilation settings",
        hint=did_you_mean(str(key), (*known, *RETIRED_SETTINGS)) or f"the settings are {', '.join(known)}",
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _opposite(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{key}={value!r} cannot be read", where="compilation settings", hint="give True or False")
    return not value


def _is_among(value: Any, silent: tuple[Any, ...]) -> bool:
    return any(type(value) is type(known) and value == known for known in silent)


def _map_automatic_precision(fields: dict[str, Any]) -> None:
    """`precision="auto"` names no type: it asks for one to be chosen, within an error."""
    if fields.get("precision") == "auto":
        fields["precision"] = torch.float32
        if fields.get("max_error") is None:
            fields["max_error"] = DEFAULT_MAX_ERROR


def _map_enabled_precisions(fields: dict[str, Any]) -> None:
    """`{half}` and `{float, half}` meant "may compute in half": today that is autocast, a graph transformation.

    Types of 8 bits meant that layers may compute in them where the model quantizes, which they always do.
    """
    if "enabled_precisions" not in fields:
        return
    annotation = setting_annotations()["enabled_precisions"]
    enabled = read_setting("enabled_precisions", annotation, fields.pop("enabled_precisions"))
    if quantized := enabled & _QUANTIZED:
        has_no_effect(
            f"{', '.join(sorted(map(dtype_name, quantized)))} in enabled_precisions",
            "layers compute in few bits where the model quantizes, as what trt_frontends.quantize returns does",
        )
    enabled -= _QUANTIZED
    if enabled <= frozenset({torch.float32}):
        return
    reduced = [dtype for dtype in (torch.float16, torch.bfloat16) if dtype in enabled]
    other = enabled - {torch.float32, torch.float16, torch.bfloat16}
    if other or len(reduced) != 1:
        raise SettingsError(
            f"enabled_precisions={{{', '.join(sorted(map(dtype_name, enabled)))}}} cannot be mapped",
            why="networks are strongly typed: only float32 with one of float16 and bfloat16 has a meaning",
            hint="cast the model, quantize it (trt_frontends.quantize), or set enable_autocast=True and autocast_dtype",
        )
    _retired("enabled_precisions", f"enable_autocast=True, autocast_dtype=torch.{dtype_name(reduced[0])}")
    fields.setdefault("enable_autocast", True)
    fields.setdefault("autocast_dtype", reduced[0])


_QUANTIZED: Final = frozenset({torch.int8, torch.float8_e4m3fn})


def _retired(what: str, instead: str) -> None:
    warn_caller(f"{what} is retired and goes in version {REMOVAL_VERSION}; write {instead}", DeprecationWarning)


def has_no_effect(what: str, why: str) -> None:
    """Warns that something is given in vain."""
    warn_caller(f"{what} has no effect: {why}")


def warn_caller(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warns at the line outside of this project that everything here is called from."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _PROJECT.match(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind, stacklevel=level)


_PROJECT = re.compile(r"trt_[a-z]+(\.|$)")


REMOVAL_VERSION: Final = "1.0"
"""Version that drops the renamed keywords; a test fails when it comes."""


@dataclass(frozen=True)
class Renamed:
    """The keyword has another name today.

    Attributes:
        target: The setting.
        opposite: Whether the setting means the opposite, a bool.
        silent: Values that ask for the setting's default.
    """

    target: str
    opposite: bool = False
    silent: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"write `{self.target}`" + (", with the opposite value" if self.opposite else "")


@dataclass(frozen=True)
class NoEffect:
    """The keyword is taken and changes nothing.

    Attributes:
        why: One sentence.
        silent: Values that ask for what happens anyway.
    """

    why: str
    silent: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"no effect: {self.why}"


@dataclass(frozen=True)
class Refused:
    """The keyword is an error.

    Attributes:
        why: One sentence.
        instead: What to do in its place.
        silent: Values that ask for what happens anyway, and so are none.
    """

    why: str
    instead: str
    silent: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"refused: {self.why}; {self.instead}"


Fate = Renamed | NoEffect | Refused

_OFF: Final = (False, None)
_TUNING: Final = "the builder decides by itself"
_ARGUMENT: Final = "it is an argument of torch.compile, not a setting"
_CAPTURED: Final = "models are captured with torch.export, and run on any batch size that their inputs' ranges allow"
_QUANTIZE: Final = "compile what trt_frontends.quantize(model, calibration) returns"
_NO_CALIBRATION: Final = "networks are strongly typed, so the types are those of the model"

RETIRED_SETTINGS: Final[Mapping[str, Fate]] = {
    # other names
    "truncate_double": Renamed("truncate_long_and_double"),
    "make_refittable": Renamed("refit"),
    "make_refitable": Renamed("refit"),
    "immutable_weights": Renamed("refit", opposite=True),
    "allow_tf32": Renamed("disable_tf32", opposite=True),
    "strict_types": Renamed("use_explicit_typing"),
    "max_workspace_size": Renamed("workspace_size"),
    "dry_run": Renamed("dryrun"),
    "capability": Renamed("engine_capability"),
    "autocast_low_precision_type": Renamed("autocast_dtype", silent=(None,)),
    "verbose_log": Renamed("debug"),
    # how a model is captured
    "ir": Refused(
        "models are captured with torch.export, the only frontend of `compile`",
        'leave it out; for ir="torch_compile" write trt_frontends.optimize(model, ...)',
        ("dynamo", "default", "exported_program", None),
    ),
    "capture_type": Refused(
        "models are captured with torch.export", "give an exported program to capture differently", ("export", None)
    ),
    "use_distributed_mode_trace": Refused(
        "a model is captured in one process", "compile each rank's part of the model by itself", _OFF
    ),
    "input_signature": Refused("inputs are nested as the model takes them", "give arg_inputs and kwarg_inputs", _OFF),
    "enable_cross_compile_for_windows": Refused(
        "an engine runs on the system that it was built on", "compile on Windows", _OFF
    ),
    "assume_dynamic_shape_support": NoEffect("every converter says itself whether it takes dynamic shapes", _OFF),
    "allow_shape_tensors": NoEffect("shape tensors are always allowed", (True, None)),
    "explicit_batch_dimension": NoEffect(_CAPTURED, (True, None)),
    "max_batch_size": Refused(_CAPTURED, "give an Input with min_shape, opt_shape and max_shape", (None,)),
    "mode": Refused(
        f"{_ARGUMENT}; its presets tune another compiler", "set optimization_level, 0 to 5", ("default", None)
    ),
    "fullgraph": Refused(_ARGUMENT, "write torch.compile(model, fullgraph=..., options={...})", _OFF),
    "dynamic": Refused(_ARGUMENT, "write torch.compile(model, dynamic=..., options={...})", (None,)),
    # precision
    "fp16_mode": Refused(_NO_CALIBRATION, "write precision=torch.float16, or enable_autocast=True", _OFF),
    "int8_mode": Refused(_NO_CALIBRATION, _QUANTIZE, _OFF),
    "lower_precision": Refused(_NO_CALIBRATION, "write precision=torch.float16, or enable_autocast=True", (None,)),
    "calibrator": Refused("TensorRT has dropped calibration", _QUANTIZE, (None,)),
    "use_fp32_acc": Refused(
        "how products of float16 accumulate is the builder's choice",
        "keep the model in float32 and set enable_autocast=True, or cast around the products that need it",
        _OFF,
    ),
    "autocast_calibration_dataloader": Refused(
        "it is an argument of compile and explain; torch.compile measures the inputs of a graph's first call",
        "write compile(model, autocast_calibration_dataloader=...)",
        (None,),
    ),
    "decompose_attention": NoEffect("attention has a converter of its own, which decomposes where it must", _OFF),
    "attn_bias_is_causal": NoEffect("attention masks are always applied as they are", (True, False, None)),
    # weights and memory
    "refit_identical_engine_weights": NoEffect("every weight of an engine is refitted by its own name", _OFF),
    "strip_engine_weights": Refused("an engine holds its weights", "set refit=True to replace them later", _OFF),
    "cpu_memory_budget": NoEffect("compiling shares the weights with the model in place of copying them", (None,)),
    "enable_resource_partitioning": NoEffect("the graph is partitioned by operators, not by memory", _OFF),
    "dynamically_allocate_resources": NoEffect("memory of an engine is allocated by PyTorch, which reuses it", _OFF),
    # building
    "num_min_timing_iters": NoEffect(f"{_TUNING}; see num_avg_timing_iters", (1, None)),
    "tiling_optimization_level": NoEffect(_TUNING, ("none", None)),
    "l2_limit_for_tiling": NoEffect(_TUNING, (-1, None)),
    "timing_cache_prefix": Renamed("timing_cache_path"),
    "save_timing_cache": NoEffect("timings are kept where timing_cache_path says", _OFF),
    "save_engine_cache": Renamed("cache_built_engines"),
    "load_engine_cache": Renamed("reuse_cached_engines"),
    "custom_engine_cache": Refused(
        "it is no setting but an argument of compile and optimize, and an option of torch.compile",
        "give it there, or give engine_cache_dir",
        (None,),
    ),
    # running
    "lazy_engine_init": NoEffect("engines are always set up at their first call", (True, None)),
    "use_python": NoEffect("engines always run through one registered operator", _OFF),
    "use_experimental_rt": NoEffect("engines always run through one registered operator", (True, False, None)),
    "cuda_graph_batch_size": NoEffect(_TUNING, (-1, None)),
}


_take_names_of_other_generations()
