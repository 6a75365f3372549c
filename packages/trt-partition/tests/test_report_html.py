"""The HTML page: self-contained, safe, and alive in a real browser where there is one."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import CompilationSettings, Reason, Verdict
from trt_partition import PartitionReport, make_plan, make_report
from trt_partition.report.partition_report import human_flops

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")


class Collector(HTMLParser):
    """Collects elements and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.blocks: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [given[name] or "" for name in ("src", "href", "action", "data") if name in given]
        if "data-block" in given:
            self.blocks.append(given["data-block"] or "")


@pytest.fixture(scope="module")
def report(branchy_graph: Any, refuse: Any, settings: Any) -> PartitionReport:
    plan = make_plan(branchy_graph, refuse("relu.default", "sigmoid.default"), settings())
    return make_report(branchy_graph, plan, settings())


@pytest.fixture(scope="module")
def large_report(refuse: Any) -> PartitionReport:
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = torch.empty(4, device="meta")
    for index in range(10_000):
        target = torch.ops.aten.sigmoid.default if index % 5 == 4 else torch.ops.aten.tanh.default
        node = graph.call_function(target, (node,))
        node.meta["val"] = torch.empty(4, device="meta")
    graph.output((node,))
    gm = fx.GraphModule(nn.Module(), graph)
    settings = CompilationSettings(min_block_size=1)
    return make_report(gm, make_plan(gm, refuse("sigmoid.default"), settings), settings)


def _embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_page_loads_nothing(report: PartitionReport) -> None:
    page = report.to_html()
    collected = Collector(page)
    assert collected.addresses == []
    assert not {"link", "img", "iframe", "object", "embed"} & set(collected.tags)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_page_shows_every_block_and_holds_every_node(report: PartitionReport) -> None:
    page = report.to_html(title="Branchy & co")
    assert "<title>Branchy &amp; co</title>" in page
    assert Collector(page).blocks == [block.name for block in report.blocks]
    data = _embedded(page)
    assert [node[1] for node in data["nodes"]] == [node.name for node in report.nodes]
    assert {name: len(nodes) for name, nodes in data["blocks"].items()} == {b.name: b.operators for b in report.blocks}
    assert "would leave 2 engine(s) of 3" in page


def test_text_from_outside_cannot_become_markup(report: PartitionReport) -> None:
    hostile = Verdict.refuse(Reason.BUILD_FAILED, "</script><script>alert(1)</script>")
    nodes = tuple(dataclasses.replace(node, verdict=hostile) for node in report.nodes)
    page = dataclasses.replace(report, nodes=nodes).to_html(title="<b>x</b>")
    assert "<script>alert" not in page
    assert "<title>&lt;b&gt;" in page
    assert any("</script>" in node[6] for node in _embedded(page)["nodes"])


def test_page_explains_the_reasons_that_it_names(report: PartitionReport) -> None:
    page = report.to_html()
    met = {node.verdict.code for node in report.torch_nodes}
    assert met and set(re.findall(r'<h3 id="(trt-f\d+)">', page)) == {code.lower() for code in met}
    assert html.escape(Reason.from_code(min(met)).advice) in page
    assert 'const reasons = "docs/reasons.html"' in report.to_html(reasons="docs/reasons.html")


def test_page_grows_with_data_not_with_elements(report: PartitionReport, large_report: PartitionReport) -> None:
    """Rows are made while they are in view, so nodes add no elements to the page."""
    per_block = (len(Collector(large_report.to_html()).tags) - len(Collector(report.to_html()).tags)) / len(
        large_report.blocks
    )
    assert per_block < 12


def test_operations_are_readable() -> None:
    assert human_flops(3_640_000_000) == "3.64 GFLOP"


@pytest.mark.skipif(not BROWSER, reason="no Chromium here")
@pytest.mark.parametrize("which", ["report", "large_report"])
def test_browser_draws_rows_and_links(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Chromium runs the script: rows of the first block and of the fallback table are there, only those in view."""
    report: PartitionReport = request.getfixturevalue(which)
    path = tmp_path / "report.html"
    path.write_text(report.to_html(), encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=3000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = re.findall(r'<div class="row[^"]*"', done.stdout)
    assert report.blocks[0].operators <= len(rows) < 80
    assert f"Nodes of {report.blocks[0].name}" in done.stdout
    assert 'href="#trt-f001"' in done.stdout and 'id="trt-f001"' in done.stdout
    assert f"{len(report.torch_nodes)} of {len(report.torch_nodes)} nodes" in done.stdout
