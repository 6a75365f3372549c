"""Products of few bits: found in networks with Q/DQ, computed as Q/DQ says, small in plans and in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from low_precision_networks import (
    COLUMNS,
    DEPTH,
    constant,
    dequantized,
    layers_of,
    linear,
    make_codes,
    product_builder,
    rounded,
    through,
    weights_of,
)
from torch.utils._python_dispatch import TorchDispatchMode

import trt_portable as trt
from trt_portable.dtypes import CARRIERS, FP4_VALUES, pack, unpack
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS

FLOAT_OF = {trt.float32: torch.float32, trt.bfloat16: torch.bfloat16}
LOOSE = {trt.float32: 1e-4, trt.bfloat16: 3e-2}


@pytest.fixture
def build(builder: Any, load: Any) -> Callable[..., Any]:
    return product_builder(builder, load)


# what is recognized ------------------------------------------------------------------------------------

CASES = {
    "code_type": st.sampled_from([trt.int8, trt.fp8]),
    "dtype": st.sampled_from([trt.float32, trt.bfloat16]),
    "is_turned": st.booleans(),
    "moves": st.sampled_from(["none", "transpose", "rank"]),
    "scales": st.sampled_from(["one", "columns"]),
    "left_moves": st.booleans(),
    "bias": st.booleans(),
    "relu": st.booleans(),
    "requantize": st.booleans(),
    "refit": st.booleans(),
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(CASES), st.integers(0, 2**16))
def test_a_product_of_codes_is_what_q_and_dq_say(build: Any, execute: Any, case: dict[str, Any], seed: int) -> None:
    torch.manual_seed(seed)
    code_type, dtype, kind = case["code_type"], case["dtype"], FLOAT_OF[case["dtype"]]
    matrix = make_codes(code_type, COLUMNS, DEPTH)
    scale = torch.rand(() if case["scales"] == "one" else (COLUMNS,)) / 50 + 0.001
    bias = torch.randn(1, 1, COLUMNS).to(kind)
    rank_changes = case["moves"] == "rank"
    is_turned = case["is_turned"]  # whether the product transposes its right operand
    lies_turned = is_turned == (case["moves"] != "transpose")  # whether the constant is (N, K)

    def define(network: Any, x: Any) -> Any:
        codes = matrix if lies_turned else matrix.t()
        codes = codes if rank_changes else codes[None]
        axis = -1 if scale.dim() == 0 else codes.dim() - (2 if lies_turned else 1)
        right = dequantized(network, constant(network, codes, code_type), scale, axis, dtype)
        if rank_changes:
            right = network.add_unsqueeze(
                right, network.add_constant((1,), np.zeros(1, np.int64)).get_output(0)
            ).get_output(0)
        elif case["moves"] == "transpose":
            layer = network.add_shuffle(right)
            layer.second_transpose = (0, 2, 1)
            right = layer.get_output(0)
        left = through(network, x, 0.05, code_type, dtype)
        if case["left_moves"]:
            layer = network.add_shuffle(left)
            layer.second_transpose = (1, 0, 2)
            left = layer.get_output(0)
        operation = trt.MatrixOperation.TRANSPOSE if is_turned else trt.MatrixOperation.NONE
        y = network.add_matrix_multiply(left, trt.MatrixOperation.NONE, right, operation).get_output(0)
        if case["bias"]:
            y = network.add_elementwise(y, constant(network, bias, dtype), trt.ElementWiseOperation.SUM).get_output(0)
        if case["relu"]:
            y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
        return through(network, y, 0.1, code_type, dtype) if case["requantize"] else y

    flags = (trt.BuilderFlag.REFIT,) if case["refit"] else ()
    engine = build(define, dtype=dtype, lead=(2,), flags=flags)
    kinds = [layer["LayerType"] for layer in layers_of(engine)]
    assert kinds.count("LOW_PRECISION_PRODUCT") == 1
    assert not {"LINEAR", "MATRIX_MULTIPLY", "ELEMENTWISE", "ACTIVATION"} & set(kinds)
    x = torch.randn(2, 3, DEPTH).to(kind)
    left = rounded(x, 0.05, code_type)
    left = left.transpose(0, 1) if case["left_moves"] else left
    y = left @ (matrix.float() * scale.reshape(-1, 1)).t()
    y = y + bias.float() if case["bias"] else y
    y = torch.relu(y) if case["relu"] else y
    found = execute(engine.create_execution_context(), {"x": x})["y"].float()
    if case["requantize"]:
        y = rounded(y, 0.1, code_type)
    size = y.norm().item() / y.numel() ** 0.5
    bound = LOOSE[dtype] * size * 4 + (0.101 + 0.15 * y.abs() if case["requantize"] else 0)  # a step of the codes
    assert ((found - y).abs() <= bound).all()
    assert (found - y).norm() <= (0.04 if case["requantize"] else LOOSE[dtype]) * y.norm() + 1e-6


@pytest.mark.parametrize(
    ("code_type", "group"), [(trt.int8, 0), (trt.int4, 16), (trt.int4, 32), (trt.fp8, 0), (trt.fp4, 16)]
)
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("dtype", [trt.float32, trt.bfloat16])
def test_a_matrix_alone_is_quantized(
    build: Any, execute: Any, code_type: Any, group: int, is_turned: bool, dtype: Any
) -> None:
    codes = make_codes(code_type, COLUMNS, DEPTH)
    scale = torch.rand(COLUMNS, DEPTH // group if group else 1) / 50 + 0.001

    def define(network: Any, x: Any) -> Any:
        stored, scales = (codes, scale) if is_turned else (codes.t(), scale.t())
        matrix = dequantized(network, constant(network, stored, code_type), scales.contiguous(), -1, dtype)
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        return network.add_matrix_multiply(x, none, matrix, turned if is_turned else none).get_output(0)

    engine = build(define, dtype=dtype)
    (product,) = [layer for layer in layers_of(engine) if layer["LayerType"] == "LOW_PRECISION_PRODUCT"]
    assert product["TacticName"] in PRODUCT_KERNELS
    x = torch.randn(3, DEPTH).to(FLOAT_OF[dtype])
    wide = scale.repeat_interleave(group, 1) if group else scale
    wanted = x.float() @ (codes.float() * wide).t()
    found = execute(engine.create_execution_context(), {"x": x})["y"].float()
    torch.testing.assert_close(found, wanted, rtol=LOOSE[dtype], atol=LOOSE[dtype] * wanted.abs().max().item())


def test_scales_of_rows_that_the_run_computes(build: Any, execute: Any) -> None:
    codes, scale = make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS) / 50

    def define(network: Any, x: Any) -> Any:
        layer = network.add_dynamic_quantize_v2(x, (1, -1), trt.int8, trt.float32)
        left = network.add_dequantize(layer.get_output(0), layer.get_output(1), trt.float32)
        left.block_shape = (1, -1)
        matrix = dequantized(network, constant(network, codes, trt.int8), scale, 0)
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        return network.add_matrix_multiply(left.get_output(0), none, matrix, turned).get_output(0)

    engine = build(define)
    assert not {"LINEAR", "MATRIX_MULTIPLY"} & {layer["LayerType"] for layer in layers_of(engine)}
    x = torch.randn(3, DEPTH) * torch.tensor([[0.1], [1.0], [10.0]])
    steps = x.abs().amax(1, keepdim=True) / 127
    wanted = ((x / steps).round() * steps) @ (codes.float() * scale[:, None]).t()
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def test_what_somebody_reads_does_not_join(build: Any, builder: Any, load: Any) -> None:
    codes, scale = make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS) / 50

    def define(network: Any, x: Any) -> Any:
        y = linear(codes, scale)(network, x)
        network.mark_output(y)
        return network.add_activation(y, trt.ActivationType.RELU).get_output(0)

    kinds = [layer["LayerType"] for layer in layers_of(build(define))]
    assert kinds.count("LOW_PRECISION_PRODUCT") == kinds.count("ACTIVATION") == 1


# weights stay small ------------------------------------------------------------------------------------


def test_weights_of_few_bits_stay_so(build: Any, execute: Any) -> None:
    engine = build(linear(make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS)))
    sizes = {slot.dtype: slot.count for slot in engine._state.info.weight_slots if slot.count > COLUMNS}
    assert sizes == {trt.int8: COLUMNS * DEPTH}
    held = [value for value in engine._state.program.constants if value is not None and value.numel() > COLUMNS]
    assert sum(value.numel() * value.dtype.itemsize for value in held) <= COLUMNS * DEPTH


def test_float_weights_between_q_and_dq_become_codes(build: Any, execute: Any) -> None:
    matrix, scale = torch.randn(COLUMNS, DEPTH), torch.full((COLUMNS, 2), 0.3)

    def define(network: Any, x: Any) -> Any:
        factor = constant(network, scale)
        codes = network.add_quantize(constant(network, matrix), factor, trt.int4).get_output(0)
        right = network.add_dequantize(codes, factor, trt.float32).get_output(0)
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        return network.add_matrix_multiply(x, none, right, turned).get_output(0)

    engine = build(define)
    slots = {slot.dtype: slot.count for slot in engine._state.info.weight_slots if slot.count > 2 * COLUMNS}
    assert slots == {trt.int4: COLUMNS * DEPTH}
    x = torch.randn(2, DEPTH)
    wanted = x @ ((matrix / 0.3).round().clamp(-8, 7) * 0.3).t()
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_blocks_whose_scales_have_few_bits(build: Any, execute: Any, kind: str) -> None:
    code_type, group = (trt.fp4, 16) if kind == "nvfp4" else (trt.fp8, 32)
    codes, blocks = make_codes(code_type, COLUMNS, DEPTH), (COLUMNS, DEPTH // group)
    powers = torch.exp2(torch.randint(-3, 3, blocks).float())

    def define(network: Any, x: Any) -> Any:
        if kind == "nvfp4":
            small = constant(network, powers.to(torch.float8_e4m3fn), trt.fp8)
            scale = dequantized(network, small, torch.tensor(0.5))
        else:
            scale = constant(network, (powers / 2).to(torch.float8_e8m0fnu), trt.e8m0)
        matrix = network.add_dequantize(constant(network, codes, code_type), scale, trt.float32).get_output(0)
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        return network.add_matrix_multiply(x, none, matrix, turned).get_output(0)

    engine = build(define)
    assert not {"LINEAR", "MATRIX_MULTIPLY"} & {layer["LayerType"] for layer in layers_of(engine)}
    kept = {slot.dtype for slot in engine._state.info.weight_slots if slot.count in (codes.numel(), powers.numel())}
    assert kept == {code_type, trt.fp8 if kind == "nvfp4" else trt.e8m0}
    x = torch.randn(3, DEPTH)
    wanted = x @ (codes.float() * (powers / 2).repeat_interleave(group, 1)).t()
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def _decoded(network: Any, codes: torch.Tensor, scale: torch.Tensor, kind: str, shift: torch.Tensor) -> Any:
    """codes * scale - shift, or levels[codes] * scale, as graphs write them; both for each row, or blocks of it."""

    def moved(value: Any, *shape: int) -> Any:
        layer = network.add_shuffle(value)
        layer.reshape_dims = trt.Dims(shape)
        return layer.get_output(0)

    rows, depth = codes.shape
    parts, blocks = (rows, scale.shape[1], depth // scale.shape[1]), (rows, scale.shape[1], 1)
    operations, stored = trt.ElementWiseOperation, constant(network, codes, trt.int4)
    if kind == "zeros":
        wide = moved(dequantized(network, stored, scale), *parts)
        shifted = network.add_elementwise(wide, constant(network, shift.reshape(blocks)), operations.SUB)
        return moved(shifted.get_output(0), rows, depth)
    places = dequantized(network, stored, torch.tensor(1.0))
    half = constant(network, torch.full((1, 1), 8.0))
    places = network.add_elementwise(places, half, operations.SUM).get_output(0)
    places = network.add_cast(places, trt.int64).get_output(0)
    looked_up = network.add_gather(constant(network, LEVELS), places, 0).get_output(0)
    scaled = network.add_elementwise(
        moved(looked_up, *parts), constant(network, scale.reshape(blocks)), operations.PROD
    )
    return moved(scaled.get_output(0), rows, depth)


LEVELS = torch.linspace(-1, 1, 16) ** 3


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("kind", ["zeros", "levels"])
def test_zero_points_and_tables_are_parts_of_products(
    build: Any, execute: Any, kind: str, is_turned: bool, groups: int, count: int
) -> None:
    rows, depth = (DEPTH, COLUMNS) if is_turned else (COLUMNS, DEPTH)
    codes = [make_codes(trt.int4, rows, depth) for _ in range(count)]
    scale, shift = torch.rand(count, rows, groups) + 0.1, torch.randn(count, rows, groups)
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE

    def define(network: Any, x: Any) -> Any:
        results = []
        for index in range(count):
            right = _decoded(network, codes[index], scale[index], kind, shift[index])
            layer = network.add_matrix_multiply(x, none, right, none if is_turned else turned)
            results.append(layer.get_output(0))
        return network.add_concatenation(results).get_output(0)

    engine = build(define)
    kinds = [layer["LayerType"] for layer in layers_of(engine)]
    assert kinds.count("LOW_PRECISION_PRODUCT") == kinds.count("PREPARED_MATRIX") == 1  # of the same tensor: merged
    assert not {"ELEMENTWISE", "GATHER", "DEQUANTIZE"} & set(kinds)
    x, wanted = torch.randn(3, DEPTH), []
    for index in range(count):
        wide = [each[index].repeat_interleave(depth // groups, 1) for each in (scale, shift)]
        values = codes[index].float() if kind == "zeros" else LEVELS[codes[index].int() + 8]
        matrix = values * wide[0] - (wide[1] if kind == "zeros" else 0)
        wanted.append(x @ (matrix if is_turned else matrix.t()))
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-4, atol=1e-3)


def test_a_dequantization_of_small_constants_is_not_folded(build: Any) -> None:
    def define(network: Any, x: Any) -> Any:
        row = dequantized(network, constant(network, make_codes(trt.int8, 1, DEPTH), trt.int8), torch.tensor(0.1))
        return network.add_elementwise(x, row, trt.ElementWiseOperation.SUM).get_output(0)

    engine = build(define)
    assert "DEQUANTIZE" in [layer["LayerType"] for layer in layers_of(engine)]
    assert trt.int8 in {slot.dtype for slot in engine._state.info.weight_slots}


class NoTensorsOfTheHost(TorchDispatchMode):
    """Refuses what makes tensors of Python data: on a GPU they would be copies that no CUDA graph can hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (torch.ops.aten.lift_fresh.default, torch.ops.aten._local_scalar_dense.default), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [trt.int4, trt.fp4])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_four_bits_are_packed_and_unpacked(dtype: Any, count: int) -> None:
    elements = make_codes(dtype, count).to(CARRIERS[dtype])
    packed = pack(elements, dtype)
    assert packed.numel() == (count + 1) // 2 and packed.dtype is torch.uint8
    with NoTensorsOfTheHost():
        found = unpack(packed, dtype, count)
    assert found.dtype is elements.dtype and torch.equal(found, elements)


