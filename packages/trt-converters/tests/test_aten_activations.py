"""Activation functions against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INF, NAN = float("inf"), float("nan")
POINTS = torch.tensor([-INF, -30.0, -3.0, -1.0, -0.5, -1e-3, 0.0, 1e-3, 0.5, 1.0, 3.0, 5.0, 6.0, 30.0, INF, NAN])
FINITE = POINTS[1:-2]

FUNCTIONS = [
    (aten.relu.default, ()),
    (aten.relu6.default, ()),
    (aten.leaky_relu.default, (0.2,)),
    (aten.elu.default, ()),
    (aten.elu.default, (1.5, 2.0, 0.5)),
    (aten.selu.default, ()),
    (aten.celu.default, (0.7,)),
    (aten.gelu.default, ()),
    (aten.silu.default, ()),
    (aten.mish.default, ()),
    (aten.hardswish.default, ()),
    (aten.hardsigmoid.default, ()),
    (aten.hardtanh.default, (-2.0, 0.5)),
    (aten.softplus.default, ()),
    (aten.softplus.default, (2.0, 3.0)),
    (aten.threshold.default, (0.3, -7.0)),
    (aten.softshrink.default, (0.5,)),
    (aten.log_sigmoid.default, ()),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("op", "rest"), FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_activation(op: torch._ops.OpOverload, rest: tuple[float, ...], dtype: torch.dtype) -> None:
    check_conversion(op, (FINITE.to(dtype), *rest))
    check_conversion(op, (FINITE.to(dtype).reshape(1, -1), *rest), dynamic={0: {1: (1, FINITE.numel(), 20)}})


@pytest.mark.parametrize(
    ("op", "rest"),
    [
        (aten.relu.default, ()),
        (aten.relu6.default, ()),
        (aten.hardtanh.default, ()),
        (aten.leaky_relu.default, ()),
        (aten.elu.default, ()),
        (aten.gelu.default, ()),
        (aten.silu.default, ()),
        (aten.hardswish.default, ()),
        (aten.hardsigmoid.default, ()),
        (aten.softplus.default, ()),
        (aten.softshrink.default, ()),
        (aten.threshold.default, (0.0, 1.0)),
    ],
)
def test_nan_passes_through(op: torch._ops.OpOverload, rest: tuple[float, ...]) -> None:
    result = check_conversion(op, (torch.tensor([NAN, 1.0]), *rest))
    assert result.outputs[0][0].isnan()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_both_kinds_is_one_layer(approximate: str) -> None:
    check_conversion(aten.gelu.default, (FINITE,), {"approximate": approximate})
    assert len(emitted_layers(aten.gelu.default, (FINITE,), {"approximate": approximate})) == 1


@pytest.mark.parametrize("op", [aten.relu.default, aten.leaky_relu.default, aten.sigmoid.default])
def test_common_activations_are_one_layer(op: torch._ops.OpOverload) -> None:
    assert len(emitted_layers(op, (torch.randn(2, 3),))) == 1


def test_hardtanh_and_relu6_of_integers() -> None:
    check_conversion(aten.hardtanh.default, (torch.tensor([-5, 0, 9]), -2, 2))
    check_conversion(aten.relu6.default, (torch.tensor([-5, 0, 9]),))


@pytest.mark.parametrize("weight", [torch.tensor([0.25]), torch.tensor([0.1, 0.2, 0.3])])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_prelu_with_one_slope_or_one_per_channel(weight: torch.Tensor, constants: tuple[int, ...]) -> None:
    check_conversion(aten.prelu.default, (torch.randn(2, 3, 4), weight), constants=constants)


def test_rrelu_is_a_leaky_relu_in_inference_and_stays_in_pytorch_in_training() -> None:
    check_conversion(aten.rrelu.default, (FINITE, 0.1, 0.3))
    result = check_conversion(aten.rrelu.default, (FINITE, 0.1, 0.3, True), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu_splits_any_axis(dim: int) -> None:
    check_conversion(aten.glu.default, (torch.randn(2, 4, 6), dim))
    check_conversion(aten.glu.default, (torch.randn(3, 4, 6), -1), dynamic={0: {0: (1, 3, 5)}})


OPINFO = [
    "nn.functional." + name
    for name in [
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "gelu",
        "silu",
        "mish",
        "hardswish",
        "hardsigmoid",
        "hardtanh",
        "softplus",
        "softsign",
        "prelu",
        "threshold",
        "glu",
        "rrelu",
        "softshrink",
        "tanhshrink",
        "logsigmoid",
    ]
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPINFO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, limit=3):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
