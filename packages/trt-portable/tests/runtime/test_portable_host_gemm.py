"""Which kernel computes each product with a matrix on the CPU: all compute the same, and the fastest is remembered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.autotune.clock import ColdWeights
from trt_portable.builder.autotune.engine_tactic import ProductRace
from trt_portable.fusion import packed_products as prepack_products
from trt_portable.fusion.epilogues import LAYERS, MKL, ONEDNN, Epilogue, LinearForm, OneByOne, ProductCase
from trt_portable.fusion.packed_products import (
    MklLinear,
    PrepackedLinear,
    has_mkl_products,
    has_prepacked_kernels,
)
from trt_portable.layers.fused import LinearLayer
from trt_portable.layers.sources import IIdentityLayer
from trt_portable.network.serialization import leaf_entries

pytestmark = pytest.mark.skipif(not has_prepacked_kernels(), reason="this PyTorch has no kernels for packed weights")

DEPTH, STEPS = 6, 3
KINDS = {ONEDNN: PrepackedLinear, MKL: MklLinear, LAYERS: OneByOne}
NAMES = [ONEDNN, LAYERS, pytest.param(MKL, marks=pytest.mark.skipif(not has_mkl_products(), reason="without MKL"))]


class Net:
    """Products of (N, 3, 6), N up to 4, by matrices of both orders, with and without what follows; one in a loop."""

    def __init__(self, builder: trt.Builder) -> None:
        self.network = builder.create_network()
        self._builder = builder
        self._random = np.random.default_rng(0)
        x = self.network.add_input("x", trt.float32, (-1, STEPS, DEPTH))
        for index, y in enumerate((self._chain(x), self._recurrent(x))):
            y.name = f"y{index}"
            self.network.mark_output(y)

    def _constant(self, *shape: int, name: str = "") -> Any:
        layer = self.network.add_constant(shape, (self._random.standard_normal(shape) / 3).astype(np.float32))
        layer.name = name or layer.name
        return layer.get_output(0)

    def _linear(self, x: Any, columns: int, *, transposed: bool, bias: bool = True, name: str = "") -> Any:
        none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        lead, depth = [1] * (len(x.shape) - 2), x.shape[-1]
        matrix = self._constant(*lead, *((columns, depth) if transposed else (depth, columns)), name=name)
        y = self.network.add_matrix_multiply(x, none, matrix, transpose if transposed else none).get_output(0)
        return self._sum(y, self._constant(*lead, 1, columns)) if bias else y

    def _sum(self, x: Any, y: Any) -> Any:
        return self.network.add_elementwise(x, y, trt.ElementWiseOperation.SUM).get_output(0)

    def _chain(self, x: Any) -> Any:
        y = self._linear(x, 2 * DEPTH, transposed=True, name="refitted")
        y = self.network.add_activation(y, trt.ActivationType.GELU_ERF).get_output(0)
        y = self._sum(self._linear(y, DEPTH, transposed=False), x)
        return self._linear(y, 5, transposed=False, bias=False)

    def _recurrent(self, x: Any) -> Any:
        """Along the steps: tanh(state @ matrix + bias + x)."""
        loop = self.network.add_loop()
        loop.add_trip_limit(self.network.add_constant((), np.array(STEPS, np.int32)).get_output(0), trt.TripLimit.COUNT)
        first = self.network.add_reduce(x, trt.ReduceOperation.SUM, 1 << 1, False).get_output(0)
        state = loop.add_recurrence(first)
        step = loop.add_iterator(x, 1).get_output(0)
        y = self._sum(self._linear(state.get_output(0), DEPTH, transposed=True), step)
        state.set_input(1, self.network.add_activation(y, trt.ActivationType.TANH).get_output(0))
        return loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0)

    def plan(self, *, cache: Any = None) -> bytes:
        config = self._builder.create_builder_config()
        config.set_flag(trt.BuilderFlag.REFIT)
        profile = self._builder.create_optimization_profile()
        profile.set_shape("x", (0, STEPS, DEPTH), (2, STEPS, DEPTH), (4, STEPS, DEPTH))
        config.add_optimization_profile(profile)
        if cache is not None:
            assert config.set_timing_cache(cache, False)
        return bytes(self._builder.build_serialized_network(self.network, config))


@pytest.fixture
def net(builder: trt.Builder, compiled_wins: None, monkeypatch: pytest.MonkeyPatch) -> Net:
    """Packed weights are tried however few, and always win."""
    monkeypatch.setattr(engine_tactic, "_LEAST_PACKED_WEIGHTS", 0)
    return Net(builder)


def computes(engine: trt.ICudaEngine) -> list[Any]:
    """What computes the products, outside of loops and in them."""
    found = []
    for compute, *_ in engine._state.executable.steps:  # type: ignore[attr-defined]
        found += [step[0] for step in compute._body.program.steps] if hasattr(compute, "_body") else [compute]
    return [compute for compute in found if isinstance(compute, tuple(KINDS.values()))]


def implementations(engine: trt.ICudaEngine) -> list[str]:
    """The kernels that a plan names."""
    named = (layer["implementation"] for layer in leaf_entries(engine._state.structure["layers"]))
    return [name for name in named if name]


def agree(engine: trt.ICudaEngine, execute: Callable[..., dict[str, torch.Tensor]], rows: int) -> None:
    x = torch.randn(rows, STEPS, DEPTH)
    found = execute(engine.create_execution_context(), {"x": x})
    with torch.inference_mode():
        expected = engine._state.program.run([x])
    for index, value in enumerate(expected):
        torch.testing.assert_close(found[f"y{index}"], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_computes_the_same(
    net: Net, logger: Any, execute: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(engine_tactic, "_raced_products", lambda *_: name)
    engine = trt.Runtime(logger).deserialize_cuda_engine(net.plan())
    assert implementations(engine) == [name] * 4
    assert [type(compute) for compute in computes(engine)] == [KINDS[name]] * 4
    for rows in (2, 4, 2, 1):
        agree(engine, execute, rows)
    with torch.inference_mode():
        assert [y.shape[0] for y in engine._state.executable.run([torch.zeros(0, STEPS, DEPTH)])] == [0, 0]
    refitter = trt.Refitter(engine, logger)
    fresh = np.ones((1, 2 * DEPTH, DEPTH), np.float32)
    assert refitter.set_weights("refitted", trt.WeightsRole.CONSTANT, fresh) and refitter.refit_cuda_engine()
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            agree(engine, execute, 2)
    finally:
        torch.set_num_threads(threads)


def test_a_second_build_races_nothing(net: Net, builder: trt.Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    names = iter([LAYERS, ONEDNN, LAYERS, ONEDNN])
    monkeypatch.setattr(engine_tactic, "_raced_products", lambda *_: next(names))
    first = net.plan(cache=cache)
    monkeypatch.setattr(engine_tactic, "_raced_products", lambda *_: pytest.fail("raced again"))
    assert Net(builder).plan(cache=cache) == first


def test_a_kernel_that_is_missing_gives_way(
    net: Net, logger: Any, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_tactic, "_raced_products", lambda *_: MKL)
    monkeypatch.setattr(prepack_products, "has_mkl_products", lambda: True)
    monkeypatch.setattr(engine_tactic.RacedProduct, "__call__", _as_layers)
    plan = net.plan()
    monkeypatch.setattr(prepack_products, "has_mkl_products", lambda: False)
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert implementations(engine) == [MKL] * 4
    assert [type(compute) for compute in computes(engine)] == [PrepackedLinear] * 4
    agree(engine, execute, 3)


def _as_layers(product: Any, inputs: Any) -> Any:
    product.name = MKL
    return product.ways[LAYERS](inputs)


class Weights(ColdWeights):
    """Says how long a way takes, one time for each round.

    Args:
        seconds: By name of the way.
    """

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        super().__init__(0)
        self.seconds = {name: iter(times) for name, times in seconds.items()}
        self.ran = ""

    def ways(self) -> dict[str, Any]:
        return {name: functools.partial(self._run, name) for name in self.seconds}

    def _run(self, name: str, inputs: Any) -> Any:
        self.ran = name
        return inputs

    def least_seconds(self, run: Callable[[], object], warm: torch.Tensor) -> float:
        run()
        seconds = next(self.seconds[self.ran])
        if seconds < 0:
            raise RuntimeError("no such kernel")
        return seconds


CASE = ProductCase(4, LinearForm(is_transposed=True, has_bias=False), Epilogue())


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({ONEDNN: [1, 1, 1], MKL: [0.9, 0.9, 0.9], LAYERS: [1.1, 1.1, 1.1]}, MKL),
        ({ONEDNN: [0.99, 1, 1], MKL: [1, 1, 1], LAYERS: [1, 0.98, 1]}, MKL),  # all alike
        ({ONEDNN: [1, 1, 1], MKL: [1.2, 1.2, 1.2], LAYERS: [0.98, 1, 1]}, ONEDNN),
        ({ONEDNN: [1, 1.5, 1.4], MKL: [1.2, 0.7, 1.3], LAYERS: [1.1, 1.4, 1.5]}, MKL),  # at last undisturbed
        ({ONEDNN: [1], MKL: [2], LAYERS: [1.4]}, ONEDNN),  # no second round
        ({ONEDNN: [1], MKL: [-1], LAYERS: [2]}, ONEDNN),
        ({ONEDNN: [1, -1], LAYERS: [1.2, 1.2, 1.2]}, LAYERS),
        ({ONEDNN: [-1], LAYERS: [-1]}, LAYERS),
    ],
)
def test_the_fastest_kernel_that_runs_is_taken(seconds: dict[str, list[float]], fastest: str) -> None:
    weights = Weights(seconds)
    notes: list[str] = []
    race = ProductRace(weights, notes.append)
    layers = [IIdentityLayer._create(), LinearLayer._create()]
    product = race(layers[1], CASE, weights.ways())
    assert race.names(layers) == {1: ONEDNN}  # it has not run
    product((torch.zeros(2, 4),))
    assert race.names(layers) == {1: fastest}
    failing = [name for name, times in seconds.items() if times[-1] < 0]
    why = "not available here for (2, 4): RuntimeError: no such kernel"
    assert notes == [f"products by {name}: {why}" for name in failing]


def test_equal_products_are_raced_once() -> None:
    weights = Weights({ONEDNN: [2, 2], LAYERS: [1, 1]})
    race = ProductRace(weights, pytest.fail)
    layers = [LinearLayer._create() for _ in range(3)]
    products = [race(layer, CASE, weights.ways()) for layer in layers]
    for product, rows in zip(products, (2, 2, 3), strict=True):
        product((torch.zeros(rows, 4),))
    assert race.names(layers) == dict.fromkeys(range(3), LAYERS)
    assert [list(times) for times in weights.seconds.values()] == [[], []]
