"""Linear maps into rows of odd extents: which are split, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.runtime import odd_products
from trt_portable.runtime.fusion import fuse_linear
from trt_portable.runtime.odd_products import split_odd_products
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


@pytest.mark.parametrize("name", CASES)
def test_what_is_split(network: Any, load: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
    calls = split_odd_products(fuse_linear(image.calls, image.visible))
    assert any(call.compute is odd_products._split_linear for call in calls) == is_split
    program = Program(calls, image.inputs, image.outputs)
    program.load_constants()
    for batch in (1, 8):
        given = torch.randn(batch, 2, depth).half()
        with torch.inference_mode():
            (found,), (wanted,) = (each.run([given]) for each in (program, engine._state.program))
        assert found.is_contiguous()
        torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3)
