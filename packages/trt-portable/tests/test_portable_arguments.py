"""Methods and properties take the types that TensorRT's bindings take, and refuse the others with a TypeError.

The methods and the types of their parameters are read from the description of the bindings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trt_portable as trt

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "tensorrt"
if not DATA.is_dir():
    pytest.skip("the API description is part of the repository only", allow_module_level=True)

API = json.loads((DATA / "api_11.4.json").read_text())

CLASSES = (
    "Builder", "EngineInspector", "IAttention", "IBuilderConfig", "ICudaEngine", "IExecutionContext", "IIdentityLayer",
    "IIfConditional", "ILoop", "INetworkDefinition", "IOptimizationProfile", "IPluginRegistry", "IRuntimeConfig",
    "ISerializationConfig", "ITensor", "ITimingCache", "Refitter", "Runtime",
)  # fmt: skip


class Foreign:
    """Of no use to any method."""


PLAIN: dict[str, tuple[Any, list[Any]]] = {
    # type of a parameter -> (what fits, what does not)
    "SupportsInt": (0, ["1", 1.5, None, Foreign()]),
    "SupportsFloat": (1.0, ["1", None, Foreign()]),
    "str": ("text", [1, Foreign()]),
    "bool": (True, ["yes", Foreign()]),
    "Dims": ((1,), [3, "12", (1.5,), Foreign()]),
    "tuple": ((1,), [Foreign()]),
    "list": ([1], [Foreign()]),
    "Weights": (np.ones(1, np.float32), [[1.0], 1.0, Foreign()]),
    "typing_extensions.Buffer": (b"", [3, None, Foreign()]),
}
NAMED = {
    # parameters whose types the description does not tell, and what the bindings do with them
    ("ICudaEngine", "get_tensor_profile_values"): "names and types of its parameters are exchanged",
    ("IExecutionContext", "set_communicator"): "takes a capsule, of which Python knows nothing",
    ("IPluginRegistry", "deregister_library"): "takes a capsule, of which Python knows nothing",
    ("INetworkDefinition", "add_plugin"): "takes a call that was recorded",
    ("INetworkDefinition", "get_flag"): "its parameter has no Python name",
}
MADE = {
    "IPluginV2": lambda: trt.IPluginV2DynamicExt(),
    "TimingCacheKey": lambda: trt.TimingCacheKey(bytes(16)),
    "TimingCacheValue": lambda: trt.TimingCacheValue(1, 1.0),
}


def _parameters(signature: str) -> list[str]:
    """The types of the parameters of a signature in text, without self."""
    inside = re.sub(r"<[^>]*>", "DEFAULT", signature[signature.index("(") + 1 : signature.rindex(") ->")])
    depth, part, parts = 0, "", []
    for char in inside + ",":
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return [text.partition(":")[2].partition(" = ")[0].strip() for text in parts[1:]]


def _values(kind: str, objects: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What fits a type, and what does not."""
    if kind in PLAIN:
        return PLAIN[kind]
    if kind.startswith("Sequence["):
        fits, others = _values(kind[9:-1], objects)
        return [fits], [Foreign(), 3, *([other] for other in others)]
    if kind in API["enums"]:
        members = getattr(trt, kind).__members__
        stranger = trt.SeekPosition.SET if kind != "SeekPosition" else trt.DataType.FLOAT
        return next(iter(members.values())), [0, next(iter(members)), stranger, Foreign()]
    cls = getattr(trt, kind)
    fits = next((item for item in objects.values() if isinstance(item, cls)), None)
    return (MADE.get(kind, cls)() if fits is None else fits), [3, Foreign()]


def _calls(name: str, objects: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Calls of an object's methods, each with one argument of a wrong type."""
    for method, signatures in API["classes"][name]["methods"].items():
        if method.startswith("__") or (name, method) in NAMED:
            continue
        overloads = [_parameters(signature) for signature in signatures]
        for parameters in overloads:
            pairs = [_values(kind, objects) if kind != "object" else (None, []) for kind in parameters]
            for place, (_, others) in enumerate(pairs):
                for other in others:
                    arguments = [fits for fits, _ in pairs]
                    arguments[place] = other
                    if not any(_fits(arguments, overload, objects) for overload in overloads):
                        yield method, arguments


def _fits(arguments: list[Any], overload: list[str], objects: dict[str, Any]) -> bool:
    """Whether arguments may be meant for an overload: those that differ are of a type that it takes."""
    if len(arguments) != len(overload):
        return False
    return not any(
        any(type(value) is type(other) for other in _values(kind, objects)[1])
        for value, kind in zip(arguments, overload, strict=True)
        if kind != "object"
    )


@pytest.mark.parametrize("name", CLASSES)
def test_methods_refuse_other_types(name: str, objects: dict[str, Any]) -> None:
    accepted = []
    kind = "ILayer" if "ILayer" in API["classes"][name]["bases"] else name
    for method, arguments in _calls(kind, objects):
        if (method, arguments[-1:]) == ("add_squeeze", [None]):  # all axes
            continue
        try:
            result = getattr(objects[name], method)(*arguments)
        except TypeError:
            continue
        except Exception as error:
            result = error
        accepted.append(f"{method}{tuple(arguments)}: {result!r}")
    assert not accepted


@pytest.mark.parametrize("name", CLASSES)
def test_properties_refuse_other_types(name: str, objects: dict[str, Any]) -> None:
    item, accepted = objects[name], []
    described = [API["classes"][name], *(API["classes"][base] for base in API["classes"][name]["bases"])]
    for prop in sorted({prop for entry in described for prop in entry["properties"]}):
        present = getattr(item, prop)
        others = [Foreign(), 3 if isinstance(present, str) else "text"]
        if isinstance(present, int) and not isinstance(present, bool):
            others.append(1.5)
        for other in others:
            try:
                setattr(item, prop, other)
            except (TypeError, AttributeError):  # of another type, or read only
                continue
            except Exception as error:
                accepted.append(f"{prop} = {other!r}: {error!r}")
            else:
                accepted.append(f"{prop} = {other!r}")
        assert getattr(item, prop) == present or accepted
    assert not accepted


def test_what_the_bindings_convert_is_taken(objects: dict[str, Any]) -> None:
    network, x, config = objects["INetworkDefinition"], objects["ITensor"], objects["IBuilderConfig"]
    reduced = network.add_reduce(x, trt.ReduceOperation.SUM, np.int64(1), 1)  # numbers say whether they are true
    assert reduced.keep_dims is True
    assert tuple(reduced.get_output(0).shape) == (1, 2, 3, 4)
    config.flags = np.int32(1 << int(trt.BuilderFlag.TF32))
    assert config.get_flag(trt.BuilderFlag.TF32)
    profile = objects["IOptimizationProfile"]
    profile.set_shape("x", np.array([1, 2]), trt.Dims((1, 2)), [1, 2])
    assert [tuple(extents) for extents in profile.get_shape("x")] == [(1, 2)] * 3
