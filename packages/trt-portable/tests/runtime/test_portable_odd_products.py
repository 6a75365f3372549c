"""Linear maps into rows of odd extents: which are split, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._inductor.utils import run_and_get_code

import trt_portable as trt
from trt_portable.runtime import odd_products
from trt_portable.runtime.fusion import fuse_linear
from trt_portable.runtime.odd_products import split_odd_products, split_traced_odd_products
from trt_portable.runtime.program import Program

NONE, TRANSPOSE = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
CASES = {  # rows and columns of the matrix, whether it is transposed, whether it has a bias, whether it is split
    "logits": (19, 16, True, False, True),
    "with a bias": (19, 16, True, True, True),
    "even": (24, 16, True, False, False),
    "few": (9, 16, True, False, False),
    "another extent that is odd": (19, 15, True, False, False),
    "the other way around": (16, 19, False, False, False),
}


@pytest.mark.parametrize("split", [split_odd_products, split_traced_odd_products])
@pytest.mark.parametrize("name", CASES)
def test_what_is_split(network: Any, load: Any, monkeypatch: pytest.MonkeyPatch, name: str, split: Any) -> None:
    monkeypatch.setattr(odd_products, "_MANY_COLUMNS", 16)
    rows, columns, is_transposed, has_bias, is_split = CASES[name]
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
    engine = load(network, {"x": ((1, 2, depth), (8, 2, depth), (16, 2, depth))})
    image = engine._state.image
    linear = fuse_linear(image.calls, image.visible)
    calls = split(linear)
    assert any(one.compute != other.compute for one, other in zip(calls, linear, strict=True)) == is_split
    program = Program(calls, image.inputs, image.outputs)
    program.load_constants()
    for batch in (1, 8):
        given = torch.randn(batch, 2, depth).half()
        with torch.inference_mode():
            (found,), (wanted,) = (each.run([given]) for each in (program, engine._state.program))
        assert found.is_contiguous()
        torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_ways_to_join_give_the_same_bits(dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5], dtype=dtype)
    left, right = special.repeat(3, 4), special.flip(0)[:5].repeat(3, 1)
    copied, chosen = odd_products._copied(left, right), odd_products._chosen(left, right)
    assert torch.equal(copied.view(torch.int16), chosen.view(torch.int16))


@pytest.mark.gpu
def test_compiled_products_do_not_write_rows_at_odd_places() -> None:
    left, matrix = torch.randn(64, 64, device="cuda").half(), torch.randn(2051, 64, device="cuda").half()

    def product(x: torch.Tensor) -> Any:
        return odd_products._split_linear(odd_products._chosen, (x, matrix))[0]

    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(product), left)
    assert code.count("extern_kernels.mm(") == 2 and "# alias" not in code, code  # as a part of other memory is marked
