"""The fields of a header as JSON holds them, each read as exactly what it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from trt_core.files import typed
from trt_runtime.bindings import Binding
from trt_runtime.profiles import InputRanges

if TYPE_CHECKING:
    from trt_core.refit_table import RefitTable

_PLAIN: Final[dict[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(
        ("provider", "provider_version", "torch_version", "settings_digest", "payload_sha256", "device", "name"),
        typed.text,
    ),
    **dict.fromkeys(("payload_bytes", "layer_count", "format_version"), typed.integer),
    **dict.fromkeys(("returns_tuple", "version_compatible", "hardware_compatible"), typed.flag),
    "build_seconds": typed.number,
}


def read_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a header whose JSON form has these fields.

    Raises:
        BadField: A field is of another type; the message names it.
    """
    return {
        **{name: read(value[name], name) for name, read in _PLAIN.items()},
        "compute_capability": _read_capability(value["compute_capability"]),
        "inputs": _read_bindings("input", value["inputs"]),
        "outputs": _read_bindings("output", value["outputs"]),
        "symbols": _read_symbols(value["symbols"]),
        "ranges": _read_ranges(value["ranges"], "ranges"),
        "profiles": _read_profiles(value["profiles"]),
        "refit": None if value["refit"] is None else _read_refit(value["refit"]),
    }


def _read_capability(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    major, minor = typed.integers(typed.items(value, "compute_capability", 2), "compute_capability")
    return major, minor


def _read_bindings(kind: str, value: Any) -> tuple[Binding, ...]:
    return tuple(
        Binding.from_json(item, f"{kind} {index}") for index, item in enumerate(typed.items(value, f"{kind}s"))
    )


def _read_symbols(value: Any) -> dict[str, tuple[int, int]]:
    symbols = {}
    for name, place in typed.mapping(value, "symbols").items():
        index, axis = typed.integers(typed.items(place, f"symbol {name!r:.60}", 2), f"symbol {name!r:.60}")
        symbols[name] = (index, axis)
    return symbols


def _read_profiles(value: Any) -> tuple[InputRanges, ...]:
    profiles = typed.items(value, "profiles")
    if len(profiles) == 1:
        raise typed.BadField("profiles", "there are none, or several")
    return tuple(_read_ranges(ranges, "profiles") for ranges in profiles)


def _read_ranges(value: Any, place: str) -> InputRanges:
    return tuple(
        tuple(_read_range(bounds, place) for bounds in typed.items(shape, place)) for shape in typed.items(value, place)
    )


def _read_range(value: Any, place: str) -> tuple[int, int, int]:
    low, best, high = typed.integers(typed.items(value, place, 3), place)
    return low, best, high


def _read_refit(value: Any) -> RefitTable:
    from trt_core.refit_table import RefitTable  # most engines that are only run have none

    return RefitTable.from_json(value)
