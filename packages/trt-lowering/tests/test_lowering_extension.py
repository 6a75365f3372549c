"""Passes of others: where they come from, when they run, and what they are held to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import CompilationSettings, LoweringError
from trt_lowering import GraphPass, installed_passes, lower

ADD, RELU = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + 1.0) * 2.0


class Drop(GraphPass):
    """Removes calls of an operator; wrong in general, which shows that it ran."""

    def __init__(self, name: str, target: Any, seen: list[str] | None = None) -> None:
        self.name, self._target, self._seen = name, target, [] if seen is None else seen

    def call(self, gm: fx.GraphModule) -> int:
        self._seen.append(self.name)
        nodes = gm.graph.find_nodes(op="call_function", target=self._target)
        for node in nodes:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        return len(nodes)


class Change(GraphPass):
    """Does to the graph what it is told."""

    def __init__(self, change: Any) -> None:
        self.name, self._change = "change", change

    def call(self, gm: fx.GraphModule) -> int:
        found = self._change(gm)
        return 1 if found is None else found  # type: ignore[no-any-return]  # what others return


@pytest.fixture(autouse=True)
def _loaded_anew() -> Iterator[None]:
    installed_passes.cache_clear()
    yield
    installed_passes.cache_clear()


def _lower(*passes: GraphPass) -> fx.GraphModule:
    program = torch.export.export(Model(), (torch.randn(2, 3),))
    return lower(program, CompilationSettings(lowering_passes=passes), preserve=lambda operator: True)


def test_passes_run_in_order() -> None:
    seen: list[str] = []
    gm = _lower(Drop("second", ADD, seen), Drop("first", RELU, seen))
    assert seen == ["second", "first"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(gm(x), x * 2.0)


def test_what_a_pass_leaves_is_cleared_away() -> None:
    def double(gm: fx.GraphModule) -> None:
        (node,) = gm.graph.find_nodes(op="call_function", target=RELU)
        with gm.graph.inserting_before(node):
            unused = gm.graph.call_function(RELU, node.args)
            unused.meta = dict(node.meta)

    assert len(_lower(Change(double)).graph.find_nodes(op="call_function", target=RELU)) == 1


def _raise(gm: fx.GraphModule) -> None:
    raise ValueError("nothing to see")


def _tell(gm: fx.GraphModule) -> str:
    return "many"


def _miss(gm: fx.GraphModule) -> None:
    {}["scale"]


def _call_python(gm: fx.GraphModule) -> None:
    (node,) = gm.graph.find_nodes(op="call_function", target=RELU)
    node.target = torch.relu


def _forget_value(gm: fx.GraphModule) -> None:
    (node,) = gm.graph.find_nodes(op="call_function", target=RELU)
    del node.meta["val"]


def _write_in_place(gm: fx.GraphModule) -> None:
    (node,) = gm.graph.find_nodes(op="call_function", target=RELU)
    node.target = torch.ops.aten.relu_.default


def _return_more(gm: fx.GraphModule) -> None:
    output = gm.graph.output_node()
    ((result,),) = output.args
    output.args = ((result, result),)


def _return_other_type(gm: fx.GraphModule) -> None:
    output = gm.graph.output_node()
    ((result,),) = output.args
    with gm.graph.inserting_before(output):
        half = gm.graph.call_function(torch.ops.aten._to_copy.default, (result,), {"dtype": torch.float16})
    half.meta = {**result.meta, "val": result.meta["val"].half()}
    output.args = ((half,),)


def _use_before_made(gm: fx.GraphModule) -> None:
    (relu,) = gm.graph.find_nodes(op="call_function", target=RELU)
    (added,) = gm.graph.find_nodes(op="call_function", target=ADD)
    added.prepend(relu)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_raise, "ValueError: nothing to see"),
        (_miss, "KeyError: 'scale'"),
        (_tell, "call returned a str"),
        (_call_python, "neither an operator overload"),
        (_forget_value, "val"),
        (_write_in_place, "writes in place"),
        (_return_more, "of 2 inputs and results 3 are left"),
        (_return_other_type, "float32"),
        (_use_before_made, "used before it has been defined"),
    ],
)
def test_a_broken_pass_is_named(change: Any, why: str) -> None:
    with pytest.raises(LoweringError, match="the lowering pass 'change' failed") as caught:
        _lower(Change(change))
    assert why in str(caught.value)
    assert "test_lowering_extension.Change" in str(caught.value)
    assert "lowering_passes" in str(caught.value)


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    metadata = folder / "passes_of_others-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: passes-of-others\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[trt_lowering.passes]\n{lines}")
    (folder / "passes_of_others.py").write_text(
        "import torch\n"
        "from trt_lowering import GraphPass\n"
        "class DropRelu(GraphPass):\n"
        "    name = 'drop_relu'\n"
        "    def call(self, gm):\n"
        "        nodes = gm.graph.find_nodes(op='call_function', target=torch.ops.aten.relu.default)\n"
        "        for node in nodes:\n"
        "            node.replace_all_uses_with(node.args[0])\n"
        "            gm.graph.erase_node(node)\n"
        "        return len(nodes)\n"
        "def broken():\n"
        "    raise OSError('not today')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "passes_of_others", raising=False)


def test_installed_passes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, relu="passes_of_others:DropRelu")
    (found,) = installed_passes()
    assert (found.name, found.value, found.error) == ("relu", "passes_of_others:DropRelu", "")
    assert not _lower().graph.find_nodes(op="call_function", target=RELU)


def test_installed_passes_can_be_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, relu="passes_of_others:DropRelu")
    monkeypatch.setenv("TRT_BLOCKED_PLUGINS", "relu")
    assert _lower().graph.find_nodes(op="call_function", target=RELU)
    assert installed_passes()[0].error == "blocked by TRT_BLOCKED_PLUGINS"


def test_installed_passes_that_fail_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(
        tmp_path, monkeypatch, bad="passes_of_others:broken", absent="passes_of_others:nothing", none="builtins:str"
    )
    with pytest.warns(UserWarning, match="was skipped"):
        errors = {item.name: item.error for item in installed_passes()}
    assert errors["bad"] == "OSError: not today"
    assert "nothing" in errors["absent"] and "not a trt_lowering.GraphPass" in errors["none"]
    assert _lower().graph.find_nodes(op="call_function", target=RELU)
