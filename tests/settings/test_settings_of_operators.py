"""What settings of operators and precision change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from settings_models import X, compile_model, explain
from torch import fx, nn

from trt_lowering import GraphPass


def test_precision(model: nn.Module) -> None:
    error = (compile_model(model, precision=torch.float16)(X) - model(X)).abs().max()
    assert 0 < error < 1e-2


def test_enabled_precisions(model: nn.Module) -> None:
    with pytest.warns(DeprecationWarning, match="enabled_precisions is retired.*write enable_autocast=True"):
        compiled = compile_model(model, enabled_precisions={torch.float16})
    assert torch.equal(compiled(X), compile_model(model, enable_autocast=True)(X))


def test_use_explicit_typing(model: nn.Module) -> None:
    with pytest.warns(DeprecationWarning, match="networks are always strongly typed"):
        explain(model, use_explicit_typing=False)


def test_enable_autocast(model: nn.Module) -> None:
    error = (compile_model(model, enable_autocast=True)(X) - model(X)).abs().max()
    assert 0 < error < 1e-2


def test_autocast_dtype(model: nn.Module) -> None:
    half, brain = (
        compile_model(model, enable_autocast=True, autocast_dtype=dtype)(X) for dtype in (torch.float16, torch.bfloat16)
    )
    assert not torch.equal(half, brain)


def _kept(model: nn.Module, **settings: Any) -> list[tuple[str, str]]:
    report = explain(model, precision=torch.float16, **settings)
    return [(node.name, str(node.kept_in_float32)) for node in report.kept_in_float32]


def test_autocast_excluded_ops(model: nn.Module) -> None:
    kept = _kept(model, autocast_excluded_ops={"aten.relu"})
    assert kept == [("relu", "autocast_excluded_ops: torch.ops.aten.relu")]


def test_autocast_excluded_nodes(model: nn.Module) -> None:
    assert _kept(model, autocast_excluded_nodes={"^linear$"}) == [("linear", "autocast_excluded_nodes: ^linear$")]


def test_autocast_max_output_threshold(model: nn.Module) -> None:
    kept = dict(_kept(model, autocast_max_output_threshold=1.0))
    assert kept["linear"] == "autocast_max_output_threshold: x reaches 3"
    assert _kept(model, autocast_max_output_threshold=100.0) == []


def test_autocast_max_depth_of_reduction(model: nn.Module) -> None:
    kept = _kept(model, autocast_max_depth_of_reduction=3)
    assert kept == [("linear", "autocast_max_depth_of_reduction: adds up 4 elements")]
    assert _kept(model, autocast_max_depth_of_reduction=4) == []


def test_max_error(model: nn.Module) -> None:
    exact, rough = (compile_model(model, max_error=error).meta["precision_report"] for error in (1e-6, 1e-2))
    assert (exact.dtype, rough.dtype) == ("float32", "float16")


def test_truncate_long_and_double(model: nn.Module) -> None:
    x = X.double()
    assert len(explain(model.double(), x).engines) == 0
    assert len(explain(model.double(), x, truncate_long_and_double=True).engines) == 1


def test_torch_executed_ops(model: nn.Module) -> None:
    report = explain(model, torch_executed_ops={"aten.relu"})
    assert [node.op for node in report.torch_nodes] == ["torch.ops.aten.relu.default"]


def test_torch_executed_modules(model: nn.Module) -> None:
    report = explain(model, torch_executed_modules={"activation"})
    assert [node.op for node in report.torch_nodes] == ["torch.ops.aten.relu.default"]


def test_check_indices() -> None:
    model, ids = nn.Embedding(3, 4), torch.tensor([0, 2])
    assert explain(model, ids).coverage == 1
    assert explain(model, ids, check_indices=True).coverage == 0


def test_enable_experimental_decompositions(model: nn.Module) -> None:
    def operators(**settings: Any) -> set[str]:
        return {node.op for node in explain(model, **settings).nodes}

    assert "torch.ops.aten.linear.default" in operators()
    assert "torch.ops.aten.linear.default" not in operators(enable_experimental_decompositions=True)


class _DropActivation(GraphPass):
    name = "drop_activation"

    def call(self, gm: fx.GraphModule) -> int:
        nodes = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
        for node in nodes:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        return len(nodes)


def test_lowering_passes(model: nn.Module) -> None:
    def operators(**settings: Any) -> set[str]:
        return {node.op for node in explain(model, **settings).nodes}

    assert "torch.ops.aten.relu.default" in operators()
    assert "torch.ops.aten.relu.default" not in operators(lowering_passes=[_DropActivation()])
    expected = copy.deepcopy(model)
    expected.activation = nn.Identity()
    torch.testing.assert_close(compile_model(model, lowering_passes=[_DropActivation()])(X), expected(X))
    optimized = torch.compile(model, backend="tensorrt", options={"lowering_passes": [_DropActivation()]})
    torch.testing.assert_close(optimized(X), expected(X))
