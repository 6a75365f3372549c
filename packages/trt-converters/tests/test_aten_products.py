"""Products, einsum, distances, detection and primitive operators against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
torch.manual_seed(0)
randn, tensor = torch.randn, torch.tensor


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point:
        return randn(shape).to(dtype)
    return torch.randint(-(2**28), 2**28, shape, dtype=dtype)  # their products do not fit into a float


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (aten.mm.default, [(3, 4), (4, 5)]),
        (aten.bmm.default, [(2, 3, 4), (2, 4, 5)]),
        (aten.matmul.default, [(2, 3, 4), (4,)]),
        (aten.matmul.default, [(4,), (2, 4, 3)]),
        (aten.matmul.default, [(4,), (4,)]),
        (aten.matmul.default, [(2, 1, 3, 4), (5, 4, 2)]),
        (aten.linear.default, [(2, 4), (3, 4), (3,)]),
        (aten.mv.default, [(3, 4), (4,)]),
        (aten.dot.default, [(4,), (4,)]),
        (aten.outer.default, [(4,), (3,)]),
        (aten.linalg_cross.default, [(2, 3), (1, 3)]),
    ],
)
def test_products(op: Any, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    check_conversion(op, [numbers(dtype, *shape) for shape in shapes], atol=0.1 if dtype == torch.bfloat16 else None)


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 3), (0, 1)])
@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (aten.addmm.default, [(5,), (3, 4), (4, 5)]),
        (aten.baddbmm.default, [(1, 1, 5), (2, 3, 4), (2, 4, 5)]),
        (aten.addbmm.default, [(3, 1), (2, 3, 4), (2, 4, 5)]),
        (aten.addmv.default, [(1,), (3, 4), (4,)]),
        (aten.addr.default, [(3, 1), (3,), (4,)]),
    ],
)
def test_products_with_something_added(op: Any, shapes: list[tuple[int, ...]], beta: int, alpha: int) -> None:
    for dtype in (torch.float32, torch.int64):
        args = [numbers(dtype, *shape) for shape in shapes]
        check_conversion(op, args, {"beta": beta, "alpha": alpha}, atol=1e-5 if dtype.is_floating_point else None)


@pytest.mark.parametrize("alpha", [0.5, 0.0883883, -0.3, 1e-4, 2.0**-20])
@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (aten.addmm.default, [(5,), (3, 64), (64, 5)]),
        (aten.baddbmm.default, [(1, 1, 5), (2, 3, 64), (2, 64, 5)]),
        (aten.addbmm.default, [(3, 1), (2, 3, 64), (2, 64, 5)]),
        (aten.addmv.default, [(1,), (3, 64), (64,)]),
        (aten.addr.default, [(3, 1), (3,), (4,)]),
    ],
)
def test_what_alpha_makes_small_may_be_larger_than_halves_before(
    op: Any, shapes: list[tuple[int, ...]], alpha: float
) -> None:
    size = (2e4 / alpha / (8 if op is not aten.addr.default else 1)) ** 0.5 if alpha > 0 else 80.0
    added, *operands = (randn(shape).clamp(-2, 2) for shape in shapes)
    args = [added.half(), *(min(size, 2e4) * operand.half() for operand in operands)]
    wanted = op(*(item.double() for item in args), beta=0.5, alpha=alpha)
    assert wanted.abs().max() < 65504
    check_conversion(op, args, {"beta": 0.5, "alpha": alpha}, atol=float(wanted.abs().max()) * 4e-3)


def test_beta_zero_ignores_what_it_would_scale() -> None:
    args = (torch.full((5,), float("nan")), randn(3, 4), randn(4, 5))
    check_conversion(aten.addmm.default, args, {"beta": 0})


def test_linear_is_one_product_and_one_sum() -> None:
    args = (randn(2, 4), randn(3, 4), randn(3))
    layers = emitted_layers(aten.linear.default, args, constants=(1, 2))
    assert sorted(kind for kind in layers if kind not in ("CONSTANT", "UNSQUEEZE")) == [
        "ELEMENTWISE",
        "MATRIX_MULTIPLY",
    ]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij , bjk", [(2, 2, 3), (2, 3, 4)]),
        ("...ij,...jk->...ik", [(2, 2, 3), (3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("Ab,bC->CA", [(2, 3), (3, 4)]),
        ("i,j,k->ijk", [(2,), (3,), (4,)]),
        ("ijk,kl,lm->im", [(2, 3, 4), (4, 5), (5, 6)]),
        ("...,j", [(2, 3), (4,)]),
        ("ij,ij->ij", [(2, 3), (1, 3)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check_conversion(aten.einsum.default, (equation, [randn(shape) for shape in shapes]), atol=1e-5)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    args = (randn(2, 3, 4), randn(2, 5, 4), p, None)
    check_conversion(aten._cdist_forward.default, args, dynamic={0: {1: (1, 3, 6)}}, rtol=1e-4)
    check_conversion(aten._pdist_forward.default, (randn(5, 3), p), rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4, 3)])
def test_bilinear(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight, bias = randn(6, 3, 5).to(dtype), randn(6).to(dtype)
    pair = randn(*shape).to(dtype), randn(*shape[:-1], 5).to(dtype)
    varied = {place: {0: (1, shape[0], 7)} for place in (0, 1)} if len(shape) > 1 else None
    tolerance = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 2e-1}[dtype]
    check_conversion(
        aten.bilinear.default, (*pair, weight, bias), dynamic=varied, constants=(2, 3), rtol=tolerance, atol=tolerance
    )
    check_conversion(aten.bilinear.default, (*pair, weight, None), rtol=tolerance, atol=tolerance)


def test_nms_keeps_the_best_boxes_in_order() -> None:
    pytest.importorskip("torchvision")  # defines the operator
    boxes = torch.rand(20, 4) * 10
    boxes[:, 2:] += boxes[:, :2]
    check_conversion(torch.ops.torchvision.nms.default, (boxes, randn(20), 0.3))
    varied = {0: {0: (4, 20, 40)}, 1: {0: (4, 20, 40)}}
    check_conversion(torch.ops.torchvision.nms.default, (boxes, randn(20), 0.3), dynamic=varied)
    many = torch.rand(6000, 4)
    result = check_conversion(torch.ops.torchvision.nms.default, (many, randn(6000), 0.3), expect_supported=False)
    assert result.verdict.reason is Reason.TENSORRT_LIMIT
    varied = {0: {0: (4, 20, 6000)}, 1: {0: (4, 20, 6000)}}
    args = (boxes, randn(20), 0.3)
    result = check_conversion(torch.ops.torchvision.nms.default, args, dynamic=varied, expect_supported=False)
    assert "up to 6000 boxes" in result.verdict.message


def test_roi_align_says_why_it_is_refused() -> None:
    pytest.importorskip("torchvision")  # defines the operator
    args = (randn(1, 3, 8, 8), tensor([[0.0, 1, 1, 5, 5]]), 1.0, 2, 2, 0, True)
    result = check_conversion(torch.ops.torchvision.roi_align.default, args, expect_supported=False)
    assert "regions" in result.verdict.message


def test_primitive_operators() -> None:
    prims = torch.ops.prims
    check_conversion(prims.broadcast_in_dim.default, (randn(3), [2, 3, 4], [1]))
    check_conversion(prims.div.default, (tensor([-7, 7]), tensor([2, 2])))
    check_conversion(prims.sum.default, (randn(2, 3, 4), [0, 2]))
    check_conversion(prims.convert_element_type.default, (randn(3), torch.float16))


NAMES = [
    "mm", "bmm", "matmul", "addmm", "baddbmm", "addbmm", "addmv", "addr", "mv", "dot", "vdot", "outer", "inner",
    "einsum", "cdist", "linalg.cross", "cross", "nn.functional.linear", "nn.functional.pdist", "tensordot",
    "linalg.vecdot",
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, 2):
        tolerance = 1e-4 if dtype.is_floating_point else None
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None, rtol=tolerance, atol=tolerance)
