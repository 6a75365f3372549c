"""Linear maps into rows of odd extents: which are split, and that all ways compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.utils import run_and_get_code

import trt_portable as trt
from trt_portable.builder.inductor.unaligned_products import teach_unaligned_products
from trt_portable.execution.program import Program
from trt_portable.fusion import cuda_products as odd_products
from trt_portable.fusion.cuda_products import (
    UnalignedProduct,
    split_traced_unaligned_products,
    split_unaligned_products,
    write_interleaved,
    write_joined,
)

NONE, TRANSPOSE = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
CASES = {  # rows and columns of the matrix, whether it is transposed, whether it has a bias, whether it is split
    "logits": (19, 16, True, False, True),
    "with a bias": (19, 16, True, True, True),
    "even": (24, 16, True, False, False),
    "few": (9, 16, True, False, False),
    "another extent that is odd": (19, 15, True, False, False),
    "of nothing": (19, 0, True, False, False),
    "the other way around": (16, 19, False, False, False),
}


def _linear(network: Any, rows: int, columns: int, is_transposed: bool, has_bias: bool) -> Any:
    generator = np.random.default_rng(0)

    def constant(*shape: int) -> Any:
        return network.add_constant(shape, generator.standard_normal(shape).astype(np.float16)).get_output(0)

    depth, width = (columns, rows) if is_transposed else (rows, columns)
    x = network.add_input("x", trt.float16, (-1, 2, depth))
    operation = TRANSPOSE if is_transposed else NONE
    y = network.add_matrix_multiply(x, NONE, constant(1, rows, columns), operation).get_output(0)
    if has_bias:
        y = network.add_elementwise(y, constant(1, 1, width), trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "y"
    network.mark_output(y)
    return y


@pytest.mark.sampled
@pytest.mark.parametrize("split", ["interpreted", "traced", "output"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_split(network: Any, load: Any, monkeypatch: pytest.MonkeyPatch, name: str, split: str) -> None:
    monkeypatch.setattr(odd_products, "_MANY_COLUMNS", 16)
    rows, columns, is_transposed, has_bias, is_split = CASES[name]
    _linear(network, rows, columns, is_transposed, has_bias)
    depth = columns if is_transposed else rows
    engine = load(network, {"x": ((1, 2, depth), (8, 2, depth), (16, 2, depth))})
    image = engine._state.loaded
    linear = image.calls
    if split == "interpreted":
        calls = split_unaligned_products(linear)
    else:
        teach_unaligned_products()
        calls = split_traced_unaligned_products(linear, image.outputs if split == "output" else ())
    assert any(one.compute != other.compute for one, other in zip(calls, linear, strict=True)) == is_split
    program = Program(calls, image.inputs, image.outputs)
    program.load_constants()
    for batch in (1, 8):
        x = torch.randn(batch, 2, depth).half()
        with torch.inference_mode():
            (found,), (wanted,) = (each.run([x]) for each in (program, engine._state.program))
        assert found.is_contiguous()
        torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(16, 60).filter(lambda count: count % 8),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    has_bias=st.booleans(),
)
def test_every_way_writes_every_number(rows: int, columns: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, matrix = torch.randn(rows, 8).to(dtype), torch.randn(columns, 8).to(dtype)
    bias = torch.randn(columns).to(dtype) if has_bias else None
    wanted = F.linear(x.double(), matrix.double(), None if bias is None else bias.double())
    for write in (write_joined, write_interleaved):
        result = torch.full((rows, columns), torch.nan, dtype=dtype)
        write(x, matrix, bias, result)
        error = (result.double() - wanted).abs().max().item()
        assert error <= 8 * torch.finfo(dtype).eps * max(1.0, wanted.abs().max().item()), write


def test_a_result_goes_to_memory_that_is_given(network: Any, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written once, and read from there by what follows; memory of another kind is left alone."""
    monkeypatch.setattr(odd_products, "_MANY_COLUMNS", 16)
    y = _linear(network, 19, 16, True, False)
    relu = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
    relu.name = "relu"
    network.mark_output(relu)
    image = load(network, {"x": ((1, 2, 16), (8, 2, 16), (16, 2, 16))})._state.loaded
    program = Program(
        split_unaligned_products(image.calls),
        image.inputs,
        image.outputs,
    )
    program.load_constants()
    x = torch.randn(8, 2, 16).half()
    with torch.inference_mode():
        wanted = [value.clone() for value in program.run([x])]
        target = torch.full((8, 2, 19), torch.nan).half()
        found = program.run([x], [target, None])
        assert found[0] is target
        for have, want in zip(found, wanted, strict=True):
            assert torch.equal(have, want)
        for other in (torch.zeros(8, 2, 19), torch.zeros(16, 19).half(), torch.zeros(19, 2, 8).half().transpose(0, 2)):
            found = program.run([x], [other, None])
            assert found[0] is not other and torch.equal(found[0], wanted[0]) and not other.any()
        few = program.run([x[:1]], [target[:1], None])
        torch.testing.assert_close(few[0], wanted[0][:1], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_ways_to_join_give_the_same_bits(dtype: torch.dtype) -> None:
    x, matrix = torch.randn(16, 8).to(dtype), torch.randn(21, 8).to(dtype)
    x[3], matrix[20] = torch.inf, torch.nan
    (chosen,), (copied,) = (compute([x, matrix]) for compute in (odd_products._chosen_product, UnalignedProduct()))
    assert torch.equal(copied.view(torch.int16), chosen.view(torch.int16))


@pytest.mark.gpu
def test_compiled_products_do_not_write_rows_at_odd_places() -> None:
    left, matrix = torch.randn(64, 64, device="cuda").half(), torch.randn(2051, 64, device="cuda").half()

    def product(x: torch.Tensor) -> Any:
        return odd_products._chosen_product((x, matrix))[0]

    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(product), left)
    assert code.count("extern_kernels.mm(") == 2 and "# alias" not in code, code  # as a part of other memory is marked
