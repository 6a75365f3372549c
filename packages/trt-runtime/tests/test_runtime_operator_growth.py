"""What operators are expected to make is what they make, or somewhat more, and never less."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_runtime.program.operator_growth import elements_made

aten = torch.ops.aten
X = torch.zeros(2, 3, 8, 7)

CALLS: dict[str, tuple[Any, ...]] = {
    "range": (aten.arange.start_step, 0.5, 9.7, 0.3),
    "range down": (aten.arange.start_step, 9, -3, -2),
    "range from zero": (aten.arange.default, 10),
    "noise": (aten.randint.default, 9, [3, 4]),
    "identity": (aten.eye.m, 3, 4),
    "triangle": (aten.tril_indices.default, 3, 4),
    "tile": (aten.tile.default, X, [2, 3]),
    "repeat": (aten.repeat.default, X, [2, 3, 1, 1, 1]),
    "pad": (aten.constant_pad_nd.default, X, [1, 2, 3, -4]),
    "edges": (aten.replication_pad2d.default, X, [1, 2, 3, 4]),
    "products": (aten.kron.default, X, X),
    "windows": (aten.im2col.default, X, [3, 2], [1, 1], [1, 2], [2, 1]),
    "sizes": (aten.upsample_nearest2d.default, X, [16, 5]),
    "factors": (aten.upsample_bilinear2d.vec, X, None, False, [1.7, 2.3]),
    "antialiased": (aten._upsample_bicubic2d_aa.default, X, [4, 5], False),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_expected_bounds_what_is_made(name: str) -> None:
    operator, *given = CALLS[name]
    arguments = zip((argument.name for argument in operator._schema.arguments), given, strict=False)
    operands = {
        name: tuple(value.shape) if isinstance(value, torch.Tensor) else value
        for name, value in arguments
        if value is not None
    }
    made = elements_made(operator._schema.name, operands)
    assert made is not None
    count = operator(*given).numel()
    assert count <= made <= 2 * count


def test_other_operators_are_nobodys_concern() -> None:
    assert elements_made("aten::relu", {"self": (2, 3)}) is None
