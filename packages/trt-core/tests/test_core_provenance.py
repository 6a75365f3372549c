"""Where nodes come from, for reports and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import fx, nn

from trt_core.provenance import module_path, node_location, source_line


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = _Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x).relu()


@pytest.fixture(scope="module")
def exported() -> dict[str, fx.Node]:
    program = torch.export.export(_Model(), (torch.randn(2, 4),))
    return {str(node.target): node for node in program.graph.nodes if node.op == "call_function"}


def test_a_node_of_a_submodule_has_its_path(exported: dict[str, fx.Node]) -> None:
    assert module_path(exported["aten.linear.default"]) == "encoder.layers.1"


def test_a_node_of_the_root_has_no_path(exported: dict[str, fx.Node]) -> None:
    node = exported["aten.relu.default"]
    assert module_path(node) == ""
    assert node_location(node) == node.name


def test_a_location_is_path_and_name(exported: dict[str, fx.Node]) -> None:
    node = exported["aten.linear.default"]
    assert node_location(node) == f"encoder.layers.1/{node.name}"


def test_the_source_line_is_in_the_model(exported: dict[str, fx.Node]) -> None:
    file, _, line = source_line(exported["aten.relu.default"]).rpartition(":")
    assert Path(file).name == Path(__file__).name
    assert ".relu()" in Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_paths_that_torch_compile_writes_read_the_same() -> None:
    captured: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _inputs: list[torch.Tensor]) -> fx.GraphModule:
        captured.append(gm)
        return gm

    torch.compile(_Model(), backend=backend)(torch.randn(2, 4))
    paths = [module_path(node) for node in captured[0].graph.nodes if node.op == "call_function"]
    assert "encoder.layers.0" in paths
    assert "encoder.layers.1" in paths


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("L['self'].encoder.layers.0", "encoder.layers.0"),
        ("L['self'].encoder['layers'][0]", "encoder.layers.0"),
        ("L['self']", ""),
        ("encoder.layers.0", "encoder.layers.0"),
    ],
)
def test_every_way_of_writing_a_path(written: str, path: str) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"key": (written, nn.Linear)}
    assert module_path(node) == path


def test_a_node_without_provenance_is_known_by_its_name() -> None:
    node = fx.Graph().placeholder("x")
    assert (module_path(node), node_location(node), source_line(node)) == ("", "x", "")


def test_frames_of_pytorch_are_never_the_source_line() -> None:
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = (
        'File "/models/model.py", line 7, in forward\n    return self.linear(x)\n'
        'File "/env/site-packages/torch/nn/modules/linear.py", line 134, in forward\n    return F.linear()'
    )
    assert source_line(node) == "/models/model.py:7"


def test_a_line_of_pytorch_is_better_than_none() -> None:
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = 'File "/env/torch/nn/modules/linear.py", line 134, in forward'
    assert source_line(node) == "/env/torch/nn/modules/linear.py:134"


def test_the_module_that_export_invents_is_no_path() -> None:
    node = fx.Graph().placeholder("x")
    name = "_empty_nn_module_stack_from_metadata_hook"
    node.meta["nn_module_stack"] = {name: (name, name)}
    assert module_path(node) == ""
