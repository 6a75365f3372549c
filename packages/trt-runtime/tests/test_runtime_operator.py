"""The operator under fake tensors, export and torch.compile."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trt_core import ExecutionError, InputError, PlanError
from trt_runtime import ENGINES, Binding, PlanHeader, TRTModule
from trt_runtime.operator import execute_engine


def test_schema() -> None:
    assert str(execute_engine._schema) == "trt::execute_engine(Tensor[] inputs, Tensor plan, str header) -> Tensor[]"


def test_real_and_fake_agree(dynamic_engine: TRTModule) -> None:
    arguments = ([torch.randn(2, 3)], dynamic_engine.plan, dynamic_engine.header.text)
    torch.library.opcheck(
        execute_engine, arguments, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static")
    )


def test_fake_shapes_follow_the_inputs(header: PlanHeader, plan: torch.Tensor) -> None:
    static = dataclasses.replace(header, outputs=(Binding("y", torch.float16, (["mul", "s0", 2], 5)),))
    mode = FakeTensorMode()
    with mode:
        (y,) = execute_engine([torch.empty(3, 3)], mode.from_tensor(plan), static.text)
    assert y.shape == (6, 5)
    assert y.dtype is torch.float16


def test_fake_shapes_may_be_symbolic(header: PlanHeader, plan: torch.Tensor) -> None:
    program = torch.export.export(
        TRTModule(header, plan), (torch.ones(4, 3),), dynamic_shapes=(({0: torch.export.Dim("batch", max=8)},),)
    )
    (output,) = program.graph_module.graph.output_node().args[0]
    rows, columns = output.meta["val"].shape
    (symbol,) = rows.node.expr.free_symbols
    assert rows.node.expr == 2 * symbol
    assert str(columns).startswith("u")


def test_extents_that_depend_on_data_need_a_mode_that_allows_them(header: PlanHeader, plan: torch.Tensor) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=False))
    with mode, pytest.raises(torch._subclasses.fake_tensor.DynamicOutputShapeException):
        execute_engine([torch.empty(3, 3)], mode.from_tensor(plan), header.text)


def test_meta_tensors(static_engine: TRTModule) -> None:
    x = torch.empty(2, 3, device="meta")
    (y,) = execute_engine([x], static_engine.plan.to("meta"), static_engine.header.text)
    assert y.shape == (2, 3)
    assert y.device.type == "meta"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 2**48, 2**48), r"would have shape \(0, 281474976710656, 281474976710656\)"),
        ((["mul", "s0", 2**60], 3), "would have shape"),
        ((["mul", "s0", 2**61], 3), "an extent exceeds 64 bits"),
        ((["floordiv", 8, ["mod", "s0", 4]], 3), "cannot be computed"),
    ],
)
def test_shapes_that_no_tensor_has_are_refused_whoever_asks(
    dynamic_engine: TRTModule, shape: tuple[Any, ...], message: str
) -> None:
    header = dataclasses.replace(
        dynamic_engine.header,
        outputs=(Binding("y", torch.float32, shape),),
        ranges=(((1, 1, 8), (3, 3, 3)),),
    )
    mode, plan = FakeTensorMode(), dynamic_engine.plan
    with mode, pytest.raises(PlanError, match=message):
        execute_engine([torch.empty(4, 3)], mode.from_tensor(plan), header.text)
    with pytest.raises(PlanError, match=message):
        execute_engine([torch.empty(4, 3, device="meta")], plan.to("meta"), header.text)


def test_extents_of_inputs_that_cannot_be_computed_are_refused(dynamic_engine: TRTModule) -> None:
    header = dynamic_engine.header
    (x,) = header.inputs
    other = Binding("other", torch.float32, (["floordiv", 8, ["mod", "s0", 4]],))
    inputs, ranges = (x, other), (((1, 1, 8), (3, 3, 3)), ((0, 8, 8),))
    header = dataclasses.replace(header, inputs=inputs, ranges=ranges)
    with pytest.raises(PlanError, match="the shape of 'other' in engine 'block' cannot be computed"):
        execute_engine(
            [torch.empty(4, 3, device="meta"), torch.empty(8, device="meta")], dynamic_engine.plan, header.text
        )


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [((3, 3), torch.float64, "has type float64"), ((3,), torch.float32, "has rank 1"), ((3, 4), torch.float32, "is 4")],
)
def test_bad_inputs_are_found_while_tracing(
    header: PlanHeader, plan: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, message: str
) -> None:
    mode = FakeTensorMode()
    with mode, pytest.raises(InputError, match=message):
        execute_engine([torch.empty(shape, dtype=dtype)], mode.from_tensor(plan), header.text)


def test_other_devices_are_found_while_tracing(header: PlanHeader, plan: torch.Tensor) -> None:
    mode = FakeTensorMode()
    with mode, pytest.raises(InputError, match="built for cpu, its inputs lie on cuda"):
        execute_engine([torch.empty(2, 3, device="cuda")], mode.from_tensor(plan), header.text)


class _Around(torch.nn.Module):
    def __init__(self, engine: torch.nn.Module) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.engine(x.sin()).cos()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_without_graph_breaks(dynamic_engine: TRTModule, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    model = _Around(dynamic_engine)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (2, 5, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), model(x))


def test_results_need_no_gradient(static_engine: TRTModule) -> None:
    assert not static_engine(torch.randn(2, 3)).requires_grad


class _Weighted(_Around):
    """Has a weight before its engine, and one behind it."""

    def __init__(self, engine: torch.nn.Module) -> None:
        super().__init__(engine)
        self.before, self.behind = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self.engine(self.before(x)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_gradient_that_is_asked_for_of_a_captured_engine_is_an_error(dynamic_engine: TRTModule, backend: str) -> None:
    """PyTorch would warn of an operator without one, and leave it out."""
    torch._dynamo.reset()
    model, x = _Weighted(dynamic_engine), torch.randn(2, 3)
    compiled = torch.compile(model, backend=backend)
    result = compiled(x)
    with torch.no_grad():
        torch.testing.assert_close(result, model(x))
    with pytest.raises(ExecutionError, match=r"no gradients\n  where: backward\(\) through engine 'block'"):
        result.sum().backward()


def test_gradients_behind_a_captured_engine_are_those_of_eager(dynamic_engine: TRTModule) -> None:
    torch._dynamo.reset()
    model, x = _Weighted(dynamic_engine), torch.randn(2, 3)
    model.before.requires_grad_(False)
    torch.compile(model, backend="aot_eager")(x).sum().backward()
    wanted = (2 * model.before(x)).sum(0).expand(3, 3)
    torch.testing.assert_close(model.behind.weight.grad, wanted)


def test_dynamo_leaves_alone_what_runs_an_engine(dynamic_engine: TRTModule) -> None:
    """Where it could not capture a call, it meets the frames of what is called."""
    torch._dynamo.reset()

    @torch.compiler.disable(recursive=False)
    def not_captured(x: torch.Tensor) -> torch.Tensor:
        return ENGINES.run([x], dynamic_engine.plan, dynamic_engine.header)[0]

    compiled = torch.compile(lambda x: not_captured(x.sin()).cos(), backend="eager")
    for rows in (2, 4, 5):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), (2 * x.sin()).cos())


def test_exported_program_runs(dynamic_engine: TRTModule) -> None:
    batch: Any = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(_Around(dynamic_engine), (torch.randn(4, 3),), dynamic_shapes=({0: batch},))
    for rows in (1, 8):
        x = torch.randn(rows, 3)
        assert torch.equal(program.module()(x), (2 * x.sin()).cos())
