"""What a conversion adds to a network besides layers of converters: constants, sizes, names, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters import ConversionContext, layers
from trt_converters.build import new_network
from trt_converters.context import (
    axes_mask,
    dtype_of,
    normalize_axes,
    normalize_axis,
    rank_of,
    shape_of,
)
from trt_core import CompilationSettings, ConversionError, trt
from trt_core.log import provider_logger
from trt_core.sizes.ranges import ShapeRanges

aten = torch.ops.aten


def _context() -> ConversionContext:
    network = new_network(trt.Builder(provider_logger()))
    return ConversionContext(network, CompilationSettings(), ShapeRanges())


def _layers(ctx: ConversionContext) -> list[str]:
    return [ctx.network.get_layer(index).type.name for index in range(ctx.network.num_layers)]


def test_one_tensor_becomes_one_constant() -> None:
    ctx = _context()
    weight = torch.randn(4, 5)
    assert ctx.tensor(weight) is ctx.tensor(weight)
    assert ctx.tensor(weight) is not ctx.tensor(weight.clone())
    assert ctx.tensor(weight) is not ctx.tensor(weight[:2])
    assert ctx.tensor(weight.view(5, 4)) is not ctx.tensor(weight.t())
    assert _layers(ctx) == ["CONSTANT"] * 5


def test_equal_small_constants_share_a_layer() -> None:
    ctx = _context()
    assert ctx.tensor(torch.tensor([1.0, 2.0])) is ctx.tensor(torch.tensor([1.0, 2.0]))
    assert ctx.tensor(2) is ctx.tensor(torch.tensor(2))
    assert ctx.tensor(2.0) is not ctx.tensor(2)
    assert ctx.tensor(torch.tensor(0.0)) is not ctx.tensor(torch.tensor(-0.0))
    assert ctx.tensor(torch.tensor(float("nan"))) is ctx.tensor(torch.tensor(float("nan")))


def test_temporary_constants_keep_their_memory() -> None:
    ctx = _context()
    made = [ctx.tensor(torch.full((32,), float(value))) for value in range(20)]
    assert len({id(tensor) for tensor in made}) == 20


def test_what_is_a_tensor_of_the_network_stays_it() -> None:
    ctx = _context()
    x = ctx.network.add_input("x", trt.float32, (2,))
    assert ctx.tensor(x) is x
    assert _layers(ctx) == []


@pytest.mark.parametrize(("dtype", "layers"), [(torch.bool, ["CONSTANT", "CAST"]), (torch.int64, ["CONSTANT"])])
def test_types_that_constants_cannot_have_are_cast(dtype: torch.dtype, layers: list[str]) -> None:
    ctx = _context()
    assert dtype_of(ctx.tensor(torch.ones(3, dtype=dtype))) is dtype
    assert _layers(ctx) == layers


def test_layers_are_named_after_the_node_and_tell_their_module(make_block: Any) -> None:
    block = make_block(torch.abs, torch.ones(2))
    node = next(node for node in block.graph.nodes if node.op == "call_function")
    node.meta["nn_module_stack"] = {"": ("encoder.layer", torch.nn.Identity)}
    ctx = _context()
    x = ctx.network.add_input("x", trt.float32, (2,))
    ctx.enter(node)
    layers = [ctx.own(ctx.network.add_identity(x), suffix) for suffix in ("", "", "cast", "cast")]
    assert [layer.name for layer in layers] == [node.name, f"{node.name}.1", f"{node.name}/cast", f"{node.name}/cast.1"]
    assert {layer.metadata for layer in layers} == {f"encoder.layer/{node.name}"}


def test_a_layer_that_tensorrt_refuses_names_node_and_line(make_block: Any) -> None:
    block = make_block(torch.abs, torch.ones(2))
    node = next(node for node in block.graph.nodes if node.op == "call_function")
    node.stack_trace = 'File "model.py", line 12, in forward\n    x.abs()'
    ctx = _context()
    ctx.enter(node)
    with pytest.raises(ConversionError) as caught:
        ctx.own(None, "softmax")
    assert caught.value.node_name == node.name
    assert caught.value.where == f"{node.name}, model.py:12"
    assert caught.value.why == "TensorRT refused a layer (softmax)"
    assert "aten.abs.default" in caught.value.what


def test_sizes_are_read_once_from_the_tensor_that_has_them(make_block: Any) -> None:
    block = make_block(lambda x: x.abs(), torch.ones(5, 7), symbolic=True)
    meta = next(node for node in block.graph.nodes if node.op == "placeholder").meta["val"]
    ctx = _context()
    x = ctx.network.add_input("x", trt.float32, (-1, -1))
    ctx.register_dimensions(x, meta)
    rows, columns = meta.shape
    assert ctx.size(4) == 4
    assert ctx.size(rows) is ctx.size(rows)
    assert tuple(ctx.size(rows).shape) == (1,)
    assert dtype_of(ctx.size(rows)) is torch.int64
    before = ctx.network.num_layers
    combined = ctx.size(rows * columns + 1)
    assert ctx.network.num_layers > before
    assert ctx.size(rows * columns + 1) is combined


def test_a_derived_size_is_taken_from_an_intermediate_tensor_that_has_it(make_block: Any) -> None:
    block = make_block(lambda x: torch.cat([x, x]), torch.ones(5, 7), symbolic=True)
    meta = next(node for node in block.graph.nodes if node.target is aten.cat.default).meta["val"]
    ctx = _context()
    ctx.register_dimensions(ctx.network.add_input("joined", trt.float32, (-1, -1)), meta)
    ctx.size(meta.shape[0])
    assert "ELEMENTWISE" not in _layers(ctx)


def test_a_size_is_computed_from_a_tensor_that_has_a_number_more_of_a_rounded_one(make_block: Any) -> None:
    """Twice ``(s + 1) // 2`` follows from ``(s + 1) // 2 - 1``, where no tensor of the block has s."""
    block = make_block(lambda x: x[::2][1:], torch.ones(9, 7), symbolic=True)
    meta = [node for node in block.graph.nodes if node.op == "call_function"][-1].meta["val"]
    ctx = _context()
    ctx.register_dimensions(ctx.network.add_input("rest", trt.float32, (-1, -1)), meta)
    assert tuple(ctx.size(2 * meta.shape[0] + 2).shape) == (1,)


