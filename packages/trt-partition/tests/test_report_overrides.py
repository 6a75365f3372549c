"""Converters of other packages show in the report."""

from __future__ import annotations

import json

import jsonschema
import torch
from torch import fx

from trt_core import SUPPORTED, CompilationSettings
from trt_partition import PartitionReport, make_plan, make_report
from trt_partition.report.partition_report import schema


class _Everything:
    def verdict(self, node: fx.Node) -> object:
        return SUPPORTED


def _report(packages: dict[str, str]) -> PartitionReport:
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = torch.empty(2, device="meta")
    for op in (torch.ops.aten.abs.default, torch.ops.aten.neg.default):
        node = graph.call_function(op, (node,))
        node.meta["val"] = torch.empty(2, device="meta")
    graph.output((node,))
    module, settings = fx.GraphModule(torch.nn.Module(), graph), CompilationSettings(min_block_size=1)
    plan = make_plan(module, _Everything(), settings)
    return make_report(module, plan, settings, origin=lambda node: packages.get(node.target.name(), ""))


def test_overrides_are_listed_by_operator() -> None:
    report = _report({"aten::abs": "their_package"})
    assert report.overrides == {"torch.ops.aten.abs.default": "their_package"}
    assert [node.converter for node in report.nodes] == ["their_package", ""]
    assert not _report({}).overrides


def test_overrides_survive_json() -> None:
    report = _report({"aten::neg": "their_package"})
    text = report.to_json()
    jsonschema.validate(json.loads(text), schema())
    assert PartitionReport.from_json(text).overrides == report.overrides
    assert PartitionReport.from_json(text) == report


def test_the_page_names_the_package() -> None:
    assert "their_package" in _report({"aten::abs": "their_package"}).to_html()
    assert "Converters of other packages" not in _report({}).to_html()
