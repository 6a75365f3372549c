"""Engines that write to tensors of the caller."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import nonzero

from trt_core import InputError
from trt_runtime import Binding, PreAllocatedOutputs, TRTModule
from trt_runtime.module import engines_of


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


# Allocated ahead -----------------------------------------------------------------------------------------------------


def ahead_of(engine: TRTModule) -> list[torch.Tensor] | None:
    """What the engine has allocated for its next call."""
    (loaded,) = engines_of(engine)
    (context,) = loaded.contexts._idle
    return None if context._ahead is None else context._ahead[3]


def test_a_call_takes_what_the_call_before_has_allocated(two_in_two_out: TRTModule) -> None:
    a, b = torch.randint(9, (2, 3, 4), dtype=torch.int32)
    with PreAllocatedOutputs(two_in_two_out):
        first = two_in_two_out(a, b)
        ahead = ahead_of(two_in_two_out)
        assert ahead is not None
        second = two_in_two_out(b, a)
        assert [value.data_ptr() for value in second] == [value.data_ptr() for value in ahead]
        assert torch.equal(first[1], a - b)  # the caller's: the second call has not written there
        assert torch.equal(second[1], b - a)
        two_in_two_out.run_into([a, b], list(map(torch.empty_like, first)))
        assert torch.equal(second[1], b - a)
    assert ahead_of(two_in_two_out) is None
    two_in_two_out.set_pre_allocated_outputs(True)
    with PreAllocatedOutputs(two_in_two_out):
        two_in_two_out(a, b)
    assert ahead_of(two_in_two_out) is not None  # as it was before the block
    two_in_two_out.set_pre_allocated_outputs(False)
    assert ahead_of(two_in_two_out) is None


def test_calls_of_changing_sizes_return_what_is_theirs(dynamic_engine: TRTModule) -> None:
    rows = [1, 1, 3, 2, 2, 1, 3, 3]
    inputs = [torch.randn(count, 3) for count in rows]
    wanted = [dynamic_engine(x) for x in inputs]
    with PreAllocatedOutputs(dynamic_engine):
        found = [dynamic_engine(x) for x in inputs]
    assert all(map(torch.equal, found, wanted))
    assert len({value.data_ptr() for value in found}) == len(rows)


def test_what_was_allocated_in_inference_mode_is_for_calls_in_it(static_engine: TRTModule) -> None:
    x = torch.randn(2, 3)
    with PreAllocatedOutputs(static_engine):
        with torch.inference_mode():
            assert static_engine(x).is_inference()
        assert not static_engine(x).is_inference()
        with torch.inference_mode():
            assert static_engine(x).is_inference()


def test_outputs_whose_shape_depends_on_data_come_as_they_are(make_engine: Any) -> None:
    engine = make_engine(nonzero, [Binding("x", torch.bool, (3,))], [Binding("y", torch.int64, (1, None))])
    with PreAllocatedOutputs(engine):
        for count in (3, 1, 0, 2):
            assert engine(torch.arange(3) < count).shape == (1, count)
