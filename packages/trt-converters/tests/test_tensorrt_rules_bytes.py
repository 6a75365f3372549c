"""uint8 exists at a network's edges alone: inside, float32 carries it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trt_portable
from trt_converters.byte_tensor import ByteTensor
from trt_converters.context import ConversionContext
from trt_converters.interpreter import BlockInterpreter
from trt_converters.layers import concatenate, gather, permute, reshape, select
from trt_converters.testing import check_conversion, emitted_layers
from trt_core import CompilationSettings, trt
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.sizes.ranges import ShapeRanges

aten = torch.ops.aten
IMAGE = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).remainder(251).to(torch.uint8)
BYTES = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4) * 10
PLACES = torch.zeros(2, 3, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.view.default, (BYTES, [6, 4])),
        (aten.permute.default, (IMAGE, [0, 2, 3, 1])),
        (aten.unsqueeze.default, (BYTES, 0)),
        (aten.squeeze.dims, (BYTES[:, :1].contiguous(), [1])),
        (aten.expand.default, (BYTES[:, :1].contiguous(), [2, 3, 4])),
        (aten.cat.default, ([BYTES, BYTES], 1)),
        (aten.stack.default, ([BYTES, BYTES],)),
        (aten.slice.Tensor, (BYTES, 2, 1, 3)),
        (aten.select.int, (BYTES, 1, -1)),
        (aten.flip.default, (BYTES, [1])),
        (aten.roll.default, (BYTES, [1], [1])),
        (aten.repeat.default, (BYTES, [1, 2, 1])),
        (aten.constant_pad_nd.default, (BYTES, [1, 1], 7)),
        (aten.constant_pad_nd.default, (BYTES, [-1, -1], 7)),
        (aten.pad.default, (BYTES, [1, 1], "reflect")),
        (aten.pad.default, (BYTES, [1, 1], "circular")),
        (aten.gather.default, (BYTES, 1, PLACES)),
        (aten.index.Tensor, (BYTES, [torch.tensor([1, 0])])),
        (aten.embedding.default, (BYTES[0].contiguous(), torch.tensor([2, 0]))),
        (aten.masked_select.default, (BYTES, torch.arange(24).reshape(2, 3, 4) % 3 == 0)),
        (aten.scatter.src, (BYTES, 1, PLACES[:, :1], BYTES)),
        (aten.index_put.default, (BYTES, [torch.tensor([0])], BYTES[:1])),
        (aten.index_fill.int_Scalar, (BYTES, 1, torch.tensor([0]), 9)),
        (aten.tril.default, (BYTES,)),
        (aten.upsample_nearest2d.default, (IMAGE, [8, 8])),
        (aten.nonzero.default, (BYTES,)),
        (aten.full_like.default, (BYTES, 200)),
        (aten.clone.default, (BYTES,)),
        (aten.to.dtype, (BYTES, torch.float16)),
        (aten.to.dtype, (BYTES, torch.int64)),
        (aten.to.dtype, (BYTES, torch.bool)),
        (aten.to.dtype, (torch.tensor([0.0, 2.75, 254.99]), torch.uint8)),
        (aten.to.dtype, (torch.tensor([0, 300, -1]), torch.uint8)),
        (aten.to.dtype, (torch.tensor([-1.5, 256.0, 300.75, -257.0, -0.5]), torch.uint8)),
        (aten.to.dtype, (torch.tensor([-1.5, 1000.0], dtype=torch.float16), torch.uint8)),
        (aten.to.dtype, (torch.tensor([-128, -1, 127], dtype=torch.int8), torch.uint8)),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else None,
)
def test_movement_takes_bytes(op: Any, args: Any) -> None:
    check_conversion(op, args)


def test_movement_of_symbolic_extents_takes_bytes() -> None:
    dynamic = {0: {0: (1, 2, 5)}}
    check_conversion(aten.permute.default, (IMAGE, [0, 2, 3, 1]), dynamic=dynamic)
    check_conversion(aten.full_like.default, (IMAGE, 7), dynamic=dynamic)


def test_computing_with_bytes_is_refused() -> None:
    for op, args in ((aten.add.Tensor, (BYTES, BYTES)), (aten.outer.default, (BYTES[0, 0], BYTES[0, 0]))):
        assert not check_conversion(op, args, expect_supported=False).verdict.supported


def test_only_edges_have_the_type(make_block: Any) -> None:
    def prepare(image: torch.Tensor) -> torch.Tensor:
        return (image.permute(0, 2, 3, 1)[:, 1:].flip(1).to(torch.float32) / 255).to(torch.uint8)

    block = make_block(prepare, IMAGE)
    network = trt.Builder(provider_logger()).create_network(0)
    BlockInterpreter(block, network, CompilationSettings(), ShapeRanges({})).run()
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    inside = [
        (layer.name, layer.get_output(index))
        for layer in layers
        for index in range(layer.num_outputs)
        if not layer.get_output(index).is_network_output
    ]
    assert [name for name, tensor in inside if tensor.dtype == trt.DataType.UINT8] == []
    assert network.get_input(0).dtype == trt.DataType.UINT8
    assert network.get_output(0).dtype == trt.DataType.UINT8


def test_casting_the_input_takes_one_layer() -> None:
    assert emitted_layers(aten.to.dtype, (BYTES, torch.float32)) == ("CAST",)


@pytest.fixture
def context() -> ConversionContext:
    network = trt.Builder(provider_logger()).create_network(0)
    return ConversionContext(network, CompilationSettings(), ShapeRanges({}))


def test_constants_and_bytes_mix(context: ConversionContext) -> None:
    tensor = context.network.add_input("x", trt.DataType.FLOAT, (2, 3))
    value = ByteTensor(tensor)
    constant = torch.ones(2, 3, dtype=torch.uint8)
    condition = context.network.add_input("c", trt.DataType.BOOL, (2, 3))
    for result, shape in (
        (concatenate(context, [value, constant], 0), (4, 3)),
        (select(context, condition, constant, value), (2, 3)),
        (gather(context, constant, context.network.add_input("i", trt.DataType.INT64, (5,)), 1), (2, 5)),
        (reshape(context, permute(context, value, (1, 0)), (6,)), (6,)),
    ):
        assert isinstance(result, ByteTensor)
        assert tuple(result.shape) == shape
        assert result.dtype == trt.DataType.UINT8
        assert result.carrier.dtype == trt.DataType.FLOAT
    assert isinstance(concatenate(context, [constant, constant], 0), torch.Tensor)


def test_a_network_that_returns_its_bytes_copies_them(make_block: Any) -> None:
    block = make_block(lambda x: (x, x, x.reshape(-1)), BYTES)
    network = trt.Builder(provider_logger()).create_network(0)
    BlockInterpreter(block, network, CompilationSettings(), ShapeRanges({})).run()
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    assert len({output.name for output in outputs}) == 3
    assert {output.dtype for output in outputs} == {trt.DataType.UINT8}


def test_the_portable_provider_builds_no_bytes_inside_a_network() -> None:
    builder = trt.Builder(provider_logger())
    network = builder.create_network(0)
    image = network.add_input("image", trt.DataType.UINT8, (2, 3))
    wide = network.add_cast(image, trt.DataType.FLOAT).get_output(0)
    narrow = network.add_cast(wide, trt.DataType.UINT8).get_output(0)
    network.mark_output(network.add_cast(narrow, trt.DataType.FLOAT).get_output(0))
    forget_errors()
    with trt_portable.strict(False):
        assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert "UINT8, which only inputs and outputs of a network may have" in take_errors()


def test_constants_may_be_outputs(make_block: Any) -> None:
    table = torch.tensor([3, 200], dtype=torch.uint8)
    block = make_block(lambda x: (x + 1.0, aten.full_like.default(x, 7, dtype=torch.uint8)), torch.ones(2))
    network = trt.Builder(provider_logger()).create_network(0)
    BlockInterpreter(block, network, CompilationSettings(), ShapeRanges({})).run()
    assert network.get_output(1).dtype == trt.DataType.UINT8
    check_conversion(aten.index.Tensor, (table, [torch.tensor([1, 0, 1])]), constants=(0,))
