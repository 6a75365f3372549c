"""Turns user keywords into `CompilationSettings`: the one place that does."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from trt_core.device import Device
from trt_core.dtypes import dtype_name, parse_dtype
from trt_core.errors import SettingsError
from trt_core.settings import CompilationSettings, _field_names
from trt_core.suggest import did_you_mean

_RENAMED = {
    "truncate_double": "truncate_long_and_double",
    "make_refittable": "refit",
    "make_refitable": "refit",
    "allow_tf32": "disable_tf32",
    "strict_types": "use_explicit_typing",
    "max_workspace_size": "workspace_size",
    "dry_run": "dryrun",
}
_INVERTED = frozenset({"allow_tf32"})
REMOVAL_VERSION = "1.0"
"""Version that drops the retired keywords; a test fails when it comes."""


def read_settings(options: Mapping[str, Any] | None = None, /, **keywords: Any) -> CompilationSettings:
    """Builds settings from what users write.

    Args:
        options: A mapping, as `torch.compile(options=...)` passes it.
        keywords: The same as keywords; these win.

    Returns:
        Validated settings.

    Raises:
        SettingsError: An unknown key (the message suggests the nearest name), or a value that cannot be read.

    Warns:
        DeprecationWarning: A retired key was given; the message says what to write now.
    """
    given = {**(options or {}), **keywords}
    base = given.pop("settings", None)
    if base is not None and not isinstance(base, CompilationSettings):
        raise SettingsError(f"settings must be a CompilationSettings, not {type(base).__name__}")
    fields: dict[str, Any] = {}
    for key, value in given.items():
        name = _current_name(key)
        if name in _INVERTED_TARGETS and key in _INVERTED:
            value = not value
        fields[name] = _read_value(name, value)
    _map_enabled_precisions(fields)
    if fields.get("use_explicit_typing") is False:
        _retired("use_explicit_typing=False", "nothing: networks are always strongly typed")
    return base.replace(**fields) if base is not None else CompilationSettings(**fields)


_INVERTED_TARGETS = frozenset(_RENAMED[name] for name in _INVERTED)


def _current_name(key: str) -> str:
    known = _field_names()
    if key in known:
        return key
    if key in _RENAMED:
        target = _RENAMED[key]
        _retired(key, f"{target}={'not value' if key in _INVERTED else '...'}")
        return target
    raise SettingsError(
        f"unknown setting {key!r}",
        where="compilation settings",
        hint=did_you_mean(key, known) or f"the settings are {', '.join(known)}",
    )


def _map_enabled_precisions(fields: dict[str, Any]) -> None:
    """`{half}` and `{float, half}` meant "may compute in half": today that is autocast, a graph transformation."""
    enabled = fields.get("enabled_precisions")
    if enabled is None or enabled == frozenset({torch.float32}):
        return
    reduced = [dtype for dtype in (torch.float16, torch.bfloat16) if dtype in enabled]
    other = enabled - {torch.float32, torch.float16, torch.bfloat16}
    if other or len(reduced) != 1:
        raise SettingsError(
            f"enabled_precisions={{{', '.join(sorted(map(dtype_name, enabled)))}}} cannot be mapped",
            why="networks are strongly typed: only float32 with one of float16 and bfloat16 has a meaning",
            hint="cast the model, quantize it, or use enable_autocast=True with autocast_dtype",
        )
    _retired("enabled_precisions", f"enable_autocast=True, autocast_dtype=torch.{dtype_name(reduced[0])}")
    fields.setdefault("enable_autocast", True)
    fields.setdefault("autocast_dtype", reduced[0])


def _retired(what: str, instead: str) -> None:
    warnings.warn(
        f"{what} is retired and goes in version {REMOVAL_VERSION}; write {instead}",
        DeprecationWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """Stack level, seen from the caller of this function, of the first frame outside this project."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _PROJECT.match(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


_PROJECT = re.compile(r"trt_[a-z]+(\.|$)")


def _read_value(name: str, value: Any) -> Any:
    reader = _READERS.get(name)
    if reader is None:
        return value
    try:
        return reader(value)
    except SettingsError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise SettingsError(f"{name}={value!r} cannot be read", where="compilation settings", why=str(error)) from error


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError("give True or False")


def _read_optional_bool(value: Any) -> bool | None:
    return None if value is None else _read_bool(value)


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise TypeError("give a whole number")
    return int(value)


def _read_optional_int(value: Any) -> int | None:
    return None if value is None else _read_int(value)


def _read_block_size(value: Any) -> int | float:
    return float("inf") if value == float("inf") else _read_int(value)


def _read_dtypes(value: Any) -> frozenset[torch.dtype]:
    items: Iterable[Any] = [value] if isinstance(value, (str, torch.dtype)) else value
    return frozenset(parse_dtype(item) for item in items)


def _read_names(value: Any) -> frozenset[Any]:
    if isinstance(value, str):
        raise TypeError("give a collection of names, not one string")
    return frozenset(value)


def _read_modules(value: Any) -> frozenset[str]:
    names = _read_names(value)
    return frozenset(item if isinstance(item, str) else item.__qualname__ for item in names)


def _read_dryrun(value: Any) -> bool | str:
    return value if isinstance(value, (bool, str)) else str(value.__fspath__())


def _read_path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError("give a path as text")
    return path


def _read_capability(value: Any) -> str:
    name = str(getattr(value, "name", value)).lower()
    return "standard" if name == "default" else name


_READERS: dict[str, Callable[[Any], Any]] = {
    "precision": parse_dtype,
    "autocast_dtype": parse_dtype,
    "enabled_precisions": _read_dtypes,
    "torch_executed_ops": _read_names,
    "torch_executed_modules": _read_modules,
    "min_block_size": _read_block_size,
    "dryrun": _read_dryrun,
    "device": Device,
    "engine_capability": _read_capability,
    **dict.fromkeys(("use_python_runtime", "cache_built_engines", "reuse_cached_engines"), _read_optional_bool),
    **dict.fromkeys(("engine_cache_dir", "timing_cache_path"), _read_path),
    **dict.fromkeys(("optimization_level", "max_aux_streams"), _read_optional_int),
    **dict.fromkeys(
        (
            "workspace_size",
            "num_avg_timing_iters",
            "dla_sram_size",
            "dla_local_dram_size",
            "dla_global_dram_size",
            "engine_cache_size",
        ),
        _read_int,
    ),
    **dict.fromkeys(
        (
            "use_explicit_typing",
            "enable_autocast",
            "truncate_long_and_double",
            "enable_experimental_decompositions",
            "use_fast_partitioner",
            "require_full_compilation",
            "debug",
            "disable_tf32",
            "sparse_weights",
            "refit",
            "version_compatible",
            "hardware_compatible",
            "pass_through_build_failures",
        ),
        _read_bool,
    ),
}
