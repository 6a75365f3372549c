"""`TRTModule` as a module among modules."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

from trt_core import InputError, PlanError
from trt_runtime import PlanHeader, TRTModule


def test_the_plan_is_a_buffer_and_is_not_copied(header: PlanHeader, plan: torch.Tensor) -> None:
    module = TRTModule(header, plan)
    assert dict(module.named_buffers()) == {"plan": plan}
    assert module.plan is plan
    assert module.header is header


def test_plan_and_header_must_fit(header: PlanHeader, plan: torch.Tensor) -> None:
    with pytest.raises(PlanError, match="not the one that its header describes"):
        TRTModule(header, plan.flip(0))
    with pytest.raises(PlanError, match="a plan is a contiguous uint8 tensor"):
        TRTModule(header, plan.float())


def test_repr_shows_shapes(header: PlanHeader, plan: torch.Tensor) -> None:
    text = repr(TRTModule(header, plan))
    assert "(x: float32[s0, 3]) -> (y: float16[s0*2, ?])" in text
    assert "7 layers" in text


@pytest.mark.parametrize("move", [lambda m: m.to("meta"), lambda m: m.half(), lambda m: m.double()])
def test_moving_and_casting_leave_the_plan_alone(static_engine: TRTModule, move: Any) -> None:
    model = nn.Sequential(static_engine)
    move(model)
    assert model[0].plan.device.type == "cpu"
    x = torch.randn(2, 3)
    assert torch.equal(model(x), x.relu())


def test_copies_share_the_plan(static_engine: TRTModule) -> None:
    model = nn.Sequential(nn.Linear(3, 3), static_engine)
    calls = []
    model[1].register_forward_hook(lambda *arguments: calls.append(1))
    twin = copy.deepcopy(model)
    assert twin[1].plan is static_engine.plan
    assert twin[0].weight is not model[0].weight
    x = torch.randn(2, 3)
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
    assert len(calls) == 2
    twin.eval()
    assert static_engine.training


def test_copies_of_graph_modules_share_the_plan(static_engine: TRTModule) -> None:
    class Leaf(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
            return isinstance(module, TRTModule)

    model = nn.Sequential(static_engine)
    graph_module = torch.fx.GraphModule(model, Leaf().trace(model))
    assert copy.deepcopy(graph_module).get_submodule("0").plan is static_engine.plan


def test_state_dict_holds_tensors_only(static_engine: TRTModule) -> None:
    state = nn.Sequential(static_engine).state_dict()
    assert list(state) == ["0.plan", "0._extra_state"]
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_a_state_dict_saves_and_loads_with_weights_only(
    static_engine: TRTModule, dynamic_engine: TRTModule, tmp_path: Any
) -> None:
    source, target = nn.Sequential(static_engine), nn.Sequential(dynamic_engine)
    torch.save(source.state_dict(), tmp_path / "state.pt")
    x = torch.randn(2, 3)
    assert torch.equal(target(x), x + x)
    old_plan = dynamic_engine.plan
    before = old_plan.clone()
    target.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(target(x), x.relu())
    assert dynamic_engine.header == static_engine.header
    assert torch.equal(old_plan, before), "a live engine may still use that memory"


@pytest.mark.parametrize("key", ["0.plan", "0._extra_state"])
def test_an_incomplete_state_dict_changes_nothing(static_engine: TRTModule, key: str) -> None:
    model = nn.Sequential(static_engine)
    state = model.state_dict()
    del state[key]
    with pytest.raises(RuntimeError, match=key):
        model.load_state_dict(state)
    incompatible = model.load_state_dict(state, strict=False)
    assert incompatible.missing_keys == [key]
    x = torch.randn(2, 3)
    assert torch.equal(model(x), x.relu())


def test_unexpected_keys_are_reported(static_engine: TRTModule) -> None:
    model = nn.Sequential(static_engine)
    with pytest.raises(RuntimeError, match=r"0\.engine"):
        model.load_state_dict({**model.state_dict(), "0.engine": torch.ones(1)})


def test_a_corrupt_state_dict_is_refused(static_engine: TRTModule) -> None:
    model = nn.Sequential(static_engine)
    state = model.state_dict()
    state["0.plan"] = state["0.plan"].flip(0)
    with pytest.raises(RuntimeError, match="not the one that its header describes"):
        model.load_state_dict(state)
    x = torch.randn(2, 3)
    assert torch.equal(model(x), x.relu())


def test_inputs_elsewhere_are_refused(header: PlanHeader, plan: torch.Tensor) -> None:
    module = TRTModule(dataclasses.replace(header, device="cuda"), plan)
    with pytest.raises(InputError, match="was built for cuda, its inputs lie on cpu") as caught:
        module(torch.ones(2, 3))
    assert "move the inputs to cuda" in caught.value.hint


@pytest.mark.parametrize("way", [contextlib.nullcontext, BaseTorchFunctionMode], ids=["direct", "dispatched"])
def test_a_call_between_two_engines_has_one_of_them_whole(
    static_engine: TRTModule, dynamic_engine: TRTModule, way: Any
) -> None:
    """Other threads call while an engine takes the place of another: plan and header are of the same one."""
    x = torch.ones(2, 3)
    wanted = [static_engine(x), dynamic_engine(x)]
    found = []

    class Watched(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            with way():
                found.append(static_engine(x))
            super().__setitem__(key, value)
            with way():
                found.append(static_engine(x))

    static_engine.__dict__["_buffers"] = Watched(static_engine._buffers)
    static_engine.adopt(dynamic_engine.header, dynamic_engine.plan)
    assert len(found) == 2
    assert all(any(torch.equal(made, one) for one in wanted) for made in found)
    assert torch.equal(static_engine(x), wanted[1])
