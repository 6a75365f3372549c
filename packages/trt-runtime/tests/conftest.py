"""Engines for the tests of trt-runtime, built directly through TensorRT's API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from program_files import ProgramFile
from small_networks import double, relu
from torch import nn

import trt_core
from trt_core import trt
from trt_core.log import provider_logger
from trt_core.sizes.expressions import Extent
from trt_runtime import ENGINES, Binding, PlanHeader, TRTModule, save
from trt_runtime.profile_choice import Range

Define = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""Adds layers to a network: (network, input tensors) -> output tensors."""


@pytest.fixture(autouse=True)
def _portable_provider() -> Iterator[None]:
    trt_core.set_provider("portable")
    yield
    trt_core.set_provider("auto")
    ENGINES.clear()


class EngineMaker:
    """Builds engines for one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(
        self,
        define: Define,
        inputs: Sequence[Binding],
        outputs: Sequence[Binding],
        *,
        symbols: dict[str, tuple[int, int]] | None = None,
        ranges: Sequence[Sequence[Range]] | None = None,
        values: dict[str, Sequence[Sequence[int]]] | None = None,
        name: str = "block",
        returns_tuple: bool | None = None,
        flags: Sequence[str] = (),
    ) -> TRTModule:
        with trt_core.device_scope(torch.device(self.device)):
            plan = self._build(define, inputs, outputs, ranges, values or {}, flags)
        header = PlanHeader.describe(
            plan,
            inputs=inputs,
            outputs=outputs,
            device=self.device,
            symbols=symbols,
            ranges=ranges,
            name=name,
            returns_tuple=returns_tuple,
        )
        return TRTModule(header, plan)

    def _build(
        self,
        define: Define,
        inputs: Sequence[Binding],
        outputs: Sequence[Binding],
        ranges: Sequence[Sequence[Range]] | None,
        values: dict[str, Sequence[Sequence[int]]],
        flags: Sequence[str],
    ) -> torch.Tensor:
        builder = trt.Builder(provider_logger())
        network = builder.create_network(0)
        tensors = [
            network.add_input(binding.name, trt_core.to_trt(binding.dtype), _declared(binding.shape))
            for binding in inputs
        ]
        for binding, tensor in zip(outputs, define(network, tensors), strict=True):
            tensor.name = binding.name
            network.mark_output(tensor)
        config = builder.create_builder_config()
        for flag in flags:
            config.set_flag(getattr(trt.BuilderFlag, flag))
        if ranges is not None or values:
            profile = builder.create_optimization_profile()
            for binding, shape in zip(inputs, ranges or [], strict=True):
                if binding.name not in values:
                    profile.set_shape(binding.name, *zip(*shape, strict=True))
            for input_name, bounds in values.items():
                profile.set_shape_input(input_name, *bounds)
            config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
        assert plan is not None
        return torch.frombuffer(bytearray(memoryview(plan)), dtype=torch.uint8)


def _declared(shape: Sequence[Extent]) -> tuple[int, ...]:
    return tuple(extent if isinstance(extent, int) else -1 for extent in shape)


@pytest.fixture
def make_engine() -> EngineMaker:
    return EngineMaker("cpu")


@pytest.fixture
def make_cuda_engine() -> EngineMaker:
    return EngineMaker("cuda")


@pytest.fixture
def static_engine(make_engine: EngineMaker) -> TRTModule:
    """y = relu(x), (2, 3) float32."""
    return make_engine(relu, [Binding("x", torch.float32, (2, 3))], [Binding("y", torch.float32, (2, 3))])


@pytest.fixture
def dynamic_engine(make_engine: EngineMaker) -> TRTModule:
    """y = x + x, (1 to 8, 3) float32."""
    return make_engine(
        double,
        [Binding("x", torch.float32, ("s0", 3))],
        [Binding("y", torch.float32, ("s0", 3))],
        symbols={"s0": (0, 0)},
        ranges=[[(1, 4, 8), (3, 3, 3)]],
    )


@pytest.fixture
def sum_and_difference() -> Define:
    """(a, b) -> (a + b, a - b)."""

    def define(network: Any, tensors: Sequence[Any]) -> list[Any]:
        operations = (trt.ElementWiseOperation.SUM, trt.ElementWiseOperation.SUB)
        return [network.add_elementwise(*tensors, operation).get_output(0) for operation in operations]

    return define


@pytest.fixture
def two_in_two_out(make_engine: EngineMaker, sum_and_difference: Define) -> TRTModule:
    """(a + b, a - b), both (s0, s1) int32."""
    shape = ("s0", "s1")
    return make_engine(
        sum_and_difference,
        [Binding("a", torch.int32, shape), Binding("b", torch.int32, shape)],
        [Binding("total", torch.int32, shape), Binding("rest", torch.int32, shape)],
        symbols={"s0": (0, 0), "s1": (0, 1)},
        ranges=[[(1, 2, 4), (1, 2, 4)]] * 2,
    )


@pytest.fixture
def plan() -> torch.Tensor:
    """Bytes that stand for a plan where no engine runs."""
    return (torch.arange(5000) % 251).to(torch.uint8)


@pytest.fixture
def header(plan: torch.Tensor) -> PlanHeader:
    """Header of `plan`: (s0, 3) -> (2 * s0, ?)."""
    return _describe(plan)


@pytest.fixture
def change_header(header: PlanHeader) -> Callable[..., PlanHeader]:
    """Returns `header` with other fields."""
    return lambda **changes: dataclasses.replace(header, **changes)


def _describe(plan: torch.Tensor) -> PlanHeader:
    return PlanHeader.describe(
        plan,
        inputs=[Binding("x", torch.float32, ("s0", 3))],
        outputs=[Binding("y", torch.float16, (["mul", "s0", 2], None))],
        device="cpu",
        symbols={"s0": (0, 0)},
        ranges=[[(1, 4, 8), (3, 3, 3)]],
        name="block",
        settings_digest="settings",
        layer_count=7,
        build_seconds=1.5,
    )


class CompiledModel(nn.Module):
    """A block in PyTorch, an engine, and keyword inputs: what compiling returns."""

    def __init__(self, engine: TRTModule) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.engine = engine

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"result": self.engine(self.linear(x)) + bias}


@pytest.fixture
def model(dynamic_engine: TRTModule) -> CompiledModel:
    """x: (1 to 8, 3), bias: (3,), float32 -> {"result": (x, 3)}."""
    return CompiledModel(dynamic_engine).eval().requires_grad_(False)


@pytest.fixture
def saved(model: CompiledModel, tmp_path: Path) -> Path:
    """The file of `model`."""
    path = tmp_path / "model.trtp"
    save(
        model,
        path,
        arg_inputs=(torch.randn(4, 3),),
        kwarg_inputs={"bias": torch.zeros(3)},
        dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=8)}, "bias": None},
    )
    return path


class MixedProgram(nn.Module):
    """Operators, an engine, sizes, a buffer that is written to, and weights."""

    count: torch.Tensor

    def __init__(self, engine: TRTModule) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.engine = engine
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor], int]:
        y = self.engine(self.linear(x))
        self.count.add_(1)
        values, order = torch.sort(y, 0)
        return values.reshape(x.shape[0] * 3), [order, torch.full_like(y, 0.5)], x.shape[0]


_RIGHT_PROGRAM: list[bytes] = []  # exporting takes a second, and the file is the same for every test


@pytest.fixture
def parts(dynamic_engine: TRTModule, tmp_path: Path) -> ProgramFile:
    """The parts of a program that is right, to be changed."""
    if not _RIGHT_PROGRAM:
        program = torch.export.export(
            MixedProgram(dynamic_engine).eval(),
            (torch.ones(4, 3),),
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=8)},),
        )
        save(program, tmp_path / "right.trtp")
        _RIGHT_PROGRAM.append((tmp_path / "right.trtp").read_bytes())
    return ProgramFile.read(_RIGHT_PROGRAM[0])
