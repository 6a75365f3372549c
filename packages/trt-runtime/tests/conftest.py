"""Engines for the tests of trt-runtime, built directly through TensorRT's API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import trt_core
from trt_core import trt
from trt_core.extents import Extent
from trt_core.provider_log import provider_logger
from trt_runtime import ENGINES, Binding, PlanHeader, TRTModule
from trt_runtime.shape_ranges import Range

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


def relu(network: Any, tensors: Sequence[Any]) -> list[Any]:
    return [network.add_activation(tensors[0], trt.ActivationType.RELU).get_output(0)]


def double(network: Any, tensors: Sequence[Any]) -> list[Any]:
    total = network.add_elementwise(tensors[0], tensors[0], trt.ElementWiseOperation.SUM)
    return [total.get_output(0)]


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
