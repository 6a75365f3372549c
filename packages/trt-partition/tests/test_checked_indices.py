"""`check_indices` leaves computed indices to PyTorch, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from trt_core import SUPPORTED, CompilationSettings, Reason, Verdict
from trt_partition import compose_support


class _Everything:
    def verdict(self, node: fx.Node) -> Verdict:
        return SUPPORTED


def _refused(function: Any, *tensors: torch.Tensor, check: bool = True) -> set[str]:
    support = compose_support(_Everything(), CompilationSettings(check_indices=check))
    graph = make_fx(function, tracing_mode="fake")(*tensors).graph
    verdicts = {node: support.verdict(node) for node in graph.nodes if node.op == "call_function"}
    refused = {node: verdict for node, verdict in verdicts.items() if not verdict.supported}
    assert all(verdict.reason is Reason.FORCED_OPERATOR for verdict in refused.values())
    return {str(node.target) for node in refused}


X, INDEX = torch.randn(4, 3), torch.tensor([[0, 1, 2]])


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x, i: nn.functional.embedding(i, x), "aten.embedding.default"),
        (lambda x, i: x.gather(0, i), "aten.gather.default"),
        (lambda x, i: x[i], "aten.index.Tensor"),
        (lambda x, i: x[:, i], "aten.index.Tensor"),
        (lambda x, i: x.index_select(0, i[0]), "aten.index_select.default"),
        (lambda x, i: x.scatter(0, i, x[:1]), "aten.scatter.src"),
        (lambda x, i: x.take(i), "aten.take.default"),
    ],
)
def test_computed_indices_stay_in_pytorch(function: Any, operator: str) -> None:
    assert _refused(function, X, INDEX) == {operator}
    assert _refused(function, X, INDEX, check=False) == set()


def test_constants_masks_and_other_operators_may_run_in_engines() -> None:
    assert _refused(lambda x, i: torch.relu(x) + i.sum(), X, INDEX) == set()
    assert _refused(lambda x: x.max(1).indices, X) == set()
    mask = torch.tensor([True, False, True, True])
    assert _refused(lambda x, m: torch.where(m[:, None], x, 0), X, mask) == set()
    held = nn.Module()
    held.register_buffer("places", INDEX)
    graph = fx.Graph()
    x, places = graph.placeholder("x"), graph.get_attr("places")
    x.meta["val"], places.meta["val"] = X, INDEX
    node = graph.call_function(torch.ops.aten.gather.default, (x, 0, places))
    node.meta["val"] = X.gather(0, INDEX)
    support = compose_support(_Everything(), CompilationSettings(check_indices=True))
    assert support.verdict(node).supported
