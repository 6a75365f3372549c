"""Bindings: JSON round trip, refusals, and how extents are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_core.dtypes import TRT_NAMES
from trt_core.files import records
from trt_core.files.typed import BadField
from trt_core.sizes.expressions import format_extent
from trt_runtime import Binding
from trt_runtime.bindings import format_shape, symbol_values

extents = st.recursive(
    st.integers(0, 1 << 40) | st.text(min_size=1, max_size=4),
    lambda inner: st.builds(
        lambda name, operands: [name, *operands],
        st.sampled_from(["add", "mul", "floordiv", "max"]),
        st.lists(inner, min_size=2, max_size=3),
    ),
    max_leaves=6,
)
bindings = st.builds(
    Binding,
    st.text(max_size=12),
    st.sampled_from(list(TRT_NAMES)),
    st.lists(extents | st.none(), max_size=8).map(tuple),
)


@given(bindings)
def test_json_round_trip(binding: Binding) -> None:
    assert records.read(Binding, records.write(binding), "input 0") == binding


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "an object is needed, not None"),
        ({"name": "x", "dtype": "float32"}, "lacks the field 'shape'"),
        ({"name": "x", "dtype": "float32", "shape": [], "more": 1}, "has the unknown field 'more'"),
        ({"name": 1, "dtype": "float32", "shape": []}, "a string is needed, not 1"),
        ({"name": "x", "dtype": "float64", "shape": []}, "'float64' is no data type"),
        ({"name": "x", "dtype": [], "shape": []}, "a list of 0 is no data type"),
        ({"name": "x", "dtype": "float32", "shape": 3}, "a list is needed"),
        ({"name": "x", "dtype": "float32", "shape": [True]}, "True is no extent"),
        ({"name": "x", "dtype": "float32", "shape": [["add"]]}, "is no extent"),
        ({"name": "x", "dtype": "float32", "shape": [["add", None]]}, "takes no 1 operands"),
        ({"name": "x", "dtype": "float32", "shape": [["add", None, 1]]}, "depends on data"),
    ],
)
def test_malformed_json_is_refused(value: Any, message: str) -> None:
    with pytest.raises(BadField, match=message):
        records.read(Binding, value, "input 0")


@pytest.mark.parametrize(
    ("extent", "text"),
    [
        (3, "3"),
        ("s0", "s0"),
        (None, "?"),
        (["mul", 2, "s0"], "2*s0"),
        (["floordiv", ["add", "s0", 1], 2], "(s0 + 1)//2"),
        (["max", "s0", 1], "max(s0, 1)"),
    ],
)
def test_extents_read_like_arithmetic(extent: Any, text: str) -> None:
    assert format_extent(extent) == text


def test_shapes_and_bindings_as_text() -> None:
    assert format_shape(("s0", 3, None)) == "(s0, 3, ?)"
    assert str(Binding("x", torch.float16, ("s0", 3))) == "x: float16[s0, 3]"


def test_symbols_are_read_from_shapes() -> None:
    assert symbol_values({"a": (0, 1), "b": (1, 0)}, [torch.empty(2, 5), torch.empty(7)]) == {"a": 5, "b": 7}
