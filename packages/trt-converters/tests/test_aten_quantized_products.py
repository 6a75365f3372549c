"""Q/DQ layers, and products of quantized values, against eager PyTorch."""

from __future__ import annotations

import importlib

import pytest
import torch

from trt_converters.aten import quantization as layers
from trt_converters.testing import check_conversion, emitted_layers
from trt_core import Provider, Reason
from trt_core.quantization import dequantize, fake_quantize_blocks, quantize, quantize_in_blocks

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
FLOAT8 = torch.float8_e4m3fn


def _int8(*shape: int, low: int = -128, high: int = 128) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.int8, FLOAT8])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_values_with_one_scale_get_layers(dtype: torch.dtype, kind: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 40).reshape(4, 10).to(kind)
    args = (x, torch.tensor(0.0625), dtype)
    assert "QUANTIZE" in emitted_layers(quantize, args, constants=(1,))
    check_conversion(quantize, args, constants=(1,))
    back = (quantize(*args), torch.tensor(0.0625), kind)
    assert "DEQUANTIZE" in emitted_layers(dequantize, back, constants=(1,))
    check_conversion(dequantize, back, constants=(1,))


@pytest.mark.parametrize(("shape", "axis"), [((4,), 0), ((8,), 1), ((4, 2), -1), ((2, 8), -1)])
@pytest.mark.parametrize("bits", [8, 4])
def test_weights_stay_quantized(shape: tuple[int, ...], axis: int, bits: int) -> None:
    weight = _int8(4, 8) if bits == 8 else _int8(4, 8, low=-8, high=8)
    args = (weight, torch.rand(shape) + 0.1, torch.float32, bits, axis)
    layers = emitted_layers(dequantize, args, constants=(0, 1))
    assert "DEQUANTIZE" in layers and "ELEMENTWISE" not in layers
    check_conversion(dequantize, args, constants=(0, 1))


