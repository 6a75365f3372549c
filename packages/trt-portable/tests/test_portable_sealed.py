"""Objects of the API take no attributes but their own."""

from __future__ import annotations

from typing import Any

import pytest

import trt_portable as trt


def test_unknown_attributes_are_refused(objects: dict[str, Any]) -> None:
    for name, item in objects.items():
        with pytest.raises(AttributeError, match="foo"):
            item.foo = 1
        assert not hasattr(item, "foo"), name


def test_known_attributes_can_be_set(objects: dict[str, Any]) -> None:
    for name in ("INetworkDefinition", "ITensor", "IIdentityLayer", "IExecutionContext", "IAttention", "ILoop"):
        objects[name].name = "other"
        assert objects[name].name == "other"
    objects["IBuilderConfig"].builder_optimization_level = 1
    assert objects["IBuilderConfig"].builder_optimization_level == 1


def test_derived_classes_take_their_own() -> None:
    class Mine(trt.Runtime):
        ratio = 1
        temporary_directory: str = "here"

    mine = Mine(trt.Logger())
    mine.foo = 1  # type: ignore[attr-defined]
    mine.ratio = 1.5  # type: ignore[assignment]
    assert (mine.foo, mine.ratio) == (1, 1.5)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="DLA_core: expected an integer"):
        mine.DLA_core = "none"  # type: ignore[assignment]
