"""Engines of blocks: bindings, optimization profile, and what is said when the provider refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters import DYNAMO_CONVERTERS, build, build_block, converter
from trt_converters.build import configure
from trt_converters.testing import compare, run_engine
from trt_core import BuildError, CompilationSettings, trt
from trt_core.settings import ObservedSettings, building_fields
from trt_core.sizes.ranges import ShapeRanges

SETTINGS = CompilationSettings(optimization_level=0)
X = torch.arange(6.0).reshape(2, 3)


def test_an_engine_describes_its_bindings(make_block: Any) -> None:
    block = make_block(lambda x, y: (x @ y, x.abs()), X, torch.ones(3, 4))
    engine = build_block(block, SETTINGS, ShapeRanges(), "encoder")
    assert engine.name == "encoder"
    assert engine.input_names == tuple(node.name for node in block.graph.nodes if node.op == "placeholder")
    assert engine.output_names == ("output_0", "output_1")
    assert [tuple(meta.shape) for meta in engine.inputs] == [(2, 3), (3, 4)]
    assert [tuple(meta.shape) for meta in engine.outputs] == [(2, 4), (2, 3)]
    assert engine.profiles[0][engine.input_names[0]] == ((2, 2, 2), (3, 3, 3))
    assert engine.layers == 2
    assert engine.build_seconds > 0
    assert engine.provider
    assert memoryview(engine.plan).nbytes > 0
    compare(run_engine(engine.plan, engine.input_names, (X, torch.ones(3, 4))), (X @ torch.ones(3, 4), X))


def test_symbolic_extents_become_a_profile(make_block: Any, ranges_of: Any) -> None:
    block = make_block(lambda x: x.abs() + 1, torch.ones(5, 7), symbolic=True)
    engine = build_block(block, SETTINGS, ranges_of(block, (1, 4, 9)), "block")
    assert engine.profiles == ({engine.input_names[0]: ((1, 4, 9), (1, 4, 9))},)
    loaded = trt.Runtime(build.provider_logger()).deserialize_cuda_engine(engine.plan)
    assert [tuple(shape) for shape in loaded.get_tensor_profile_shape(engine.input_names[0], 0)] == [
        (1, 1),
        (4, 4),
        (9, 9),
    ]
    for shape in ((1, 1), (9, 2)):
        compare(run_engine(engine.plan, engine.input_names, (torch.ones(shape),)), (torch.full(shape, 2.0),))
    with pytest.raises(RuntimeError, match="shape"):
        run_engine(engine.plan, engine.input_names, (torch.ones(10, 2),))


def test_building_reads_exactly_the_settings_that_the_digest_covers(make_block: Any) -> None:
    block = make_block(lambda x: torch.nn.functional.conv2d(x, torch.ones(2, 1, 3, 3)).relu(), torch.ones(1, 1, 5, 5))
    read = build_block(block, SETTINGS, ShapeRanges(), "block").settings_read
    accelerator = ObservedSettings(SETTINGS.replace(engine_capability="dla_standalone"))
    configure(trt.Builder(build.provider_logger()).create_builder_config(), accelerator)
    assert read | accelerator.fields_read() == set(building_fields())


def test_a_converter_that_reads_another_setting_is_noticed(make_block: Any) -> None:
    registry = DYNAMO_CONVERTERS.copy()

    @converter(torch.ops.aten.relu.default, priority=1, registry=registry)
    def curious(ctx: Any, self: Any) -> Any:
        assert ctx.settings.precision is torch.float32
        return ctx.output(ctx.network.add_activation(ctx.tensor(self), trt.ActivationType.RELU))

    engine = build_block(make_block(torch.relu, X), SETTINGS, ShapeRanges(), "block", registry)
    assert engine.settings_read - set(building_fields()) == {"precision"}


def test_a_profile_that_the_provider_refuses(make_block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    block = make_block(torch.abs, torch.ones(5), symbolic=True)
    monkeypatch.setattr(trt.IBuilderConfig, "add_optimization_profile", lambda config, profile: -1)
    with pytest.raises(BuildError, match="refused the optimization profile"):
        build_block(block, SETTINGS, ShapeRanges(), "block")


def test_a_failed_build_repeats_what_the_provider_said(make_block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(builder: Any, network: Any, config: Any) -> None:
        logger = build.provider_logger()
        logger.log(trt.ILogger.Severity.INFO, "no reason")
        logger.log(trt.ILogger.Severity.ERROR, "layer abs: out of tactics")

    monkeypatch.setattr(trt.Builder, "build_serialized_network", refuse)
    with pytest.raises(BuildError) as caught:
        build_block(make_block(torch.abs, X), SETTINGS, ShapeRanges(), "block_3")
    assert caught.value.what == "the engine block_3 could not be built"
    assert caught.value.where == "1 inputs, 1 layers"
    assert caught.value.why == "layer abs: out of tactics"
    assert "torch_executed_ops" in caught.value.hint


def test_a_failed_build_without_a_reason(make_block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt.Builder, "build_serialized_network", lambda builder, network, config: None)
    with pytest.raises(BuildError) as caught:
        build_block(make_block(torch.abs, X), SETTINGS, ShapeRanges(), "block")
    assert caught.value.why == "the provider gave no reason"
