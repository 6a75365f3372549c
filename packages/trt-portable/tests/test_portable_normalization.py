"""Normalization, attention, quantization and the layers of transformers, against written-out formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import trt_portable as trt
from trt_portable.kernels.operands import attend
from trt_portable.layers.transformer import IKVCacheUpdateLayer

K = trt.CausalMaskKind


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axes", [(3,), (2, 3), (1, 2, 3), (1,), (0, 2)])
@pytest.mark.parametrize("dynamic", [(), [(0, 0), (0, 2)]])
def test_normalization(run_network: Any, dtype: torch.dtype, axes: tuple[int, ...], dynamic: Any) -> None:
    x = torch.randn(2, 3, 4, 5).to(dtype)
    shape = [e if axis in axes and axis != 2 else 1 for axis, e in enumerate(x.shape)]
    scale, bias = torch.rand(shape).to(dtype) + 0.5, torch.randn(shape).to(dtype)
    mask = sum(1 << axis for axis in axes)
    (found,) = run_network(lambda n, *t: n.add_normalization_v2(*t, mask), x, scale, bias, dynamic=dynamic)
    wide = x.double()
    normal = (wide - wide.mean(axes, True)) / (wide.var(axes, keepdim=True, correction=0) + 1e-5).sqrt()
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]  # three roundings
    torch.testing.assert_close(found.double(), normal * scale.double() + bias.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("version", [1, 2])
def test_groups(run_network: Any, version: int) -> None:
    x = torch.randn(2, 6, 4, 4)
    count = 3 if version == 1 else 6
    scale, bias = torch.rand(1, count, 1, 1), torch.randn(1, count, 1, 1)

    def define(network: Any, *tensors: Any) -> Any:
        add = network.add_normalization if version == 1 else network.add_normalization_v2
        layer = add(*tensors, 0b1100)
        layer.num_groups, layer.epsilon = 3, 1e-3
        assert layer.is_v2 is (version == 2)
        return layer

    (found,) = run_network(define, x, scale, bias, dynamic=[(0, 0), (0, 2)])
    repeats = 6 // count
    plain = F.group_norm(x, 3, eps=1e-3)
    wanted = plain * scale.repeat_interleave(repeats, 1) + bias.repeat_interleave(repeats, 1)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("window", [1, 3, 5])
def test_local_response_normalization(run_network: Any, window: int) -> None:
    x = torch.randn(2, 7, 3, 3)
    (found,) = run_network(lambda n, t: n.add_lrn(t, window, 0.3, 0.75, 1.5), x, dynamic=[(0, 0), (0, 3)])
    torch.testing.assert_close(found, F.local_response_norm(x, window, 0.3, 0.75, 1.5))


@pytest.mark.parametrize("mode", list(trt.ScaleMode))
def test_scale(run_network: Any, mode: Any) -> None:
    x = torch.rand(2, 3, 4, 5) + 0.5
    shape = {trt.ScaleMode.UNIFORM: (1, 1, 1), trt.ScaleMode.CHANNEL: (3, 1, 1), trt.ScaleMode.ELEMENTWISE: (3, 4, 5)}
    coefficients = [np.random.rand(*shape[mode]).astype(np.float32) + 0.5 for _ in range(3)]
    shift, scale, power = (c.reshape(-1) for c in coefficients)
    (found,) = run_network(lambda n, t: n.add_scale(t, mode, shift, scale, power), x)
    b, a, p = (torch.from_numpy(c) for c in coefficients)
    torch.testing.assert_close(found, (x * a + b) ** p)


def _attention(q: Any, k: Any, v: Any, bias: Any = None, inside: Any = None) -> torch.Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1).double(), v.repeat_interleave(repeats, 1).double()
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k)
    if bias is not None:
        scores = scores + bias.double()
    if inside is not None:
        scores = scores.masked_fill(~inside, -float("inf"))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def _define_attention(kind: Any = K.NONE) -> Any:
    def define(network: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        attention = network.add_attention_v2(q, k, v, trt.AttentionNormalizationOp.SOFTMAX, kind)
        attention.decomposable = True
        if mask is not None:
            attention.mask = mask
            assert attention.mask is mask
        return attention

    return define


@pytest.mark.sampled
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("variant", ["plain", "additive", "boolean", "upper", "lower"])
def test_attention(run_network: Any, heads: int, dynamic: bool, variant: str) -> None:
    q, k, v = torch.randn(2, 4, 3, 8) / 3, torch.randn(2, heads, 5, 8), torch.randn(2, heads, 5, 8)
    places = [(t, axis) for t in range(3) for axis in (0, 2)] if dynamic else ()
    if variant in ("additive", "boolean"):
        mask = torch.randn(2, 1, 3, 5) if variant == "additive" else torch.rand(2, 1, 3, 5) > 0.3
        mask[..., 0] = 1
        (found,) = run_network(_define_attention(), q, k, v, mask, dynamic=places)
        wanted = _attention(q, k, v, **{"bias" if variant == "additive" else "inside": mask})
    else:
        kind = {"plain": K.NONE, "upper": K.UPPER_LEFT, "lower": K.LOWER_RIGHT}[variant]
        (found,) = run_network(_define_attention(kind), q, k, v, dynamic=places)
        shift = {"plain": 9, "upper": 0, "lower": 2}[variant]
        wanted = _attention(q, k, v, inside=torch.arange(5) <= torch.arange(3)[:, None] + shift)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [trt.int8, trt.fp8])
@pytest.mark.parametrize("heads", [2, 4])
def test_attention_whose_weights_are_quantized(run_network: Any, dtype: Any, heads: int) -> None:
    q, k, v = torch.randn(2, 4, 3, 8) / 3, torch.randn(2, heads, 5, 8), torch.randn(2, heads, 5, 8)
    step = 1 / 127 if dtype is trt.int8 else 1 / 448

    def define(network: Any, q: Any, k: Any, v: Any) -> Any:
        attention = _define_attention(K.UPPER_LEFT)(network, q, k, v)
        array = np.full(1, step, np.float32)
        attention.normalization_quantize_scale = network.add_constant((1,), array).get_output(0)
        attention.normalization_quantize_to_type = dtype
        return attention

    (found,) = run_network(define, q, k, v)
    k, v = (part.repeat_interleave(4 // heads, 1) for part in (k, v))
    scores = (q @ k.mT).masked_fill(torch.arange(5) > torch.arange(3)[:, None], -float("inf"))
    steps = scores.softmax(-1) / step
    codes = steps.round().clamp(-128, 127) if dtype is trt.int8 else steps.clamp(-448, 448).to(torch.float8_e4m3fn)
    torch.testing.assert_close(found, codes.float() * step @ v, rtol=1e-4, atol=2e-2)
    assert not torch.equal(found, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0))


@pytest.mark.parametrize(
    ("has_scale", "dtype", "says"),
    [(True, trt.float32, "set normalization_quantize_to_type"), (False, trt.int8, "need normalization_quantize_scale")],
)
def test_half_a_quantization_of_weights_is_refused(
    builder: Any, logger: Any, has_scale: bool, dtype: Any, says: str
) -> None:
    network = builder.create_network()
    q = network.add_input("q", trt.float32, (1, 2, 3, 4))
    attention = _define_attention()(network, q, q, q)
    if has_scale:
        attention.normalization_quantize_scale = network.add_constant((), np.ones((), np.float32)).get_output(0)
    attention.normalization_quantize_to_type = dtype
    network.mark_output(attention.get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any(says in error for error in logger.errors)


def test_attention_over_packed_sequences(run_network: Any) -> None:
    q, k, v = torch.randn(5, 2, 4), torch.randn(6, 2, 4), torch.randn(6, 2, 4)
    ends, others = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 3, 6], dtype=torch.int32)

    def define(network: Any, q: Any, k: Any, v: Any, ends: Any, others: Any) -> Any:
        attention = network.add_attention_v2(q, k, v, trt.AttentionNormalizationOp.SOFTMAX, K.NONE)
        attention.query_form = attention.key_value_form = trt.AttentionIOForm.PACKED_NHD
        attention.query_lengths, attention.key_value_lengths = ends, others
        return attention

    (found,) = run_network(define, q, k, v, ends, others)
    for (a, b), (c, d) in (((0, 2), (0, 3)), ((2, 5), (3, 6))):
        parts = (q[a:b], k[c:d], v[c:d])
        wanted = _attention(*(part.transpose(0, 1)[None] for part in parts))[0].transpose(0, 1)
        torch.testing.assert_close(found[a:b].double(), wanted, rtol=1e-5, atol=1e-5)


def test_keys_beyond_their_lengths_are_left_out(run_network: Any) -> None:
    q, k, v = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    lengths = torch.tensor([2, 5], dtype=torch.int32)

    def define(network: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
        attention = network.add_attention(q, k, v, trt.AttentionNormalizationOp.SOFTMAX, False)
        attention.key_value_lengths = lengths
        return attention

    (found,) = run_network(define, q, k, v, lengths, dynamic=[(0, 0), (1, 0), (2, 0), (3, 0)])
    torch.testing.assert_close(
        found[0].double(), _attention(q[:1], k[:1, :, :2], v[:1, :, :2])[0], rtol=1e-5, atol=1e-5
    )


def _quantized(dtype: Any, scale: Any, axis: int = -1) -> Any:
    def define(network: Any, tensor: Any, *rest: Any) -> Any:
        array = np.array(scale, np.float32)
        factor = network.add_constant(array.shape, trt.Weights(array)).get_output(0)
        down = network.add_quantize(tensor, factor, dtype)
        down.axis = axis
        up = network.add_dequantize(down.get_output(0), factor, trt.float32)
        up.axis = axis
        assert down.get_output(0).dtype is dtype
        return up

    return define


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [trt.int8, trt.int4, trt.fp8, trt.fp4])
def test_quantization_and_back(run_network: Any, dtype: Any, dynamic: bool) -> None:
    x = torch.randn(6, 8) * 3
    (found,) = run_network(_quantized(dtype, 0.5), x, dynamic=dynamic)
    y = x / 0.5
    if dtype in (trt.int8, trt.int4):
        low, high = (-128, 127) if dtype is trt.int8 else (-8, 7)
        wanted = y.round().clamp(low, high)
    elif dtype is trt.fp8:
        wanted = y.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    else:
        nearest = (y.abs()[..., None] - E2M1).abs().argmin(-1)
        wanted = E2M1[nearest] * y.sign()
    torch.testing.assert_close(found, wanted * 0.5)


def test_ties_of_fp4_go_to_the_even_value(run_network: Any) -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.75, 100.0])
    (found,) = run_network(_quantized(trt.fp4, 1.0), x)
    assert found.tolist() == [0, 1, 1, 2, 2, 4, 4, -1, 6]


def test_scales_per_channel_and_per_block(run_network: Any) -> None:
    x = torch.randn(2, 4)
    (found,) = run_network(_quantized(trt.int8, [0.1, 0.2], 0), x)
    scale = torch.tensor([[0.1], [0.2]])
    torch.testing.assert_close(found, (x / scale).round().clamp(-128, 127) * scale)
    blocks = [[0.1, 0.2], [0.3, 0.4]]
    (found,) = run_network(_quantized(trt.int4, blocks), x)
    scale = torch.tensor(blocks).repeat_interleave(2, 1)
    torch.testing.assert_close(found, (x / scale).round().clamp(-8, 7) * scale)


@pytest.mark.parametrize("version", [1, 2])
def test_dynamic_quantization(run_network: Any, version: int) -> None:
    x = torch.randn(2, 64)

    def define(network: Any, tensor: Any) -> Any:
        if version == 1:
            layer = network.add_dynamic_quantize(tensor, 1, 32, trt.fp8, trt.e8m0)
        else:
            layer = network.add_dynamic_quantize_v2(tensor, (1, 32), trt.fp8, trt.e8m0)
        data, scales = layer.get_output(0), layer.get_output(1)
        assert (data.dtype, scales.dtype, tuple(scales.shape)) == (trt.fp8, trt.e8m0, (2, 2))
        return network.add_dequantize(data, scales, trt.float32)

    (found,) = run_network(define, x)
    largest = x.reshape(2, 2, 32).abs().amax(-1, True).expand(2, 2, 32).reshape(2, 64)
    assert (found - x).abs().le(x.abs() / 16 + largest / 2**10).all()  # three bits of mantissa; 2**-9 at the bottom


def test_int4_constants_are_unpacked_low_nibble_first(run_network: Any) -> None:
    packed = np.array([0x21, 0xF3, 0x87], np.uint8)

    def define(network: Any) -> Any:
        weights = trt.Weights(trt.int4, packed.ctypes.data, 6)
        data = network.add_constant((2, 3), weights).get_output(0)
        one = network.add_constant((), trt.Weights(np.array(1, np.float32))).get_output(0)
        return network.add_dequantize(data, one, trt.float32)

    assert run_network(define)[0].tolist() == [[1, 2, 3], [-1, 7, -8]]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("part", [0, 4])
@pytest.mark.parametrize("by_id", [False, True])
def test_rotary_embedding(run_network: Any, interleaved: bool, part: int, by_id: bool) -> None:
    x, half = torch.randn(2, 3, 4, 8), (part or 8) // 2
    ids = torch.tensor([[3, 1, 0, 2], [4, 4, 1, 0]])
    table = torch.rand(5, half) * 6
    angles = table[ids]

    def define(network: Any, x: Any, c: Any, s: Any, *ids: Any) -> Any:
        layer = network.add_rotary_embedding(x, c, s, interleaved, part)
        if ids:
            layer.set_input(3, ids[0])
        return layer

    cache = table if by_id else angles
    rest = (ids.int(),) if by_id else ()
    (found,) = run_network(define, x, cache.cos(), cache.sin(), *rest, dynamic=[(0, 0), (1, 0)] if not by_id else ())
    wanted = x.clone()
    for pair in range(half):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        angle = angles[:, None, :, pair]
        wanted[..., a] = x[..., a] * angle.cos() - x[..., b] * angle.sin()
        wanted[..., b] = x[..., a] * angle.sin() + x[..., b] * angle.cos()
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("packed", [False, True])
def test_cache_update_drops_what_lies_outside(run_network: Any, packed: bool) -> None:
    cache, update = torch.zeros(2, 1, 6, 2), torch.arange(1.0, 13).reshape(2, 1, 3, 2)
    places = torch.tensor([1, 4], dtype=torch.int32)
    ends = torch.tensor([0, 3, 6], dtype=torch.int32)

    def define(network: Any, cache: Any, update: Any, places: Any, *ends: Any) -> Any:
        layer = network.add_kv_cache_update(cache, update, places, trt.KVCacheMode.LINEAR)
        if ends:
            layer.update_form = trt.AttentionIOForm.PACKED_NHD
            layer.update_lengths = ends[0]
        return layer

    inputs = [cache, update.reshape(6, 1, 2) if packed else update, places]
    (found,) = run_network(define, *inputs, *([ends] if packed else []))
    wanted = cache.clone()
    wanted[0, :, 1:4], wanted[1, :, 4:6] = update[0], update[1, :, :2]
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("limited", [False, True])
def test_mixture_of_experts(run_network: Any, limited: bool) -> None:
    hidden, experts = torch.randn(1, 3, 4), torch.tensor([[[0, 1], [2, 0], [1, 2]]], dtype=torch.int32)
    scores = torch.rand(1, 3, 2)
    gate, up, down = torch.randn(3, 4, 5), torch.randn(3, 4, 5), torch.randn(3, 5, 4)
    limit, alpha, beta = (1.0, 1.7, 0.5) if limited else (float("inf"), 1.0, 0.0)

    def define(network: Any, hidden: Any, experts: Any, scores: Any, *weights: Any) -> Any:
        layer = network.add_moe(hidden, experts, scores)
        layer.set_gated_weights(*weights, trt.MoEActType.SILU)
        layer.set_swiglu_params(limit, alpha, beta)
        return layer

    (found,) = run_network(define, hidden, experts, scores, gate, up, down, dynamic=[(t, 1) for t in range(3)])
    wanted = torch.zeros_like(hidden)
    for token in range(3):
        for slot in range(2):
            expert = experts[0, token, slot]
            a = (hidden[0, token] @ gate[expert]).clamp(max=limit)
            b = (hidden[0, token] @ up[expert]).clamp(-limit, limit)
            inner = a * torch.sigmoid(alpha * a) * (b + beta)
            wanted[0, token] += scores[0, token, slot] * (inner @ down[expert])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_non_maximum_suppression(run_network: Any) -> None:
    boxes = torch.tensor([[[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6], [8, 8, 9, 9]]])
    scores = torch.tensor([[[0.9, 0.2], [0.8, 0.7], [0.95, 0.1], [0.05, 0.6]]])

    def define(network: Any, boxes: Any, scores: Any, most: Any, overlap: Any, floor: Any) -> Any:
        layer = network.add_nms(boxes, scores, most)
        layer.set_input(3, overlap)
        layer.set_input(4, floor)
        return [layer.get_output(0), layer.get_output(1)]

    limits = [torch.tensor(2, dtype=torch.int32), torch.tensor(0.5), torch.tensor(0.15)]
    indices, count = run_network(define, boxes, scores, *limits)
    assert indices.tolist() == [[0, 0, 2], [0, 0, 0], [0, 1, 1], [0, 1, 3]]
    assert count.item() == 4


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_all_axes_with_a_coefficient_per_channel(run_network: Any, order: torch.memory_format) -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=order)
    scale, bias = torch.randn(1, 3, 1, 1), torch.randn(1, 3, 1, 1)
    (found,) = run_network(lambda network, *tensors: network.add_normalization(*tensors, 0b1110), x, scale, bias)
    wide = x.double()
    variance, mean = torch.var_mean(wide, (1, 2, 3), correction=0, keepdim=True)
    wanted = (wide - mean) / torch.sqrt(variance + 1e-5) * scale + bias
    torch.testing.assert_close(found, wanted.float())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_caches_are_updated_in_place_as_they_are_anew(data: st.DataObject) -> None:
    """The two forms of the layer write the same rows, and none of those that lie outside."""
    batch, heads, most, count, width = (data.draw(st.integers(1, 4)) for _ in range(5))
    packed, limited = data.draw(st.booleans()), data.draw(st.booleans())
    starts = torch.tensor(data.draw(st.lists(st.integers(-6, 6), min_size=batch, max_size=batch)))
    lengths = data.draw(st.lists(st.integers(0, count), min_size=batch, max_size=batch))
    cache, update = torch.randn(batch, heads, most, width), torch.randn(batch, heads, count, width)
    wanted = cache.clone()
    for row, start in enumerate(starts.tolist()):
        for step in range(lengths[row] if packed or limited else count):
            if 0 <= start + step < most:
                wanted[row, :, start + step] = update[row, :, step]
    layer = IKVCacheUpdateLayer._create(cache_mode=trt.KVCacheMode.LINEAR)
    operands: list[Any] = [cache, update, starts]
    if packed:
        layer.update_form = trt.AttentionIOForm.PACKED_NHD
        parts = [update[row, :, :length].transpose(0, 1) for row, length in enumerate(lengths)]
        ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        operands[1:] = [torch.cat([*parts, torch.zeros(1, heads, width)]), starts, ends]
    elif limited:
        operands.append(torch.tensor(lengths, dtype=torch.int32))
    (anew,) = layer._compute(operands)
    assert torch.equal(anew, wanted)
    (updated,) = layer._compute_in_place(operands)
    assert updated is cache
    assert torch.equal(cache, wanted)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("start", [-(2**63) + 100, -(2**63) + 1, 2**63 - 1, -(2**63)])
def test_nothing_is_written_at_places_beyond_64_bits(start: int, packed: bool) -> None:
    """Where a length is negative, the nearest row that is not dropped was one that no cache has."""
    cache, update = torch.randn(1, 2, 8, 3), torch.randn(1, 2, 3, 3)
    layer = IKVCacheUpdateLayer._create(cache_mode=trt.KVCacheMode.LINEAR)
    operands = [cache, update, torch.tensor([start]), torch.tensor([-(2**31)], dtype=torch.int32)]
    if packed:
        layer.update_form = trt.AttentionIOForm.PACKED_NHD
        operands[1], operands[3] = update[0].transpose(0, 1), torch.tensor([0, -(2**31)], dtype=torch.int32)
    assert torch.equal(layer._compute(operands)[0], cache)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_attention_of_open_lengths_is_handed_masks_as_fused_kernels_read_them(dtype: torch.dtype) -> None:
    """Rows lie densely, and begin at multiples of 8 elements: PyTorch multiplies apart else, or asks about lengths."""

    def compute(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = q.expand(-1, 3, -1, -1)
        return attend(heads, heads, heads, mask.permute(2, 0, 1)[None], is_causal=False, factor=0.5)

    def operands(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.randn(length, length, 3)
        shown = (numbers > 0) | torch.eye(length).bool()[..., None]
        return torch.randn(2, 1, length, 8), shown if dtype is torch.bool else numbers

    traced = make_fx(compute, tracing_mode="symbolic")(*operands(6))
    (node,) = (node for node in traced.graph.nodes if "attn_mask" in node.kwargs)
    mask = node.kwargs["attn_mask"].meta["val"]
    assert mask.stride(-1) == 1 and mask.stride(-2) % 8 == 0
    size = mask.shape[-1].node.expr
    asked = [guard.expr for guard in mask.fake_mode.shape_env.guards if guard.expr.free_symbols == {size}]
    assert all(guard.xreplace({size: length}) for guard in asked for length in (5, 8, 11))
    for length in (6, 8, 11):
        q, mask = operands(length)
        heads = q.expand(-1, 3, -1, -1)
        expected = F.scaled_dot_product_attention(heads, heads, heads, mask.permute(2, 0, 1)[None], scale=0.5)
        torch.testing.assert_close(traced(q, mask), expected)
