"""Real architectures with artificial support: resnet18 and a small BERT, static and dynamic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import Input
from trt_core.sizes.ranges import ShapeRanges
from trt_partition import PartitionReport, make_plan, make_report, split_into_blocks

VISION_WALLS = [(), ("max_pool2d.default", "max_pool2d_with_indices.default"), ("add.Tensor",), ("relu.default",)]
TEXT_WALLS = [(), ("gelu.default",), ("layer_norm.default", "native_layer_norm.default"), ("tanh.default",)]


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).eval()
    assert isinstance(model, nn.Module)
    return model


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    model = transformers.BertModel(config).eval()
    assert isinstance(model, nn.Module)
    return model


@pytest.fixture(scope="module", params=["static", "dynamic"])
def resnet_graph(request: Any, resnet: nn.Module, capture: Any) -> fx.GraphModule:
    dynamic = ({0: torch.export.Dim("batch", min=1, max=8)},) if request.param == "dynamic" else None
    module = capture(resnet, torch.randn(2, 3, 32, 32), dynamic=dynamic)
    assert isinstance(module, fx.GraphModule)
    return module


@pytest.fixture(scope="module", params=["static", "dynamic"])
def bert_graph(request: Any, bert: nn.Module, capture: Any) -> fx.GraphModule:
    tokens = torch.randint(0, 50, (2, 7))
    axes = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=2, max=32)}
    dynamic = {"input_ids": axes, "attention_mask": axes} if request.param == "dynamic" else None
    masks = torch.ones_like(tokens)
    module = capture(bert, input_ids=tokens, attention_mask=masks, dynamic=dynamic, functional=False)
    assert isinstance(module, fx.GraphModule)
    return module


def _assert_close(expected: Any, actual: Any) -> None:
    # the same kernels run in the same order, so float32 results agree to rounding of fused additions
    for want, have in zip(
        torch.utils._pytree.tree_leaves(expected), torch.utils._pytree.tree_leaves(actual), strict=True
    ):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("walls", VISION_WALLS, ids=lambda walls: "+".join(walls) or "all")
@pytest.mark.parametrize("size", [1, 5])
def test_resnet(resnet: Any, resnet_graph: Any, refuse: Any, settings: Any, walls: tuple[str, ...], size: int) -> None:
    config = settings(min_block_size=size)
    plan = make_plan(resnet_graph, refuse(*walls), config)
    split = split_into_blocks(resnet_graph, plan)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        _assert_close(resnet(x), split(x))
    report = make_report(resnet_graph, plan, config)
    assert PartitionReport.from_json(report.to_json()) == report
    weights = sum(parameter.numel() for parameter in resnet.parameters())
    assert sum(block.parameters for block in report.blocks) >= weights
    if not walls:
        assert len(report.engines) == 1
        assert report.coverage == 1.0
        assert not report.torch_nodes


@pytest.mark.sampled
@pytest.mark.parametrize("walls", TEXT_WALLS, ids=lambda walls: "+".join(walls) or "all")
@pytest.mark.parametrize("fast", [True, False])
def test_bert(bert: Any, bert_graph: Any, refuse: Any, settings: Any, walls: tuple[str, ...], fast: bool) -> None:
    plan = make_plan(bert_graph, refuse(*walls), settings(use_fast_partitioner=fast))
    split = split_into_blocks(bert_graph, plan)
    is_dynamic = any(
        isinstance(extent, torch.SymInt)
        for node in bert_graph.graph.nodes
        if node.op == "placeholder"
        for extent in node.meta["val"].shape
    )
    for shape in [(2, 7), (3, 11)] if is_dynamic else [(2, 7)]:
        tokens = torch.randint(0, 50, shape)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        with torch.no_grad():
            _assert_close(bert(**inputs), split(**inputs))
    if not walls:
        assert [block.name for block in plan.blocks] == ["_run_on_acc_0"]


def test_flops_of_resnet_match_the_published_count(resnet: Any, capture: Any, refuse: Any, settings: Any) -> None:
    """1.82 billion multiply-adds for ResNet-18 on 224 by 224 pixels; two operations each, elementwise work on top."""
    gm = capture(resnet, torch.randn(1, 3, 224, 224))
    report = make_report(gm, make_plan(gm, refuse(), settings()), settings())
    assert 2 * 1.81e9 < report.engines[0].flops < 2 * 1.85e9


def test_ranges_come_from_inputs(resnet_graph: Any, refuse: Any, settings: Any) -> None:
    placeholder = next(node for node in resnet_graph.graph.nodes if node.op == "placeholder")
    if not isinstance(placeholder.meta["val"].shape[0], torch.SymInt):
        return
    sizes = (3, 32, 32)
    ranges = ShapeRanges.from_placeholders(
        resnet_graph, [Input(min_shape=(2, *sizes), opt_shape=(4, *sizes), max_shape=(6, *sizes))]
    )
    report = make_report(resnet_graph, make_plan(resnet_graph, refuse(), settings()), settings(), ranges)
    assert str(report.inputs) == "List[Tensor: ((min=2, max=6), 3, 32, 32)@float32]"
    assert report.engines[0].inputs[0].bytes == 4 * 3 * 32 * 32 * 4


def test_model_without_weights_is_explained(capture: Any, refuse: Any, settings: Any) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 65536), nn.ReLU(), nn.Linear(65536, 4096))
        gm = capture(model, torch.empty(1, 4096))
    report = make_report(gm, make_plan(gm, refuse("relu.default"), settings()), settings())
    assert len(report.engines) == 2
    assert report.engines[0].parameter_bytes == 4 * (4096 * 65536 + 65536)