def test_a_size_that_no_tensor_has_is_an_error(make_block: Any) -> None:
    block = make_block(torch.abs, torch.ones(5), symbolic=True)
    meta = next(node for node in block.graph.nodes if node.op == "placeholder").meta["val"]
    with pytest.raises(ConversionError, match="no input of the block has the dimension"):
        _context().size(meta.shape[0])


def test_facts_about_values() -> None:
    ctx = _context()
    x = ctx.network.add_input("x", trt.float16, (-1, 3))
    assert (shape_of(x), rank_of(x), dtype_of(x)) == ((-1, 3), 2, torch.float16)
    constant = torch.ones(2, 4, dtype=torch.int32)
    assert (shape_of(constant), rank_of(constant), dtype_of(constant)) == ((2, 4), 2, torch.int32)
    assert [dtype_of(value) for value in (True, 3, 0.5)] == [torch.bool, torch.int64, torch.float32]
    assert rank_of(3) == 0


def test_axes() -> None:
    assert [normalize_axis(axis, 3) for axis in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    assert normalize_axis(-1, 0) == 0
    assert normalize_axes(None, 3) == normalize_axes([], 3) == (0, 1, 2)
    assert normalize_axes([-1, 0, 2], 3) == (0, 2)
    assert normalize_axes(-2, 3) == (1,)
    assert axes_mask([0, 2, 2]) == 0b101


def _input(ctx: ConversionContext, *shape: int) -> Any:
    return ctx.network.add_input("x", trt.DataType.FLOAT, shape)


@pytest.mark.parametrize("axes", [-1, (-1,), 2, [2]])
def test_layers_count_axes_from_the_end_too(axes: Any) -> None:
    ctx = _context()
    x = _input(ctx, 2, 3, 4)
    assert tuple(layers.reduce(ctx, "SUM", x, axes).shape) == (2, 3)
    assert tuple(layers.reduce(ctx, "SUM", x, axis=axes).shape) == (2, 3)  # type: ignore[call-arg]
    assert tuple(layers.softmax(ctx, x, -1).shape) == (2, 3, 4)
    assert tuple(layers.topk(ctx, x, 2, -1, True)[0].shape) == (2, 3, 2)


def test_an_axis_that_a_value_does_not_have_is_named() -> None:
    ctx = _context()
    with pytest.raises(ConversionError, match=r"axes \[3\] of a value of rank 3"):
        layers.reduce(ctx, "SUM", _input(ctx, 2, 3, 4), 3)


def test_an_operation_that_tensorrt_does_not_have_is_named_with_those_that_it_has() -> None:
    ctx = _context()
    x = _input(ctx, 2, 3)
    with pytest.raises(ConversionError, match="ElementWiseOperation has no 'MUL'; it has SUM, PROD"):
        layers.binary(ctx, "MUL", x, x)
    with pytest.raises(ConversionError, match="UnaryOperation has no 'SQRTT'; did you mean 'SQRT'"):
        layers.unary(ctx, "SQRTT", x)
    with pytest.raises(ConversionError, match="ActivationType has no 'GELU'"):
        layers.activation(ctx, "GELU", x)
