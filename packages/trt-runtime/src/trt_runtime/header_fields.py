"""The fields of a header as JSON holds them, each read as exactly what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trt_core.errors import PlanError
from trt_runtime.bindings import Binding
from trt_runtime.shape_ranges import InputRanges, as_ranges

if TYPE_CHECKING:
    from trt_core.refit_table import RefitTable

_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    "provider": (str,),
    "provider_version": (str,),
    "torch_version": (str,),
    "settings_digest": (str,),
    "payload_sha256": (str,),
    "payload_bytes": (int,),
    "device": (str,),
    "name": (str,),
    "returns_tuple": (bool,),
    "layer_count": (int,),
    "build_seconds": (int, float),
    "version_compatible": (bool,),
    "hardware_compatible": (bool,),
    "format_version": (int,),
}


def read_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a header whose JSON form has these fields.

    Raises:
        PlanError: A field is of another type; the message names it.
    """
    return {
        **{name: _read_plain(name, value[name]) for name in _PLAIN},
        "compute_capability": _read_capability(value["compute_capability"]),
        "inputs": _read_bindings("input", value["inputs"]),
        "outputs": _read_bindings("output", value["outputs"]),
        "symbols": _read_symbols(value["symbols"]),
        "ranges": _read_ranges(value["ranges"]),
        "profiles": _read_profiles(value["profiles"]),
        "refit": None if value["refit"] is None else _read_refit(value["refit"]),
    }


def _read_plain(name: str, value: Any) -> Any:
    kinds = _PLAIN[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise PlanError(f"the plan header's {name} is {value!r}, not {expected}")
    return value


def _read_capability(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_int, value)):
        raise PlanError(f"the plan header's compute_capability is {value!r}, not [major, minor]")
    return value[0], value[1]


def _read_bindings(kind: str, value: Any) -> tuple[Binding, ...]:
    if not isinstance(value, list):
        raise PlanError(f"the plan header's {kind}s are not a list")
    return tuple(Binding.from_json(item, f"{kind} {index}") for index, item in enumerate(value))


def _read_symbols(value: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(value, dict):
        raise PlanError("the plan header's symbols are not an object")
    for name, place in value.items():
        if not isinstance(place, list) or len(place) != 2 or not all(map(_is_int, place)):
            raise PlanError(f"the plan header's symbol {name!r} is not [input index, axis]")
    return {name: (place[0], place[1]) for name, place in value.items()}


def _read_profiles(value: Any) -> tuple[InputRanges, ...]:
    if not isinstance(value, list) or len(value) == 1:
        raise PlanError("the plan header's profiles are not a list of none, or of several")
    return tuple(map(_read_ranges, value))


def _read_ranges(value: Any) -> InputRanges:
    try:
        ranges = as_ranges(value)
    except (TypeError, ValueError) as error:
        raise PlanError("the plan header's ranges are not lists of [min, opt, max]") from error
    if not all(_is_int(bound) for shape in ranges for bounds in shape for bound in bounds):
        raise PlanError("the plan header's ranges are not whole numbers")
    return ranges


def _read_refit(value: Any) -> RefitTable:
    from trt_core.refit_table import RefitTable  # most engines that are only run have none

    return RefitTable.from_json(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
