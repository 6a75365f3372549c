"""Kernels of products of few bits: each against floats, and what happens to a product before it is a result."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest
import torch

import trt_portable as trt
from trt_portable.builder.autotune.low_precision_choice import Case
from trt_portable.kernels.low_precision_products import (
    PRODUCT_KERNELS,
    REFERENCE,
    DequantizeInTiles,
    FewRowsOfCodes,
    Finish,
    IntegerProduct,
    ProductForm,
    by_bits,
    decode,
)

pytestmark = pytest.mark.sampled(3)

COLUMNS: Final = 16
CPU: Final = torch.device("cpu")
FLOATS: Final = (trt.float32, trt.bfloat16)


def _forms() -> list[ProductForm]:
    product = {"columns": COLUMNS, "depth": 64, "result": trt.float32}
    forms = [
        ProductForm(codes=kind, left=kind, blocks=blocks, **product)
        for kind in (trt.int8, trt.fp8)
        for blocks in ((1, 1), (COLUMNS, 1))
    ]
    forms += [
        ProductForm(codes=trt.int8, left=kind, blocks=(COLUMNS, 1), **{**product, "result": kind}) for kind in FLOATS
    ]
    forms += [
        ProductForm(codes=trt.int4, left=kind, blocks=(COLUMNS, 2), **{**product, "result": kind}) for kind in FLOATS
    ]
    levels = tuple(number / 10 for number in range(-9, 7))
    for kind, blocks in itertools.product(FLOATS, ((1, 1), (COLUMNS, 1), (COLUMNS, 2), (2, 1))):
        weight_only = {**product, "left": kind, "result": kind, "blocks": blocks}
        forms += [ProductForm(codes=codes, has_offset=True, **weight_only) for codes in (trt.int4, trt.int8)]
        forms += [ProductForm(codes=trt.int4, has_offset=shifts, levels=levels, **weight_only) for shifts in (0, 1)]
    forms.append(ProductForm(codes=trt.int8, left=trt.int8, blocks=(COLUMNS, 1), has_offset=True, **product))
    return [*forms, ProductForm(codes=trt.int8, left=trt.int8, blocks=(1, 1), is_rowwise=True, **product)]


@pytest.mark.parametrize("kernel", PRODUCT_KERNELS.values(), ids=lambda kernel: kernel.name)
def test_every_kernel_computes_what_floats_do(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DequantizeInTiles, "_TILE", 3 * 64)  # several tiles, the last one shorter
    accepted = [form for form in _forms() if kernel.accepts(form, CPU)]
    for form in accepted:
        for rows in (1, 5):
            for output in (None, trt.int8, trt.fp8):
                case = Case(form, (rows,), True, rows == 5, output)
                try:
                    assert case.trial(CPU).difference(kernel) is None, (form, rows, output)
                except (RuntimeError, NotImplementedError) as error:
                    if kernel is REFERENCE or isinstance(kernel, IntegerProduct):
                        raise
                    pytest.skip(f"PyTorch lacks it here: {error}")
    assert accepted or not kernel.accepts(_forms()[0], CPU)


@pytest.mark.parametrize("depth, groups", [(128, 1), (256, 8), (384, 12), (512, 32), (1024, 4), (1024, 1)])
@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("codes", ["int4", "levels", "fp4", "int8", "fp8"])
def test_what_is_prepared_for_few_rows_is_the_matrix(codes: str, has_offset: bool, depth: int, groups: int) -> None:
    levels = tuple(number / 10 for number in range(-9, 7)) if codes == "levels" else ()
    kind, half, columns = getattr(trt, "int4" if levels else codes), trt.bfloat16, 20  # not a multiple of a tile's rows
    form = ProductForm(columns, depth, kind, half, half, (columns, groups), False, has_offset, levels)
    few, case = FewRowsOfCodes(), Case(form, (2,), False, False, None)
    trial = case.trial(CPU)
    scale = trial.scale.to(torch.bfloat16) if groups > 1 else trial.scale
    matrix, prepared = few.prepare(trial.codes, scale.float(), form)
    assert few.reads(matrix, prepared, form) and not few.reads(matrix[:-1], prepared, form)
    assert few.reads(matrix, prepared.flatten()[:-1], form) is False
    given = torch.tensor(by_bits(levels)) if levels else None
    found, wanted = (
        few.decoded(matrix, prepared, form, torch.float32),
        decode(trial.codes, scale.float(), form, given),
    )
    torch.testing.assert_close(found, wanted)
    assert trial.difference(few) is None


def test_what_is_added_to_rows_comes_before_they_are_rounded() -> None:
    finish = Finish(
        trt.float32, torch.tensor([[2.0], [1.0]]), torch.tensor([1.0, -4.0]), True, torch.tensor(2.0), trt.int8
    )
    assert finish(torch.tensor([[3.0, 1.0], [5.0, 6.0]])).tolist() == [[4, 0], [3, 1]]
