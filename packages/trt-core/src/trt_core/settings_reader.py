"""Turns user keywords into `CompilationSettings`: the one place that does."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import SettingsError
from trt_core.retired_settings import REMOVAL_VERSION, RETIRED_SETTINGS, NoEffect, Refused, Renamed
from trt_core.setting_values import read_setting
from trt_core.settings import CompilationSettings, setting_annotations, setting_names
from trt_core.suggest import did_you_mean
from trt_core.wording import kind_of

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
    fields: dict[str, Any] = {}
    named: dict[str, str] = {}
    for key, value in given.items():
        for name, current in _current(key, value):
            if name in named:
                raise SettingsError(f"{named[name]!r} and {key!r} are the same setting", hint=f"give {name} alone")
            fields[name], named[name] = current, key
    _map_automatic_precision(fields)
    _map_enabled_precisions(fields)
    if fields.get("use_explicit_typing") is False:
        _retired("use_explicit_typing=False", "nothing: networks are always strongly typed")
    if fields.get("use_python_runtime"):
        _has_no_effect("use_python_runtime=True", "engines always run through one registered operator")
    return base.replace(**fields) if base is not None else CompilationSettings(**fields)


def _current(key: Any, value: Any) -> list[tuple[str, Any]]:
    """Returns the setting that a key stands for today, with its value; nothing when the key has no effect."""
    known = setting_names()
    if key in known:
        return [(key, value)]
    fate = RETIRED_SETTINGS.get(key) if isinstance(key, str) else None
    if isinstance(fate, Renamed):
        _retired(key, f"{fate.target}={'not value' if fate.opposite else '...'}")
        return [(fate.target, _opposite(key, value) if fate.opposite else value)]
    if isinstance(fate, Refused):
        if not _is_among(value, fate.silent):
            raise SettingsError(f"{key}={value!r:.60} cannot be had", why=fate.why, hint=fate.instead)
        return []
    if isinstance(fate, NoEffect):
        if not _is_among(value, fate.silent):
            _has_no_effect(f"{key}={value!r:.60}", fate.why)
        return []
    raise SettingsError(
        f"unknown setting {key!r}",
        where="compilation settings",
        hint=did_you_mean(str(key), (*known, *RETIRED_SETTINGS)) or f"the settings are {', '.join(known)}",
    )


def _opposite(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{key}={value!r} cannot be read", where="compilation settings", why="give True or False")
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
    """`{half}` and `{float, half}` meant "may compute in half": today that is autocast, a graph transformation."""
    if "enabled_precisions" not in fields:
        return
    annotation = setting_annotations()["enabled_precisions"]
    enabled = read_setting("enabled_precisions", annotation, fields["enabled_precisions"])
    if enabled == frozenset({torch.float32}):
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


def _retired(what: str, instead: str) -> None:
    warnings.warn(
        f"{what} is retired and goes in version {REMOVAL_VERSION}; write {instead}",
        DeprecationWarning,
        stacklevel=level_of_caller(),
    )


def _has_no_effect(what: str, why: str) -> None:
    warnings.warn(f"{what} has no effect: {why}", UserWarning, stacklevel=level_of_caller())


def level_of_caller() -> int:
    """Stack level, seen from the caller of this function, of the first frame outside this project."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _PROJECT.match(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


_PROJECT = re.compile(r"trt_[a-z]+(\.|$)")
