"""Copies, casts, created tensors, random numbers and quantization against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from trt_converters import ConverterSupport, build_block
from trt_converters.testing import (
    ExtentOf,
    check_conversion,
    emitted_layers,
    record_call,
    run_engine,
    samples_from_opinfo,
)
from trt_core import CompilationSettings, Reason
from trt_core.sizes.ranges import ShapeRanges

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
ALL = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8)
SETTINGS = CompilationSettings(optimization_level=0)


@pytest.mark.sampled
@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("target", ALL)
def test_cast_between_all_types(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [3, 100, 7]]).to(source)
    check_conversion(aten.to.dtype, (x, target))
    check_conversion(aten._to_copy.default, (x,), {"dtype": target}, dynamic={0: {0: (1, 2, 4)}})


def test_cast_to_float8_goes_through_quantization() -> None:
    x = torch.tensor([0.3, -1.7, 240.0, 448.0])
    assert emitted_layers(aten.to.dtype, (x, torch.float8_e4m3fn)) == ("CONSTANT", "QUANTIZE")
    check_conversion(aten.to.dtype, (x.to(torch.float8_e4m3fn), torch.float32))
    check_conversion(aten.to.dtype, (torch.tensor(1.5).to(torch.float8_e4m3fn), torch.float16))


def test_integers_wrap_around_in_bytes() -> None:
    x = torch.tensor([300, -1, 255, -300, 128])
    check_conversion(aten.to.dtype, (x, torch.uint8))
    check_conversion(aten.to.dtype, (x, torch.int8))
    check_conversion(aten.to.dtype, (torch.arange(256, dtype=torch.uint8), torch.int8))


def test_float64_is_refused() -> None:
    result = check_conversion(aten.to.dtype, (torch.ones(2), torch.float64), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_DTYPE


def test_copies_are_no_layers() -> None:
    x = torch.randn(2, 3)
    for op, args in ((aten.clone.default, (x,)), (aten.detach.default, (x,)), (aten.dropout.default, (x, 0.5, False))):
        check_conversion(op, args)
        assert emitted_layers(op, args) == ("IDENTITY",)  # which makes an output of an input
    check_conversion(aten.copy.default, (torch.zeros(4, 3), torch.arange(3)), dynamic={0: {0: (1, 4, 6)}})
    check_conversion(aten.native_dropout.default, (x, 0.5, False))


def test_dropout_in_training_stays_in_pytorch() -> None:
    result = check_conversion(aten.dropout.default, (torch.ones(2), 0.5, True), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_fills(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3)
    dynamic = {0: {0: (1, 2, 5)}}
    for op, args in (
        (aten.full_like.default, (x, 1)),
        (aten.zeros_like.default, (x,)),
        (aten.ones_like.default, (x,)),
        (aten.new_full.default, (x, [ExtentOf(0, 0), 4], 1)),
        (aten.new_zeros.default, (x, [3, ExtentOf(0, 0)])),
        (aten.new_ones.default, (x, [])),
    ):
        check_conversion(op, args, {"dtype": dtype})
        check_conversion(op, args, {"dtype": dtype}, dynamic=dynamic)


@pytest.mark.parametrize("diagonal", [-1, 0, 2])
def test_triangles(diagonal: int) -> None:
    for op in (aten.tril.default, aten.triu.default):
        for x in (torch.randn(2, 3, 4), torch.ones(3, 3, dtype=torch.bool), torch.arange(12).reshape(3, 4)):
            check_conversion(op, (x, diagonal))
        check_conversion(op, (torch.randn(3, 4), diagonal), dynamic={0: {0: (1, 3, 6), 1: (2, 4, 7)}})


class _Ranges(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            x + torch.arange(n)[:, None],
            x + torch.arange(1, 2 * n + 1, 2)[:, None],
            x + torch.arange(n, dtype=torch.float32)[:, None],
            x * torch.full((n, 1), 2.5),
            torch.eye(n, 3) + x,
            x + torch.arange(5, 8),
            x + torch.linspace(0, 1, 3),
            x * torch.scalar_tensor(n),
        )


def test_ranges_of_symbolic_length() -> None:
    x = torch.randn(4, 3)
    program = export(_Ranges(), (x,), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    block = program.graph_module
    support = ConverterSupport(SETTINGS)
    refused = [node for node in block.graph.nodes if node.op == "call_function" and not support.verdict(node)]
    refused = [node for node in refused if "assert" not in str(node.target)]
    assert [(str(node.target), support.verdict(node).message) for node in refused] == []
    for node in reversed(list(block.graph.nodes)):
        if node.op == "call_function" and not node.users and "assert" in str(node.target):
            block.graph.erase_node(node)
    block.graph.eliminate_dead_code()
    block.recompile()
    ranges = ShapeRanges.from_placeholders(block)
    engine = build_block(block, SETTINGS, ranges, "ranges")
    for rows in (2, 4, 9):
        y = torch.randn(rows, 3)
        for found, wanted in zip(run_engine(engine.plan, engine.input_names, [y]), _Ranges()(y), strict=True):
            torch.testing.assert_close(found, wanted)


def _draw_twice(op: torch._ops.OpOverload, args: tuple[object, ...]) -> list[torch.Tensor]:
    call = record_call(op, args)
    assert ConverterSupport(SETTINGS).verdict(call.node).supported
    engine = build_block(call.block, SETTINGS, call.ranges, "random")
    inputs = [call.tensors[position] for position in call.input_positions]
    return [run_engine(engine.plan, engine.input_names, inputs)[0] for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_random_numbers_are_new_on_every_call(dtype: torch.dtype) -> None:
    x = torch.zeros(64, 64, dtype=dtype)
    for op in (aten.rand_like.default, aten.randn_like.default):
        first, second = _draw_twice(op, (x,))
        assert first.dtype is dtype and not torch.equal(first, second)
    uniform, _ = _draw_twice(aten.rand_like.default, (x,))
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.float().mean() - 0.5) < 0.05
    normal, _ = _draw_twice(aten.randn_like.default, (x,))
    assert abs(normal.float().mean()) < 0.1 and abs(normal.float().std() - 1) < 0.1


def test_random_integers_and_coins() -> None:
    x = torch.zeros(50, 50)
    first, second = _draw_twice(aten.randint_like.low_dtype, (x.long(), -2, 3))
    assert set(first.unique().tolist()) == {-2, -1, 0, 1, 2} and not torch.equal(first, second)
    coins, _ = _draw_twice(aten.bernoulli.p, (x, 0.25))
    assert set(coins.unique().tolist()) == {0.0, 1.0} and abs(coins.mean() - 0.25) < 0.05
    result = check_conversion(aten.randint_like.default, (x.long(), 2**30), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


def _quantization() -> torch._ops._OpNamespace:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    return torch.ops.quantized_decomposed


@pytest.mark.parametrize(
    ("zero_point", "low", "high", "dtype", "layer"),
    [
        (0, -128, 127, torch.int8, True),
        (0, -127, 127, torch.int8, True),
        (3, -128, 127, torch.int8, False),
        (100, 0, 255, torch.uint8, False),
    ],
)
def test_quantize_and_dequantize_per_tensor(
    zero_point: int, low: int, high: int, dtype: torch.dtype, layer: bool
) -> None:
    library = _quantization()
    x = torch.linspace(-9, 9, 41).reshape(1, 41)
    args = (x, 0.0625, zero_point, low, high, dtype)
    check_conversion(library.quantize_per_tensor.default, args)
    assert ("QUANTIZE" in emitted_layers(library.quantize_per_tensor.default, args)) is layer
    steps = library.quantize_per_tensor.default(*args)
    check_conversion(library.dequantize_per_tensor.default, (steps, *args[1:]))


def test_weights_stay_quantized_in_the_network() -> None:
    library = _quantization()
    weight = torch.randint(-128, 127, (3, 4), dtype=torch.int8)
    args = (weight, torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.int64), 0, -128, 127, torch.int8)
    check_conversion(library.dequantize_per_channel.default, args, constants=(0, 1, 2))
    layers = emitted_layers(library.dequantize_per_channel.default, args, constants=(0, 1, 2))
    assert "DEQUANTIZE" in layers
    check_conversion(library.dequantize_per_channel.default, args, constants=(1, 2))
    shifted = (*args[:2], torch.tensor([1, -2, 3]), *args[3:])
    check_conversion(library.dequantize_per_channel.default, shifted, constants=(1, 2))
    values = (torch.randn(3, 4), *args[1:])
    check_conversion(library.quantize_per_channel.default, values, constants=(1, 2))


def test_scales_that_the_graph_computes_are_divided_by() -> None:
    library = _quantization()
    args = (torch.randn(2), torch.tensor(0.1), torch.tensor(0), -128, 127, torch.int8)
    check_conversion(library.quantize_per_tensor.tensor, args)
    assert "QUANTIZE" not in emitted_layers(library.quantize_per_tensor.tensor, args)
    assert "QUANTIZE" in emitted_layers(library.quantize_per_tensor.tensor, args, constants=(1, 2))
    wide = (torch.randn(2), torch.tensor(0.1), torch.tensor(0), -(2**15), 2**15 - 1, torch.int16)
    refused = check_conversion(library.quantize_per_tensor.tensor, wide, constants=(1, 2), expect_supported=False)
    assert refused.verdict.reason in (Reason.UNSUPPORTED_DTYPE, Reason.NO_LOW_PRECISION)


OPINFO = [
    "full_like",
    "new_full",
    "zeros_like",
    "ones_like",
    "new_zeros",
    "new_ones",
    "fill",
    "tril",
    "triu",
    "clone",
    "float",
    "half",
    "int",
    "long",
    "bool",
    "byte",
]


@pytest.mark.parametrize("name", OPINFO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, limit=3):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