def test_all_codes_of_four_bits_are_unpacked() -> None:
    every = torch.arange(16, dtype=torch.uint8)
    packed = every[::2] | every[1::2] << 4
    assert unpack(packed, trt.int4, 16).tolist() == [*range(8), *range(-8, 0)]
    found = unpack(packed, trt.fp4, 16)
    assert found.tolist() == list(FP4_VALUES) and found.signbit().tolist() == [False] * 8 + [True] * 8


@pytest.mark.parametrize("dtype", [trt.int8, trt.fp8, trt.int4, trt.fp4])
@pytest.mark.parametrize("kind", ["DEQUANTIZE", "LOW_PRECISION_PRODUCT"])
def test_a_run_makes_no_tensors_of_python_data(build: Any, execute: Any, dtype: Any, kind: str) -> None:
    codes, scale = make_codes(dtype, COLUMNS, DEPTH), torch.rand(COLUMNS, 1)

    def define(network: Any, x: Any) -> Any:
        weight = dequantized(network, constant(network, codes, dtype), scale)
        if kind == "DEQUANTIZE":
            weight = network.add_unary(weight, trt.UnaryOperation.ABS).get_output(0)
        turned = trt.MatrixOperation.TRANSPOSE
        return network.add_matrix_multiply(x, trt.MatrixOperation.NONE, weight, turned).get_output(0)

    engine = build(define)
    assert kind in [layer["LayerType"] for layer in layers_of(engine)]
    context, x = engine.create_execution_context(), torch.randn(3, DEPTH)
    with NoTensorsOfTheHost():
        found = execute(context, {"x": x})["y"]
    matrix = codes.float() * scale
    wanted = x @ (matrix.abs() if kind == "DEQUANTIZE" else matrix).t()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("is_stripped", [False, True])
