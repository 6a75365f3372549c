"""What converters ask of TensorRT at the moment they ask it, where the portable provider looks later or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trt_portable
from trt_converters import build_block
from trt_converters.interpreter import BlockInterpreter
from trt_converters.testing import check_conversion, record_call
from trt_core import BuildError, CompilationSettings, ConversionError, trt
from trt_core.log import provider_logger
from trt_core.sizes.ranges import ShapeRanges

aten = torch.ops.aten
SETTINGS = CompilationSettings(optimization_level=0)
ROWS = {0: {0: (1, 4, 6)}}
randn = torch.randn


def test_a_slice_of_some_axes_is_added_with_numbers_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    original = trt.INetworkDefinition.add_slice
    checked = []

    def add_slice(network: Any, value: Any, *dims: Any) -> Any:
        checked.append(tuple(value.shape))
        assert [len(part) for part in dims] == [len(tuple(value.shape))] * 3
        return original(network, value, *dims)

    monkeypatch.setattr(trt.INetworkDefinition, "add_slice", add_slice)
    check_conversion(aten.slice.Tensor, (randn(4, 5, 3), 1, 1, 4), dynamic=ROWS)
    check_conversion(aten.expand.default, (randn(4, 1, 3), [4, 5, 3]), dynamic=None)
    check_conversion(aten.flip.default, (randn(4, 5, 3), [0]), dynamic=ROWS)
    check_conversion(aten.constant_pad_nd.default, (randn(4, 5, 3), [1, 2], 0.5), dynamic=ROWS)
    assert (-1, 5, 3) in checked


def test_ramps_are_added_with_one_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    original = trt.INetworkDefinition.add_fill
    ranks = []

    def add_fill(network: Any, shape: Any, operation: Any, *types: Any) -> Any:
        if operation == trt.FillOperation.LINSPACE:
            ranks.append(len(shape))
        return original(network, shape, operation, *types)

    monkeypatch.setattr(trt.INetworkDefinition, "add_fill", add_fill)
    check_conversion(aten.unfold.default, (randn(8, 3), 0, 3, 2), dynamic={0: {0: (5, 8, 9)}})
    check_conversion(aten.tril.default, (randn(4, 4),), dynamic=ROWS)
    assert set(ranks) == {1}


def test_a_mask_that_an_attention_layer_drops_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt.IAttention, "mask", property(lambda layer: None, lambda layer, mask: None))
    x = randn(1, 2, 4, 8)
    with pytest.raises(ConversionError, match="mask"):
        check_conversion(aten.scaled_dot_product_attention.default, (x, x, x, torch.rand(4, 4) > 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_weight_of_a_scale_layer_has_the_inputs_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    original = trt.INetworkDefinition.add_scale_nd
    types = []

    def add_scale_nd(network: Any, value: Any, mode: Any, **weights: Any) -> Any:
        types.extend(weights[name].dtype for name in ("shift", "scale", "power"))
        types.append(value.dtype)
        return original(network, value, mode, **weights)

    monkeypatch.setattr(trt.INetworkDefinition, "add_scale_nd", add_scale_nd)
    statistics = [torch.rand(3).add(0.5).to(dtype) for _ in range(4)]
    args = (randn(2, 3, 4, 4).to(dtype), *statistics, False, 0.1, 1e-5, True)
    check_conversion(aten.batch_norm.default, args, constants=(1, 2, 3, 4))
    assert len(types) == 4 and len(set(types)) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.int64, torch.uint8])
def test_nonzero_compares_types_that_not_every_release_searches(dtype: torch.dtype) -> None:
    call = record_call(aten.nonzero.default, (torch.tensor([[1, 0], [0, 2]]).to(dtype),))
    network = trt.Builder(provider_logger()).create_network(0)
    BlockInterpreter(call.block, network, SETTINGS, call.ranges).run()
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    searched = [layer.get_input(0).dtype for layer in layers if layer.type == trt.LayerType.NON_ZERO]
    assert searched == [trt.DataType.BOOL]


def test_one_tensor_returned_twice_has_two_names(make_block: Any) -> None:
    block = make_block(lambda x: (x + 1, x), torch.ones(2))
    result = block.graph.output_node().args[0]
    block.graph.output_node().args = ((result[0], result[0], result[1]),)
    network = trt.Builder(provider_logger()).create_network(0)
    BlockInterpreter(block, network, SETTINGS, ShapeRanges()).run()
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    assert [output.name for output in outputs] == ["output_0", "output_1", "output_2"]
    assert not any(output.is_network_input for output in outputs)


def test_a_builder_that_cannot_be_created_fails_the_build(make_block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(logger: Any) -> None:
        raise TypeError("pybind11::init(): factory function returned nullptr")

    block = make_block(torch.abs, torch.ones(2))
    monkeypatch.setattr(trt_portable, "Builder", refuse)
    with pytest.raises(BuildError, match="there is no builder") as caught:
        build_block(block, SETTINGS, ShapeRanges(), "block")
    assert "nullptr" in caught.value.why


def test_a_profile_that_cannot_be_set_fails_the_build(make_block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(profile: Any, *arguments: Any) -> None:
        raise RuntimeError("Shape provided for min is inconsistent with other shapes")

    block = make_block(torch.abs, torch.ones(5), symbolic=True)
    monkeypatch.setattr(trt.IOptimizationProfile, "set_shape", refuse)
    with pytest.raises(BuildError, match="refused the optimization profile"):
        build_block(block, SETTINGS, ShapeRanges(), "block")
