"""Arithmetic of symbolic sizes: that it is right, and that it asks no search through assumptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import torch
from counted_calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_core.internals import ShapeEnv
from trt_portable.errors import strict
from trt_portable.network.symbols import expression_of
from trt_portable.size_arithmetic import is_negative, least_of, quotient

E = trt.ElementWiseOperation
_SIZES = st.recursive(
    st.sampled_from(["n", "m"]) | st.integers(0, 12),
    lambda inner: st.tuples(st.sampled_from("+*/"), inner, inner),
    max_leaves=6,
)


def _of(said: Any, sizes: dict[str, Any]) -> Any:
    if not isinstance(said, tuple):
        return sizes.get(said, said)
    left, right = (_of(operand, sizes) for operand in said[1:])
    if said[0] == "/":
        return left // (right if isinstance(right, int) and right > 1 else 3)
    return left + right if said[0] == "+" else left * right


def _symbols(count: int = 2) -> list[torch.SymInt]:
    environment = ShapeEnv()
    found = [environment.create_unbacked_symint() for _ in range(count)]
    for size in found:
        torch._check(size >= 0)
    return found


def _number(size: Any, values: dict[Any, int]) -> int:
    return int(size.node.expr.xreplace(values)) if isinstance(size, torch.SymInt) else size


@settings(max_examples=40)
@given(_SIZES, _SIZES, st.booleans(), st.integers(1, 9), st.integers(1, 9))
def test_quotients_and_least_values_of_sizes_are_right(over: Any, under: Any, multiplied: bool, n: int, m: int) -> None:
    sizes = _symbols()
    values = {size.node.expr: sympy.Integer(number) for size, number in zip(sizes, (n, m), strict=True)}
    symbolic = dict(zip("nm", sizes, strict=True))
    dividend, divisor = _of(over, symbolic), _of(under, symbolic)
    if multiplied:
        dividend = dividend * divisor
    left, right = _number(dividend, values), _number(divisor, values)
    assert least_of(dividend) <= left
    if right:
        assert _number(quotient(dividend, divisor), values) == left // right


def test_quotients_have_the_form_that_pytorch_gives_them() -> None:
    n, m = _symbols()
    pairs: list[tuple[Any, Any]] = [
        *((n * 16, 4), (n * 6 + 9, 3), (n * 4 + m + 7, 4), (n * 6, 4), ((n * 3 + 1) // 2, 5), (n, 1), (n + 4, 2)),
        *((n * m * 64, n), (n * m * 64, n * 16), (n * m + n, n), (n * m * 4 + m * 4, n * m + m), (n * 2, m)),
        ((n // 2) * m * 8, (n // 2) * 8),
    ]
    for dividend, divisor in pairs:
        found, expected = quotient(dividend, divisor), dividend // divisor
        assert expression_of(found) == expression_of(expected)


def test_what_is_negative_but_for_sizes_of_0_is_told() -> None:
    n, m = _symbols()
    assert is_negative(-1) and is_negative(-n - 1) and is_negative(-n * m)
    assert not any(map(is_negative, (0, n, n - 1, m - n)))


def test_shape_arithmetic_takes_a_few_steps_for_each_layer(network: Any, constant: Any) -> None:
    """What compared, divided and made shapes of symbolic numbers searched: 20 ms for each, a minute for the last."""
    x = network.add_input("x", trt.float32, (-1, -1, 16))
    numbers = [constant(network, [number], np.int64) for number in range(9)]

    def work(begin: int) -> None:
        extents = network.add_shape(x).get_output(0)
        size = network.add_gather(extents, numbers[0], 0).get_output(0)
        for place in range(begin, begin + 45):
            op = (E.PROD, E.SUM, E.DIV)[place % 3]
            size = network.add_elementwise(size, numbers[2 + place % 5], op).get_output(0)
        rest = constant(network, [-1, 4], np.int64)
        target = network.add_concatenation([size, rest]).get_output(0)
        layer = network.add_shuffle(x)
        layer.set_input(1, target)
        assert tuple(layer.get_output(0).shape) == (-1, -1, 4)

    work(0)  # which imports what there is to import
    assert max(count_calls(lambda: work(1)), count_calls(lambda: work(2))) < 150_000


def test_a_slice_of_a_negative_size_is_refused(network: Any, constant: Any) -> None:
    x = network.add_input("x", trt.float32, (-1,))
    size = network.add_elementwise(
        constant(network, [-1], np.int64), network.add_shape(x).get_output(0), E.SUB
    ).get_output(0)
    layer = network.add_slice(x, (0,), (0,), (1,))
    layer.set_input(2, size)
    with strict(), pytest.raises(trt.NetworkError, match=r"the extent .* is negative"):
        _ = layer.get_output(0).shape