def test_a_refit_replaces_codes_and_scales(build: Any, execute: Any, logger: Any, is_stripped: bool) -> None:
    codes, scale = make_codes(trt.int8, COLUMNS, DEPTH), torch.rand(COLUMNS) / 50
    flags = [trt.BuilderFlag.REFIT, *([trt.BuilderFlag.STRIP_PLAN] if is_stripped else [])]
    engine = build(linear(codes, scale), flags=flags)
    context = engine.create_execution_context()
    x = torch.randn(3, DEPTH)
    for fresh_codes, fresh_scale in ((codes, scale), (-codes, scale), (-codes, scale * 2)):
        refitter = trt.Refitter(engine, logger)
        for slot in engine._state.info.weight_slots:
            values = {(trt.int8, COLUMNS * DEPTH): fresh_codes, (trt.float32, COLUMNS): fresh_scale}.get(
                (slot.dtype, slot.count), torch.tensor(0.05)
            )
            weights = weights_of(values, slot.dtype)
            assert refitter.set_named_weights(f"{slot.layer_name} {slot.role}", weights)
        assert refitter.refit_cuda_engine(), logger.errors
        wanted = rounded(x, 0.05, trt.int8) @ (fresh_codes.float() * fresh_scale[:, None]).t()
        torch.testing.assert_close(execute(context, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-3)
