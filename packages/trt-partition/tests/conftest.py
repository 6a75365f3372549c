"""Models, captured graphs and support checks that the tests of partitioning share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import SUPPORTED, CompilationSettings, Device, Reason, Verdict, operator_name


@dataclass(frozen=True)
class RefuseSupport:
    """Refuses operators by the last two parts of their name (`relu.default`), and nodes by name."""

    operators: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)

    def verdict(self, node: fx.Node) -> Verdict:
        self.asked.append(node.name)
        short = ".".join(operator_name(node.target).split(".")[-2:])
        if short in self.operators or node.name in self.nodes:
            return Verdict.refuse(Reason.NO_CONVERTER, f"{short} is refused")
        return SUPPORTED


def _refuse(*operators: str, nodes: Any = ()) -> RefuseSupport:
    return RefuseSupport(frozenset(operators), frozenset(nodes))


def _capture(
    model: nn.Module, *args: Any, dynamic: Any = None, functional: bool = True, **kwargs: Any
) -> fx.GraphModule:
    program = torch.export.export(model.eval(), args, kwargs, dynamic_shapes=dynamic)
    if functional:  # and otherwise as exported: nothing is decomposed
        program = program.run_decompositions({})
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    for node in list(module.graph.nodes):
        if node.target in ("_guards_fn", torch.ops.aten._assert_tensor_metadata.default):
            module.graph.erase_node(node)
    module.recompile()
    return module


def _settings(**changes: Any) -> CompilationSettings:
    return CompilationSettings(**{"min_block_size": 1, "device": Device("cpu"), **changes})


@pytest.fixture(scope="session")
def refuse() -> Callable[..., RefuseSupport]:
    """Makes a support check that refuses operators."""
    return _refuse


@pytest.fixture(scope="session")
def capture() -> Callable[..., fx.GraphModule]:
    """Exports a model and returns its flat graph; with `functional=False` in-place operators stay."""
    return _capture


@pytest.fixture(scope="session")
def settings() -> Callable[..., CompilationSettings]:
    """Makes settings with `min_block_size=1`."""
    return _settings


class Branchy(nn.Module):
    """Three stretches of computation with `relu` and `sigmoid` between them, a tuple, a cast, a size and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, extra: dict[str, torch.Tensor]) -> dict[str, Any]:
        y = torch.tanh(self.first(x) * 2)
        y = torch.relu(y)
        y = self.second(y) + y
        left, right = torch.split(y, 4, dim=1)
        y = torch.sigmoid(left) + extra["bias"]
        z = torch.tanh(self.third(y) - right)
        return {"z": z.reshape(x.shape[0] * 4), "parts": (y, right.to(torch.float64))}


@pytest.fixture(scope="session")
def branchy() -> tuple[nn.Module, tuple[Any, ...]]:
    """The model and inputs for it: x (3, 4) and bias (4,), float32."""
    torch.manual_seed(0)
    return Branchy().eval(), (torch.randn(3, 4), {"bias": torch.randn(4)})


@pytest.fixture(scope="session")
def branchy_graph(branchy: Any) -> fx.GraphModule:
    """The captured graph of `branchy`, static."""
    return _capture(branchy[0], *branchy[1])


@pytest.fixture(scope="session")
def branchy_dynamic(branchy: Any) -> fx.GraphModule:
    """The captured graph of `branchy`, with a batch of 2 to 16."""
    batch = torch.export.Dim("batch", min=2, max=16)
    return _capture(branchy[0], *branchy[1], dynamic=({0: batch}, {"bias": {}}))