@pytest.mark.parametrize(("size", "blocks", "packs"), [(32, 8, False), (64, 4, True), (128, 2, True), (256, 2, True)])
def test_blocks_of_int4_are_those_that_tensorrt_documents(
    size: int, blocks: int, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, scale = _int8(4, 256, low=-8, high=8), torch.rand(4, 256 // size) + 0.1
    monkeypatch.setattr(layers, "current_provider", lambda: Provider.TENSORRT)
    assert layers._packs(weight, scale) is packs
    found = layers._in_blocks_of_int4(weight, scale)
    assert found.shape == (4, blocks)
    torch.testing.assert_close(found.repeat_interleave(256 // blocks, 1), scale.repeat_interleave(size, 1))
    check_conversion(dequantize, (weight, scale, torch.float32, 4, -1), constants=(0, 1))


def test_what_layers_cannot_scale_is_arithmetic() -> None:
    per_row = (torch.randn(4, 8), torch.rand(4) + 0.1, torch.int8, 8, 0)
    assert "QUANTIZE" not in emitted_layers(quantize, per_row, constants=(1,))
    check_conversion(quantize, per_row, constants=(1,))
    check_conversion(quantize, per_row)  # scales that the graph computes
    check_conversion(dequantize, (_int8(4, 8), torch.rand(4) + 0.1, torch.float32, 8, 0))
    check_conversion(quantize, (torch.tensor(3.0), torch.tensor(0.5), torch.int8), constants=(1,))
    blocks = (_int8(4, 8), torch.rand(4, 2), torch.float32)
    refused = check_conversion(dequantize, blocks, expect_supported=False)
    assert refused.verdict.reason is Reason.NOT_CONSTANT


def test_integer_products() -> None:
    left, right = _int8(32, 16) // 2, _int8(16, 24) // 2  # PyTorch's product saturates on processors without VNNI
    assert emitted_layers(aten._int_mm.default, (left, right), constants=(1,)).count("DEQUANTIZE") == 2
    check_conversion(aten._int_mm.default, (left, right), constants=(1,))


def _multiplies_float8(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Whether this release of PyTorch has products of float8 with such scales on the CPU."""
    scales = [torch.ones(shape) for shape in shapes]
    try:
        torch._scaled_mm(_float8(16, 32), _float8(48, 32).t(), *scales, out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


def _float8(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(FLOAT8)


@pytest.mark.parametrize("kind", ["tensors", "single", "rows"])
@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("constants", [(1, 3), ()], ids=["weight", "values"])
def test_products_of_float8(kind: str, result: torch.dtype, constants: tuple[int, ...]) -> None:
    left, right = _float8(16, 32), _float8(48, 32).t()
    shapes = {"tensors": ((), ()), "single": ((1,), (1,)), "rows": ((16, 1), (1, 48))}[kind]
    if not _multiplies_float8(shapes):
        pytest.skip("this release of PyTorch has no such product on the CPU")
    scales = tuple(torch.rand(shape) + 0.5 for shape in shapes)
    tolerance = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}[result]
    for bias in (None, torch.randn(48).to(result)):
        args = (left, right, *scales, bias, None, result)
        layers = emitted_layers(aten._scaled_mm.default, args, constants=constants)
        assert layers.count("DEQUANTIZE") == 2
        check_conversion(aten._scaled_mm.default, args, constants=constants, rtol=tolerance, atol=tolerance * 8)


def test_products_with_packed_weights() -> None:
    args = (torch.randn(4, 32), _int8(16, 32), torch.rand(16))
    check_conversion(aten._weight_int8pack_mm.default, args, constants=(1, 2))
    refused = check_conversion(aten._weight_int8pack_mm.default, args, expect_supported=False)
    assert refused.verdict.reason is Reason.NOT_CONSTANT


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_values_are_not_divided_by_what_is_no_scale(scale: float) -> None:
    args = (torch.randn(4, 8), torch.tensor(scale), torch.int8)
    refused = check_conversion(quantize, args, constants=(1,), expect_supported=False)
    assert refused.verdict.reason is Reason.UNSUPPORTED_ARGUMENT
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    operator = torch.ops.quantized_decomposed.quantize_per_tensor.default
    refused = check_conversion(operator, (args[0], scale, 0, -128, 127, torch.int8), expect_supported=False)
    assert refused.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


def test_channels_of_scale_zero_become_zeros() -> None:
    scales = torch.tensor([0.5, 0.0, 1.0, 2.0])
    args = (_int8(4, 8), scales, torch.float32, 8, 0)
    assert "DEQUANTIZE" not in emitted_layers(dequantize, args, constants=(0, 1))
    check_conversion(dequantize, args, constants=(0, 1))


def test_rows_of_odd_length_are_kept_in_whole_bytes() -> None:
    check_conversion(dequantize, (_int8(3, 5, low=-8, high=8), torch.rand(3), torch.float32, 4, 0), constants=(0, 1))


@pytest.mark.parametrize(("bits", "block", "kinds"), [(4, 16, ["FP4", "FP8"]), (8, 32, ["FP8", "E8M0"])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_in_blocks_keep_scales_of_eight_bits(
    bits: int, block: int, kinds: list[str], dtype: torch.dtype
) -> None:
    outer = torch.tensor(0.01) if bits == 4 else None
    values, scale = quantize_in_blocks(torch.randn(4, 2 * block), outer, block, bits)
    args = (values, scale, dtype, bits, -1, outer)
    constants = (0, 1, 2) if bits == 4 else (0, 1)
    assert emitted_layers(dequantize, args, constants=constants).count("DEQUANTIZE") == (2 if bits == 4 else 1)
    check_conversion(dequantize, args, constants=constants)
    turned = (values.t().contiguous(), scale.t().contiguous(), *args[2:])
    check_conversion(dequantize, turned, constants=constants)


@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 64), (2, 1, 2, 64), (64,)])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (8, 32)])
def test_activations_in_blocks_get_layers(shape: tuple[int, ...], bits: int, block: int) -> None:
    args = (torch.randn(shape), torch.tensor(0.002) if bits == 4 else None, block, bits)
    assert "DYNAMIC_QUANTIZE" in emitted_layers(fake_quantize_blocks, args, constants=(1,) if bits == 4 else ())
    dynamic = {0: {0: (1, 2, 4)}} if len(shape) > 1 else None
    check_conversion(fake_quantize_blocks, args, constants=(1,) if bits == 4 else (), dynamic=dynamic)


def test_blocks_that_no_layer_has_are_refused() -> None:
    x, outer = torch.randn(4, 96), torch.tensor(0.002)
    for args, constants, reason in (
        ((x, outer, 32, 4), (1,), Reason.NO_LOW_PRECISION),
        ((x, None, 16, 8), (), Reason.NO_LOW_PRECISION),
        ((x, torch.tensor(0.0), 16, 4), (1,), Reason.UNSUPPORTED_ARGUMENT),
    ):
        refused = check_conversion(fake_quantize_blocks, args, constants=constants, expect_supported=False)
        assert refused.verdict.reason is reason
    refused = check_conversion(quantize, (x, outer, FLOAT8, 4), constants=(1,), expect_supported=False)
    assert refused.verdict.reason is Reason.NO_LOW_PRECISION


def test_blocks_take_a_range_that_is_measured_at_each_call() -> None:
    check_conversion(fake_quantize_blocks, (torch.randn(4, 96), torch.tensor(0.002), 16, 4))


def test_four_bits_without_blocks_are_kept_in_eight() -> None:
    values = quantize(torch.randn(4, 32), torch.tensor(0.3), FLOAT8, 4)
    for scale, axis in ((torch.tensor(0.3), -1), (torch.rand(4) + 0.1, 0), (torch.rand(4, 4) + 0.1, -1)):
        check_conversion(dequantize, (values, scale, torch.float32, 4, axis), constants=(0, 1))
