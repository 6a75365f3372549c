"""The operators of explicit quantization, and those of ModelOpt where it is not installed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from trt_core.quantization import (
    dequantize,
    e2m1_codes,
    fake_quantize,
    fake_quantize_blocks,
    is_dequantization,
    limits,
    quantize,
    quantize_in_blocks,
    spread,
)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20), st.floats(2.0**-10, 16.0, width=32))
@settings(max_examples=30)
def test_what_lies_within_the_range_is_off_by_half_a_step(values: list[float], step: float) -> None:
    x, scale = torch.tensor(values), torch.tensor(step)
    inside = x.clamp(-128 * step, 127 * step)
    kept = dequantize(quantize(inside, scale, torch.int8), scale, torch.float32)
    assert bool(((kept - inside).abs() <= step / 2 * (1 + 1e-5)).all())


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.int8, 8), (torch.int8, 4), (torch.float8_e4m3fn, 8), (torch.float8_e4m3fn, 4)]
)
def test_values_beyond_the_range_stop_at_its_ends(dtype: torch.dtype, bits: int) -> None:
    low, high = limits(dtype, bits)
    found = quantize(torch.tensor([-1e9, 1e9]), torch.tensor(0.5), dtype, bits)
    assert found.float().tolist() == [low, high]


@pytest.mark.parametrize(
    ("shape", "axis"), [((), -1), ((1,), -1), ((4,), 0), ((6,), 1), ((4, 2), -1), ((2, 3), -1), ((1, 6), -1)]
)
def test_scales_spread_over_tensors_channels_and_blocks(shape: tuple[int, ...], axis: int) -> None:
    scale, x = torch.rand(shape) + 0.5, torch.randint(-100, 100, (4, 6)).to(torch.int8)
    wide = spread(scale, x, axis).expand(4, 6)
    for row in range(4):
        for column in range(6):
            place = {0: (), 1: (row if axis == 0 else column if axis == 1 else 0,)}.get(len(shape))
            if place is None:
                place = (row * shape[0] // 4, column * shape[1] // 6)
            assert wide[row, column] == scale[place]
    assert torch.equal(dequantize(x, scale, torch.float32, 8, axis), x.float() * wide)


@pytest.mark.parametrize(("shape", "axis"), [((3,), 0), ((4,), -1), ((4, 4), -1), ((4, 6, 1), -1), ((4,), 2)])
def test_scales_that_fit_nothing_are_refused(shape: tuple[int, ...], axis: int) -> None:
    with pytest.raises(ValueError, match=r"scales|blocks"):
        spread(torch.ones(shape), torch.empty(4, 6), axis)


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="no type of quantized values"):
        quantize(torch.ones(2), torch.tensor(1.0), torch.uint8)
    with pytest.raises(ValueError, match="no type of quantized values"):
        quantize(torch.ones(2), torch.tensor(1.0), torch.float8_e4m3fn, 3)


def test_fake_tensors_tell_type_and_shape() -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.empty(3, 4))
        found = quantize(x, mode.from_tensor(torch.tensor(1.0)), torch.int8)
        assert (found.dtype, tuple(found.shape)) == (torch.int8, (3, 4))


def test_what_undoes_quantization_is_known_by_name() -> None:
    assert is_dequantization(dequantize) and is_dequantization(torch.ops.tensorrt.quantize_op.default)
    assert not is_dequantization(quantize) and not is_dequantization(torch.ops.aten.mul.Tensor)


@pytest.mark.parametrize("exponent_bits", [0, 4])
def test_modelopt_operators_quantize_by_the_largest_value(exponent_bits: int) -> None:
    x, amax = torch.linspace(-3, 3, 40).reshape(4, 10), torch.tensor([[1.0], [2.0], [0.0], [3.0]])
    found = torch.ops.tensorrt.quantize_op(x, amax, 8, exponent_bits, False, False)
    dtype = torch.float8_e4m3fn if exponent_bits else torch.int8
    scale = amax.reshape(-1) / limits(dtype)[1]
    expected = fake_quantize(x, torch.where(scale > 0, scale, 1.0), 0, dtype)
    assert torch.equal(found, expected)
    unsigned = torch.ops.tensorrt.quantize_op(x, torch.tensor(2.0), 8, 0, True, False)
    assert unsigned.min() == 0 and unsigned.max() == 2.0
    narrow = torch.ops.tensorrt.quantize_op(x, torch.tensor(1.0), 8, 0, False, True)
    assert narrow.min() == -1.0
    assert torch.ops.tensorrt.quantize_op(x, torch.tensor(1.0), 8, 0, False, False).min() < -1.0


def test_blocks_of_four_bits_have_scales_of_eight() -> None:
    x = torch.randn(2, 32)
    found = torch.ops.tensorrt.dynamic_block_quantize_op(x, 16, x.abs().amax(), 4, 2, 8, 4)
    assert (found - x).abs().max() <= 0.2 * x.abs().max()
    for block in found.reshape(-1, 16):
        steps = block / block.abs().max()
        allowed = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6
        assert bool(((steps.abs()[:, None] - allowed).abs().min(1).values < 1e-5).all())
    assert not torch.ops.tensorrt.dynamic_block_quantize_op(torch.zeros(1, 16), 16, None, 4, 2, 8, 4).any()


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20))
@settings(max_examples=30)
def test_four_bits_of_floats_are_the_nearest_of_sixteen_values(values: list[float]) -> None:
    x = torch.tensor(values)
    found = quantize(x, torch.tensor(1.0), torch.float8_e4m3fn, 4)
    distance = (x.clamp(-6, 6).abs()[:, None] - E2M1).abs().min(1).values
    assert torch.equal((found.float() - x.clamp(-6, 6)).abs(), distance)
    codes = e2m1_codes(found).long()
    assert torch.equal(torch.cat((E2M1, -E2M1))[codes], found.float())


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (8, 32)])
def test_scales_of_blocks_have_eight_bits(bits: int, block: int) -> None:
    x = torch.randn(3, 2 * block) * torch.tensor([1.0, 100.0, 0.0])[:, None]
    outer = torch.tensor(0.2) if bits == 4 else None
    values, scale = quantize_in_blocks(x, outer, block, bits)
    assert values.dtype is torch.float8_e4m3fn and tuple(scale.shape) == (3, 2)
    assert scale.dtype is (torch.float8_e4m3fn if bits == 4 else torch.float8_e8m0fnu)
    assert bool((scale.float() > 0).all()) and not values[2].float().any()
    found = fake_quantize_blocks(x, outer, block, bits)
    assert torch.equal(found, dequantize(values, scale, torch.float32, bits, -1, outer))
    largest = x.unflatten(-1, (-1, block)).abs().amax(-1, keepdim=True)
    step = 1 / 6 if bits == 4 else 1 / 16  # half the widest step, beside the largest value that there is
    assert bool(((found - x).abs().unflatten(-1, (-1, block)) <= largest * (step * 1.2)).all())


@pytest.mark.parametrize("scale_bits", [8, 9])
def test_blocks_of_eight_bits_have_powers_of_two_for_scales(scale_bits: int) -> None:
    x = torch.randn(2, 64).bfloat16()
    found = torch.ops.tensorrt.dynamic_block_quantize_op(x, 32, None, 8, 4, scale_bits, 8)
    assert torch.equal(found, fake_quantize_blocks(x, None, 32, 8)) and found.dtype is torch.bfloat16
    with pytest.raises(NotImplementedError, match="blocks of other types"):
        torch.ops.tensorrt.dynamic_block_quantize_op(x, 32, None, 8, 5, scale_bits, 8)
