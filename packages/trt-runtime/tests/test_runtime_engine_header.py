"""Engines and headers that do not fit each other are found out, at loading or at the first run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from trt_core import InputError, PlanError
from trt_runtime import ENGINES, Binding, TRTModule


def test_a_plan_that_was_written_to_does_not_run(static_engine: TRTModule) -> None:
    static_engine(torch.ones(2, 3))
    static_engine.plan[500] += 1
    with pytest.raises(PlanError, match="not the one that its header describes"):
        static_engine(torch.ones(2, 3))


def test_a_plan_with_another_header_does_not_run(static_engine: TRTModule, dynamic_engine: TRTModule) -> None:
    with pytest.raises(PlanError, match="its header"):
        torch.ops.trt.execute_engine([torch.ones(2, 3)], static_engine.plan, dynamic_engine.header.text)


def test_foreign_bytes_are_refused_with_the_providers_reason(header: Any, plan: torch.Tensor) -> None:
    with pytest.raises(PlanError, match="cannot be loaded") as caught:
        TRTModule(header, plan)(torch.ones(2, 3))
    assert "plan" in caught.value.why


def test_a_header_with_other_bindings_is_refused(make_engine: Any, static_engine: TRTModule) -> None:
    header = static_engine.header
    x, y = header.inputs[0], header.outputs[0]
    for changes, message in (
        ({"inputs": (Binding("z", x.dtype, x.shape),)}, "no input 'z'"),
        ({"outputs": (Binding("z", y.dtype, y.shape),)}, "no output 'z'"),
        ({"inputs": (Binding("x", torch.float16, x.shape),)}, "has type float32, its header says float16"),
        ({"outputs": (y, Binding("x", x.dtype, x.shape)), "inputs": (), "ranges": ()}, "no output 'x'"),
        ({"inputs": (), "ranges": ()}, "has 2 bindings, its header says 1"),
    ):
        changed = dataclasses.replace(header, returns_tuple=True, **changes)
        with pytest.raises(PlanError, match=message):
            ENGINES.engine_for(static_engine.plan, changed.text, torch.device("cpu"))


def test_inputs_that_the_provider_dropped_are_still_taken(dynamic_engine: TRTModule) -> None:
    header = dynamic_engine.header
    unused = Binding("unused", torch.int64, ("s1", 2))
    changed = dataclasses.replace(
        header,
        inputs=(unused, *header.inputs),
        ranges=(((1, 2, 4), (2, 2, 2)), *header.ranges),
        symbols={"s0": (1, 0), "s1": (0, 0)},
    )
    engine = TRTModule(changed, dynamic_engine.plan)
    for rows in (2, 5, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(engine(torch.zeros(4, 2, dtype=torch.int64), x), x + x)
    with pytest.raises(InputError, match="'unused'"):
        engine(torch.zeros(4, 3, dtype=torch.int64), torch.ones(2, 3))


def test_a_header_with_other_output_shapes_is_found_out(static_engine: TRTModule) -> None:
    changed = dataclasses.replace(static_engine.header, outputs=(Binding("y", torch.float32, (2, 4)),))
    with pytest.raises(PlanError, match=r"has shape \(2, 3\), its header says \(2, 4\)"):
        TRTModule(changed, static_engine.plan)(torch.ones(2, 3))


@pytest.mark.parametrize("shape", [(4, 3), ("s0", 3), (2, 3, 1), (2,)])
def test_a_header_whose_inputs_the_engine_does_not_take_is_found_out(
    static_engine: TRTModule, shape: tuple[Any, ...]
) -> None:
    extents = tuple((1, 2, 8) if isinstance(extent, str) else (extent,) * 3 for extent in shape)
    symbols = {"s0": (0, 0)} if "s0" in shape else {}
    changed = dataclasses.replace(
        static_engine.header, inputs=(Binding("x", torch.float32, shape),), ranges=(extents,), symbols=symbols
    )
    given = torch.ones(*(best for _, best, _ in extents))
    with pytest.raises(PlanError, match=r"'x' of engine 'block' has shape \(2, 3\), its header says"):
        TRTModule(changed, static_engine.plan)(given)
