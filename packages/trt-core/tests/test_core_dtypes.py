"""Data types: names, both directions of the table, and refusals."""

from __future__ import annotations

import types
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from trt_core import InputError, dtypes, from_trt, parse_dtype, provider, to_trt


class _DataType:
    """A stand-in for the provider's enumeration: members have names, as TensorRT's have."""


for _name in (*dtypes.TRT_NAMES.values(), "INT4", "FP4", "E8M0"):
    setattr(_DataType, _name, types.SimpleNamespace(name=_name))


@pytest.fixture(autouse=True)
def _stand_in_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("stand_in")
    module.DataType = _DataType  # type: ignore[attr-defined]
    monkeypatch.setattr(provider, "_chosen", (provider.Provider.PORTABLE, module))
    yield


@pytest.mark.parametrize("dtype", sorted(dtypes.TRT_NAMES, key=str))
def test_round_trip_through_the_provider(dtype: torch.dtype) -> None:
    assert to_trt(dtype).name == dtypes.TRT_NAMES[dtype]
    assert from_trt(to_trt(dtype)) == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int16])
def test_types_that_tensorrt_lacks_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=f"no data type for {dtype}"):
        to_trt(dtype)


@pytest.mark.parametrize("name", ["INT4", "FP4", "E8M0"])
def test_types_that_pytorch_lacks_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        from_trt(getattr(_DataType, name))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (torch.float16, torch.float16),
        ("half", torch.float16),
        ("fp16", torch.float16),
        ("float16", torch.float16),
        ("torch.float16", torch.float16),
        ("FP32", torch.float32),
        ("float", torch.float32),
        ("bf16", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
        ("double", torch.float64),
        ("long", torch.int64),
        ("int", torch.int32),
        ("bool", torch.bool),
        (np.float16, torch.float16),
        (np.dtype("int64"), torch.int64),
        (_DataType.HALF, torch.float16),  # type: ignore[attr-defined]
    ],
)
def test_reads_every_spelling(spec: object, expected: torch.dtype) -> None:
    assert parse_dtype(spec) == expected


@pytest.mark.parametrize("spec", ["floaty", "nn", "relu", "", 16, None, float, np.str_, np.array])
def test_refuses_what_names_no_type(spec: object) -> None:
    with pytest.raises(InputError, match="is not a data type"):
        parse_dtype(spec)


def test_short_name_reads_back() -> None:
    for dtype in dtypes.TRT_NAMES:
        assert parse_dtype(dtypes.dtype_name(dtype)) == dtype
