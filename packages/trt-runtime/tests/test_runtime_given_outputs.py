"""Engines that write to tensors of the caller."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_core import InputError, trt
from trt_runtime import Binding, TRTModule


def test_outputs_that_exist_already(two_in_two_out: TRTModule) -> None:
    a, b = torch.randint(9, (2, 3, 4), dtype=torch.int32)
    total, rest = torch.zeros(2, 3, 4, dtype=torch.int32)
    version = total._version
    for _ in range(2):
        two_in_two_out.run_into([a, b], [total, rest])
        assert torch.equal(total, a + b)
        assert torch.equal(rest, a - b)
    assert total._version > version
    fresh = two_in_two_out(a, b)  # afterwards the module allocates again
    assert fresh[0].data_ptr() != total.data_ptr()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, t, r: [t], "has 2 outputs, 1 tensors were given"),
        (lambda a, t, r: [t, None], r"output 1 \('rest'\) of engine 'block' is None"),
        (lambda a, t, r: [t, r.float()], r"is float32 \(3, 4\) on cpu"),
        (lambda a, t, r: [t, r[:2]], r"is int32 \(2, 4\) on cpu"),
        (lambda a, t, r: [t, r.t().contiguous().t()], "is not contiguous"),
        (lambda a, t, r: [t, t], "shares memory with another tensor"),
        (lambda a, t, r: [t, a], "shares memory with another tensor"),
    ],
)
def test_outputs_that_do_not_fit(two_in_two_out: TRTModule, change: Any, message: str) -> None:
    a, b, total, rest = torch.zeros(4, 3, 4, dtype=torch.int32)
    with pytest.raises(InputError, match=message):
        two_in_two_out.run_into([a, b], change(a, total, rest))


def test_outputs_whose_shape_depends_on_data_cannot_be_placed(make_engine: Any) -> None:
    def nonzero(network: Any, tensors: Any) -> list[Any]:
        return [network.add_non_zero(tensors[0], trt.DataType.INT64).get_output(0)]

    engine = make_engine(nonzero, [Binding("x", torch.bool, (3,))], [Binding("y", torch.int64, (1, None))])
    with pytest.raises(InputError, match="cannot be written in place") as caught:
        engine.run_into([torch.ones(3) > 0], [torch.zeros(1, 3, dtype=torch.int64)])
    assert "depends on data" in caught.value.why


def test_given_outputs_are_refused_where_a_mode_is_active(static_engine: TRTModule) -> None:
    x = torch.ones(2, 3)
    with torch.device("cpu"), pytest.raises(InputError, match="cannot write to given tensors here"):
        static_engine.run_into([x], [torch.empty_like(x)])
    with pytest.raises(InputError, match="requires gradients"):
        static_engine.run_into([torch.ones(2, 3, requires_grad=True)], [torch.empty_like(x)])
