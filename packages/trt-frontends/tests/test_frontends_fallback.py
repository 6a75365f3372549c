"""What fails on the way to an engine runs in PyTorch, and the report says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn

import trt_frontends
from trt_converters import DYNAMO_CONVERTERS, BuiltEngine, Converter, build_block
from trt_core import BuildError, ConversionError, IncompleteCompilationError, Input, PartitionError
from trt_frontends import engine_source, pipeline
from trt_partition import make_plan

RELU = torch.ops.aten.relu.default


class Chain(nn.Module):
    """An operator in the middle that can be made to fail, with engines on both sides when it does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.relu(torch.sigmoid(self.first(x)) - 0.5)))


@pytest.fixture
def chain() -> nn.Module:
    return Chain().eval()


@pytest.fixture
def failing_relu() -> Iterator[None]:
    """A converter of relu that accepts every call, and fails on it."""

    def aten_relu(ctx: Any, self: Any) -> Any:
        raise ZeroDivisionError("failed on purpose")

    broken = Converter(RELU, aten_relu, priority=100)
    DYNAMO_CONVERTERS.register(broken)
    yield
    DYNAMO_CONVERTERS.unregister(broken)


@pytest.fixture
def failing_build(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A provider that refuses every block with a relu in it. Returns the names of the blocks that were tried."""
    tried: list[str] = []

    def build(block: fx.GraphModule, settings: Any, ranges: Any, name: str, *rest: Any) -> BuiltEngine:
        tried.append(name)
        if any(node.target is RELU for node in block.graph.nodes):
            raise BuildError(f"the engine {name} could not be built", why="refused on purpose")
        return build_block(block, settings, ranges, name, *rest)

    monkeypatch.setattr(engine_source, "build_block", build)
    return tried


@pytest.mark.usefixtures("failing_relu")
def test_a_node_that_does_not_convert_runs_in_pytorch(
    chain: nn.Module, compare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    report = compare(chain, torch.randn(2, 4)).meta["partition_report"]
    (node,) = report.torch_nodes
    assert (node.op, node.verdict.code) == ("torch.ops.aten.relu.default", "TRT-F041")
    assert "failed on purpose" in node.verdict.message
    assert node.verdict.source.startswith(__file__)
    assert len(report.engines) == 2
    package = __name__.partition(".")[0]
    failure = "ZeroDivisionError: failed on purpose"
    assert f"relu runs in PyTorch: converter aten_relu of {package}: {failure}" in caplog.text


@pytest.mark.usefixtures("failing_relu")
def test_a_failed_conversion_is_an_error_when_asked_for(chain: nn.Module) -> None:
    with pytest.raises(ConversionError, match="failed on purpose") as caught:
        trt_frontends.compile(chain, arg_inputs=(torch.ones(2, 4),), pass_through_build_failures=True)
    assert __file__ in caught.value.where


@pytest.mark.usefixtures("failing_relu")
def test_a_failed_conversion_counts_as_an_obstacle(chain: nn.Module) -> None:
    with pytest.raises(IncompleteCompilationError, match="TRT-F041"):
        trt_frontends.compile(chain, arg_inputs=(torch.ones(2, 4),), require_full_compilation=True)


def test_engines_that_were_built_are_used_again(monkeypatch: pytest.MonkeyPatch, compare: Any) -> None:
    built: list[tuple[str, ...]] = []

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.special.bessel_j0(torch.tanh(self.first(x)))
            return torch.relu(self.second(y))

    def build(block: fx.GraphModule, *rest: Any) -> BuiltEngine:
        names = tuple(node.name for node in block.graph.nodes if node.op == "call_function")
        if "relu" in names:
            raise ConversionError("cannot convert relu", why="on purpose", node_name="relu")
        built.append(names)
        return build_block(block, *rest)

    monkeypatch.setattr(engine_source, "build_block", build)
    compiled = compare(Twice(), torch.randn(2, 4))
    assert built == [("linear", "tanh"), ("linear_1",)]  # the first engine only once
    assert len(compiled.meta["partition_report"].engines) == 2


def test_a_block_that_does_not_build_runs_in_pytorch(
    chain: nn.Module, failing_build: list[str], compare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    report = compare(chain, torch.randn(2, 4)).meta["partition_report"]
    assert {node.verdict.code for node in report.torch_nodes} == {"TRT-F042"}
    assert {node.verdict.message for node in report.torch_nodes} == {"refused on purpose"}
    assert report.coverage == 0.0
    assert failing_build == ["_run_on_acc_0"]
    assert caplog.records[-1].levelno == logging.WARNING
    assert "_run_on_acc_0 runs in PyTorch: refused on purpose" in caplog.text


def test_other_blocks_still_become_engines(failing_build: list[str], interrupted: nn.Module, compare: Any) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.second(torch.special.bessel_j0(torch.relu(self.first(x)))))

    report = compare(Half(), torch.randn(2, 4)).meta["partition_report"]
    assert [engine.operators_by_kind["torch.ops.aten.tanh.default"] for engine in report.engines] == [1]
    assert {node.verdict.code for node in report.torch_nodes} == {"TRT-F042", "TRT-F001"}


def test_a_failed_build_is_an_error_when_asked_for(chain: nn.Module, failing_build: list[str]) -> None:
    with pytest.raises(BuildError, match="refused on purpose"):
        trt_frontends.compile(chain, arg_inputs=(torch.ones(2, 4),), pass_through_build_failures=True)
    with pytest.raises(IncompleteCompilationError, match="TRT-F042"):
        trt_frontends.compile(chain, arg_inputs=(torch.ones(2, 4),), require_full_compilation=True)


def test_failures_that_belong_to_no_node_of_the_graph_exclude_the_block(
    chain: nn.Module, monkeypatch: pytest.MonkeyPatch, compare: Any
) -> None:
    def build(*_: Any) -> BuiltEngine:
        raise ConversionError("cannot convert an input", why="of its type", node_name="x")

    monkeypatch.setattr(engine_source, "build_block", build)
    report = compare(chain, torch.randn(2, 4)).meta["partition_report"]
    assert {node.verdict.code for node in report.torch_nodes} == {"TRT-F042"}


def test_a_partitioner_that_ignores_refusals_is_an_error_and_no_endless_loop(
    chain: nn.Module, failing_build: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[Any] = []

    def plan_once(*arguments: Any) -> Any:
        if not first:
            first.append(make_plan(*arguments))
        return first[0]

    monkeypatch.setattr(pipeline, "make_plan", plan_once)
    with pytest.raises(PartitionError, match="put into an engine again"):
        trt_frontends.compile(chain, arg_inputs=(torch.ones(2, 4),))
    assert len(failing_build) == 2


def test_disabled_converters_are_not_used(chain: nn.Module, compare: Any) -> None:
    DYNAMO_CONVERTERS.disable(RELU)
    try:
        report = compare(chain, torch.randn(2, 4)).meta["partition_report"]
    finally:
        DYNAMO_CONVERTERS.enable(RELU)
    assert "torch.ops.aten.relu.default" not in {node.op for node in report.nodes}  # lowering decomposed it instead


def test_a_registry_of_its_own_changes_one_compilation() -> None:
    class Activated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(x * 0.5) + 1

    registry = DYNAMO_CONVERTERS.copy()
    registry.disable(torch.ops.aten.mul.Tensor)
    x = torch.rand(3)
    for chosen, reasons in ((registry, {"TRT-F004"}), (DYNAMO_CONVERTERS, set())):
        compiled = trt_frontends.compile(Activated(), arg_inputs=(x,), min_block_size=1, registry=chosen)
        report = compiled.meta["partition_report"]
        assert {node.verdict.code for node in report.torch_nodes} == reasons
        assert trt_frontends.explain(Activated(), arg_inputs=(x,), min_block_size=1, registry=chosen) == report
        torch.testing.assert_close(compiled(x), Activated()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(0, x.shape[1] - 4),
        lambda x: torch.relu(x) ** x.shape[0],
        lambda x: torch.add(x, x, alpha=x.shape[1]),
        lambda x: torch.addcmul(x, x, x, value=x.shape[0]),
        lambda x: torch.nn.functional.threshold(x, 0.1, x.shape[1]),
    ],
    ids=["clamp", "pow", "add", "addcmul", "threshold"],
)
def test_numbers_that_are_sizes_stay_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x) + 1

    spec = Input(min_shape=(1, 4), opt_shape=(3, 6), max_shape=(5, 12))
    compiled = trt_frontends.compile(Model(), arg_inputs=(spec,), min_block_size=1)
    for shape in ((1, 4), (3, 6), (5, 12)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), Model()(x))


def test_compressed_tensors_inside_of_a_model_stay_in_pytorch() -> None:
    class Compressing(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(x.to_sparse_csr(), y).relu()

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    compiled = trt_frontends.compile(Compressing(), arg_inputs=[x, y], min_block_size=1)
    torch.testing.assert_close(compiled(x, y), (x @ y).relu())
