"""The report as data, text and JSON."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

from trt_core import PartitionError, Reason
from trt_partition import PartitionReport, Sweep, make_plan, make_report, split_into_blocks
from trt_partition.report.partition_report import schema
from trt_partition.sweep import recommend

STATIC_TEXT = """\
{plus} Dry-Run Results for Graph {plus}

The graph consists of 16 Total Operators, of which 14 operators are supported, 87.50% coverage

The following ops are currently unsupported or excluded from conversion, {and_so_on}
 torch.ops.aten.relu.default: 1
 torch.ops.aten.sigmoid.default: 1

The following nodes are currently set to run in Torch:
Node: torch.ops.aten.relu.default, with layer location: relu
  TRT-F001: relu.default is refused ({file}:{relu})
Node: torch.ops.aten.sigmoid.default, with layer location: sigmoid
  TRT-F001: sigmoid.default is refused ({file}:{sigmoid})
Note: Some of the above nodes may be supported, but were not included in a TRT graph by the partitioner

Compiled with: {settings}

  Graph Structure:

   Inputs: List[Tensor: (3, 4)@float32, Dict{{Tensor: (4,)@float32}}]
    ...
    TRT Engine #1 - Submodule name: _run_on_acc_0
     Engine Inputs: List[Tensor: (3, 4)@float32]
     Number of Operators in Engine: 3
     Engine Outputs: List[Tensor: (3, 8)@float32]
    ...
    PyTorch Block - Submodule name: _run_on_gpu_1
    ...
    TRT Engine #2 - Submodule name: _run_on_acc_2
     Engine Inputs: List[Tensor: (3, 8)@float32]
     Number of Operators in Engine: 6
     Engine Outputs: List[Tensor: (3, 4)@float32, Tensor: (3, 4)@float32, Tensor: (3, 4)@float64]
    ...
    PyTorch Block - Submodule name: _run_on_gpu_3
    ...
    TRT Engine #3 - Submodule name: _run_on_acc_4
     Engine Inputs: List[Tensor: (4,)@float32, Tensor: (3, 4)@float32, Tensor: (3, 4)@float32]
     Number of Operators in Engine: 5
     Engine Outputs: List[Tensor: (3, 4)@float32, Tensor: (12,)@float32]
    ...
   Outputs: Dict{{Tensor: (12,)@float32, Tuple(Tensor: (3, 4)@float32, Tensor: (3, 4)@float64)}}

  ------------------------- Aggregate Stats -------------------------

   Average Number of Operators per TRT Engine: 4.67
   Fewest Operators in a TRT Engine: 3
   Most Operators in a TRT Engine: 6

  ********** Recommendations **********

   - For minimal graph segmentation, select min_block_size=4 which would generate 1 TRT engine(s)
   - For moderate graph segmentation, select min_block_size=3 which would generate 2 TRT engine(s)
   - The current level of graph segmentation is equivalent to selecting min_block_size=1 which generates 3 TRT engine(s)
