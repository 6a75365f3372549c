"""Plugin fields: what clients give, and the numpy arrays that creators read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trt_portable as trt

T = trt.PluginFieldType
ELEMENTS = {
    T.INT8: np.int8,
    T.INT16: np.int16,
    T.INT32: np.int32,
    T.INT64: np.int64,
    T.FLOAT16: np.float16,
    T.FLOAT32: np.float32,
    T.FLOAT64: np.float64,
}


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("form", ["array", "matrix", "bytes", "memory", "float64"])
def test_numbers_come_back_as_an_array_of_their_type(kind: Any, form: str) -> None:
    array = np.array([1, 2, 3, 100], ELEMENTS[kind])
    given: Any = {
        "array": array,
        "matrix": array.reshape(2, 2),
        "bytes": array.tobytes(),
        "memory": memoryview(bytearray(array.tobytes())),
        "float64": array.astype(np.float64),
    }[form]
    field = trt.PluginField("x", given, kind)
    assert isinstance(field.data, np.ndarray)
    assert field.data.dtype == ELEMENTS[kind]
    assert field.data.tolist() == array.tolist()
    assert field.size == 4
    again = trt.PluginField._from_json(field._to_json())
    assert (again.name, again.type, again.data.tolist()) == ("x", kind, array.tolist())


@pytest.mark.parametrize("given", [b"text", bytearray(b"text"), np.frombuffer(b"text", np.uint8), "text"])
def test_characters_come_back_as_int8(given: Any) -> None:
    field = trt.PluginField("name", given, T.CHAR)
    assert field.data is not None
    assert field.data.dtype == np.int8
    assert field.data.tobytes().decode() == "text"
    assert bytes(field.data) == b"text"
    assert field.size == 4


def test_a_field_may_only_announce_a_name() -> None:
    field = trt.PluginField("x")
    assert field.data is None
    assert field.size == 0
    field.data = np.zeros(3, np.float32)
    assert field.size == 3


def test_types_that_numpy_lacks_keep_their_bytes() -> None:
    field = trt.PluginField("x", np.arange(4, dtype=np.uint8), T.BF16)
    assert field.data is not None
    assert field.data.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("data", "kind", "error"),
    [
        (b"abc", T.INT16, ValueError),
        (np.array([300]), T.INT8, ValueError),
        (np.array([0.5]), T.INT32, ValueError),
        (7, T.INT32, TypeError),
        (np.array([1]), "INT32", TypeError),
    ],
)
def test_data_that_do_not_fit_are_refused(data: Any, kind: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        trt.PluginField("x", data, kind)
