"""A compiled model has the weights of the time when it was compiled, all of them, wherever they are computed with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import trt_frontends


class Mixed(nn.Module):
    """Its first layer runs in PyTorch, its second one in an engine; both have tensors of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("calls", torch.zeros(()))
        self.offset = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = torch.sin(self.first(x)) + torch.sin(self.table * self.offset)
        return torch.relu(self.second(x) + self.table * self.offset)


CHANGES: dict[str, Callable[[Mixed], object]] = {
    "in place": lambda model: [value.mul_(2) for value in model.parameters()],
    "data": lambda model: [setattr(value, "data", value.data * 2) for value in model.parameters()],
    "through data": lambda model: [value.data.mul_(2) for value in model.parameters()],
    "load_state_dict": lambda model: model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}),
    "new parameters": lambda model: setattr(model, "first", nn.Linear(4, 4)),
    "buffer and attribute": lambda model: (model.table.mul_(2), model.offset.add_(1)),
}
IN_PYTORCH = {"torch.ops.aten.sin.default", "torch.ops.aten.linear.default"}


@pytest.mark.parametrize("from_program", [False, True])
@pytest.mark.parametrize("in_pytorch", [frozenset({"torch.ops.aten.sin.default"}), frozenset(IN_PYTORCH), frozenset()])
def test_changes_of_the_model_reach_all_of_what_was_compiled_or_nothing(
    in_pytorch: frozenset[str], from_program: bool
) -> None:
    model, x = Mixed().eval(), torch.randn(2, 4)
    source = torch.export.export(model, (x,)) if from_program else model
    compiled = trt_frontends.compile(source, arg_inputs=(x,), min_block_size=1, torch_executed_ops=set(in_pytorch))
    with torch.no_grad():
        wanted = model(x).clone()
        for change in CHANGES.values():
            change(model)
            torch.testing.assert_close(compiled(x), wanted)
        assert not torch.allclose(model(x), wanted)


def test_what_the_model_writes_to_is_its_own() -> None:
    model, x = Mixed().eval(), torch.randn(2, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    before = model.calls.item()
    compiled(x)
    compiled(x)
    assert model.calls.item() == before + 2
    with torch.no_grad():
        model(x)
    assert model.calls.item() == before + 3


def test_tied_weights_stay_one_tensor() -> None:
    model, x = Mixed().eval(), torch.randn(2, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1, torch_executed_ops=IN_PYTORCH)
    weights = [value for name, value in compiled.named_parameters(remove_duplicate=False) if "weight" in name]
    assert len(weights) == 2
    assert weights[0] is weights[1]
    assert weights[0] is not model.first.weight