"""


@pytest.fixture(scope="module")
def report(branchy_graph: Any, refuse: Any, settings: Any) -> PartitionReport:
    plan = make_plan(branchy_graph, refuse("relu.default", "sigmoid.default"), settings())
    return make_report(branchy_graph, plan, settings())


def test_text(report: PartitionReport, settings: Any) -> None:
    sources = {node.name: node.verdict.source.rpartition(":") for node in report.torch_nodes}
    expected = STATIC_TEXT.format(
        plus="+" * 50,
        and_so_on="and are listed with their op-count in the graph:",
        settings=settings(),
        file=sources["relu"][0],
        relu=sources["relu"][2],
        sigmoid=sources["sigmoid"][2],
    )
    assert report.to_text() == expected
    assert sources["relu"][0].endswith("conftest.py")


def test_text_of_a_graph_that_engines_run_wholly_leaves_empty_sections_out(
    branchy_dynamic: Any, refuse: Any, settings: Any
) -> None:
    report = make_report(branchy_dynamic, make_plan(branchy_dynamic, refuse(), settings()), settings())
    text = report.to_text()
    assert "100.00% coverage" in text
    assert "unsupported" not in text
    assert "set to run in Torch" not in text
    assert "Tensor: ((min=1, max=16), 4)@float32" in text
    assert report.engines[0].operators == report.total_operators


@pytest.mark.parametrize("size", [1, float("inf")])
def test_text_without_engines(branchy_graph: Any, refuse: Any, settings: Any, size: float) -> None:
    names = [] if size > 1 else [node.name for node in branchy_graph.graph.nodes]
    config = settings(min_block_size=size)
    report = make_report(branchy_graph, make_plan(branchy_graph, refuse(nodes=names), config), config)
    text = report.to_text()
    assert text.endswith("\n\nAggregate stats not available since no TRT Engines were generated.\n")
    assert "Recommendations" not in text
    assert f"{100.0 if size > 1 else 0.0:.2f}% coverage" in text
    assert "   Inputs: List[" in text
    assert PartitionReport.from_json(report.to_json()) == report


def test_figures_agree_with_the_graph(report: PartitionReport) -> None:
    assert report.total_operators == 16
    assert report.supported_operators == 14
    assert report.coverage == pytest.approx(14 / 16)
    assert dict(report.unsupported) == {"torch.ops.aten.relu.default": 1, "torch.ops.aten.sigmoid.default": 1}
    assert [(n.op, n.name, n.verdict.code) for n in report.torch_nodes] == [
        ("torch.ops.aten.relu.default", "relu", "TRT-F001"),
        ("torch.ops.aten.sigmoid.default", "sigmoid", "TRT-F001"),
    ]
    first = report.engines[0]
    assert (first.name, first.operators, first.parameters, first.parameter_bytes) == ("_run_on_acc_0", 3, 40, 160)
    assert dict(first.operators_by_kind) == {
        "torch.ops.aten.linear.default": 1,
        "torch.ops.aten.mul.Tensor": 1,
        "torch.ops.aten.tanh.default": 1,
    }
    assert first.flops == 2 * 3 * 8 * 4 + 2 * 3 * 8  # the product, then two elementwise operators
    assert first.memory_bytes == 4 * (3 * 4 + 3 * 8) + 160


def test_bytes_that_cross(report: PartitionReport) -> None:
    crossing = {(edge.source, edge.target): (edge.tensors, edge.bytes) for edge in report.transitions}
    assert crossing == {
        ("_run_on_acc_0", "_run_on_gpu_1"): (1, 4 * 24),
        ("_run_on_gpu_1", "_run_on_acc_2"): (1, 4 * 24),
        ("_run_on_acc_2", "_run_on_gpu_3"): (1, 4 * 12),
        ("_run_on_gpu_3", "_run_on_acc_4"): (1, 4 * 12),
    }
    assert ("_run_on_acc_2", "_run_on_acc_4") in {(edge.source, edge.target) for edge in report.edges}


def test_bridge_names_an_operator_that_would_merge_engines(report: PartitionReport) -> None:
    assert report.bridge is not None
    assert (report.bridge.operator, report.bridge.merged) == ("torch.ops.aten.relu.default", 1)


def test_json_follows_the_published_schema_and_round_trips(report: PartitionReport) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(report.to_json()), schema())
    again = PartitionReport.from_json(report.to_json())
    assert again == report
    assert again.to_text() == report.to_text()


def test_schema_notices_a_field_that_is_missing(report: PartitionReport) -> None:
    data = json.loads(report.to_json())
    del data["blocks"][0]["flops"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "not JSON"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "no partition report"),
    ],
)
def test_foreign_json_is_refused(text: str, match: str) -> None:
    with pytest.raises(PartitionError, match=match):
        PartitionReport.from_json(text)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *((("nodes", 0, "name"), name) for name in ("nobody", "relu")),
        *((("blocks", 0, "name"), name) for name in ("nobody", "inputs")),
        (("blocks", 0, "nodes", 0), "nobody"),
        (("edges", 0, "target"), "nobody"),
        (("min_block_size",), 0),
        *((("sweep", "points", 0, name), 0) for name in ("min_block_size", "engines")),
    ],
)
def test_a_report_whose_parts_do_not_fit_is_refused(
    report: PartitionReport, place: tuple[str | int, ...], name: str | int
) -> None:
    data = json.loads(report.to_json())
    owner = data
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = name
    with pytest.raises(PartitionError, match="no partition report"):
        PartitionReport.from_json(json.dumps(data))


class Scalar(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.sum(), x.shape[0]


def test_zero_dimensional_tensors_and_numbers(capture: Any, refuse: Any, settings: Any) -> None:
    gm = capture(Scalar(), torch.randn(3), dynamic=({0: torch.export.Dim("n", min=2, max=5)},))
    report = make_report(gm, make_plan(gm, refuse(), settings()), settings())
    assert str(report.outputs) == "List[Tensor: ()@float32, int]"
    assert [node.verdict.reason for node in report.torch_nodes] == [Reason.NO_COMPUTATION]


def test_graph_without_operators(capture: Any, refuse: Any, settings: Any) -> None:
    gm = capture(nn.Identity(), torch.randn(3))
    report = make_report(gm, make_plan(gm, refuse(), settings()), settings())
    assert report.coverage == 1.0
    assert "The graph consists of 0 Total Operators" in report.to_text()
    assert "<svg" in report.to_html()


def test_recommendations_read_the_sweep() -> None:
    sweep = Sweep.of_blocks([(1, 1), (1, 1), (1, 2), (50, 60), (60, 60), (0, 9)])
    found = [(item.kind, item.min_block_size, item.engines) for item in recommend(sweep, 1, 5)]
    assert found == [("minimal", 60, 1), ("moderate", 23, 2), ("current", 1, 5)]
    assert sweep.at(2).operators == 120


def test_copies_of_a_split_module_share_the_report(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_graph, refuse("relu.default"), settings())
    split = split_into_blocks(branchy_graph, plan)
    split.meta["partition_report"] = make_report(branchy_graph, plan, settings())
    assert copy.deepcopy(split).meta["partition_report"] is split.meta["partition_report"]
