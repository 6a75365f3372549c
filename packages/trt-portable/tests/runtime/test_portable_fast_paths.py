"""Random networks give the same values at every level and by every way of running, wherever their data lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.execution import replay

C = 6
SHAPE = (C, 8, 8)
E, A = trt.ElementWiseOperation, trt.ActivationType
ACTIVATIONS = (A.RELU, A.SIGMOID, A.TANH, A.GELU_ERF, A.GELU_TANH, A.LEAKY_RELU, A.HARD_SIGMOID, A.CLIP, A.ELU)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Net:
    """Adds layers to a network of (N, 6, 8, 8), each of which keeps that shape."""

    def __init__(self, network: trt.INetworkDefinition, half: bool) -> None:
        self.network = network
        self.type = np.float16 if half else np.float32
        self.random = np.random.default_rng(0)
        self.tensors = [network.add_input("x", trt.float16 if half else trt.float32, (-1, *SHAPE))]

    def weights(self, *shape: int) -> Any:
        return (self.random.standard_normal(shape) / 3).astype(self.type)

    def constant(self, *shape: int) -> Any:
        return self.network.add_constant(shape, self.weights(*shape)).get_output(0)

    def binary(self, x: Any, y: Any, kind: Any) -> Any:
        return self.network.add_elementwise(x, y, kind).get_output(0)

    def activation(self, x: Any, kind: Any) -> Any:
        layer = self.network.add_activation(x, kind)
        layer.alpha, layer.beta = {A.HARD_SIGMOID: (1 / 6, 0.5), A.CLIP: (-0.25, 0.5)}.get(kind, (0.5, 0.0))
        return layer.get_output(0)

    def convolution(self, x: Any, maps: int, extent: int, groups: int = 1) -> Any:
        kernel = self.weights(maps, x.shape[1] // groups, extent, extent)
        layer = self.network.add_convolution_nd(x, maps, (extent, extent), kernel, self.weights(maps))
        layer.num_groups, layer.padding_nd = groups, (extent // 2, extent // 2)
        return layer.get_output(0)

    def linear(self, x: Any, transposed: bool) -> Any:
        none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        matrix, bias = self.constant(1, 1, 8, 8), self.constant(1, 1, 1, 8)
        product = self.network.add_matrix_multiply(x, none, matrix, transpose if transposed else none)
        return self.binary(product.get_output(0), bias, E.SUM)

    def normalized(self, x: Any, axes: Sequence[int], *shape: int) -> Any:
        mask = sum(1 << axis for axis in axes)
        return self.network.add_normalization_v2(x, self.constant(*shape), self.constant(*shape), mask).get_output(0)

    def permuted(self, x: Any, *order: int) -> Any:
        layer = self.network.add_shuffle(x)
        layer.first_transpose = order
        return layer.get_output(0)

    def pooled(self, x: Any) -> Any:
        layer = self.network.add_pooling_nd(x, trt.PoolingType.AVERAGE, (3, 3))
        layer.stride_nd, layer.padding_nd = (1, 1), (1, 1)
        return layer.get_output(0)

    def joined(self, x: Any, y: Any) -> Any:
        layer = self.network.add_concatenation([x, y])
        layer.axis = 1
        return self.convolution(layer.get_output(0), C, 1)

    def rolled(self, x: Any) -> Any:
        parts = [
            self.network.add_slice(x, (0, 0, at, 0), (0, C, size, 8), (1, 1, 1, 1)) for at, size in ((3, 5), (0, 3))
        ]
        for part, size in zip(parts, (5, 3), strict=True):
            extents = self.network.add_shape(x).get_output(0)
            changed = np.array([0, 0, size - 8, 0], np.int64)
            part.set_input(2, self.binary(extents, self.network.add_constant((4,), changed).get_output(0), E.SUM))
        layer = self.network.add_concatenation([part.get_output(0) for part in parts])
        layer.axis = 2
        return layer.get_output(0)

    def squeezed(self, x: Any) -> Any:
        mean = self.network.add_reduce(x, trt.ReduceOperation.AVG, 0b1100, True).get_output(0)
        gate = self.activation(self.convolution(self.activation(mean, A.RELU), C, 1), A.HARD_SIGMOID)
        return self.binary(x, gate, E.PROD)

    def clamped(self, x: Any) -> Any:
        is_nan = self.network.add_unary(x, trt.UnaryOperation.ISNAN).get_output(0)
        return self.network.add_select(is_nan, x, self.activation(x, A.CLIP)).get_output(0)

    def attention(self, x: Any) -> Any:
        q, k, v = (self.linear(x, transposed) for transposed in (True, True, False))
        none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        scores = self.network.add_softmax(self.network.add_matrix_multiply(q, none, k, transpose).get_output(0))
        scores.axes = 0b1000
        return self.network.add_matrix_multiply(scores.get_output(0), none, v, none).get_output(0)

    def grow(self, step: str, pick: int) -> None:
        """One more tensor: a step from one or two of those that are there."""
        count = len(self.tensors)
        x, y = self.tensors[-1 - pick % min(count, 3)], self.tensors[pick // 3 % count]
        kind = ACTIVATIONS[pick % len(ACTIVATIONS)]
        self.tensors.append(
            {
                "convolution": lambda: self.convolution(x, C, 1 + 2 * (pick % 2), (1, 2, C)[pick % 3]),
                "linear": lambda: self.linear(x, pick % 2 == 0),
                "activation": lambda: self.activation(x, kind),
                "gate": lambda: self.binary(x, self.activation(x, (A.SIGMOID, A.HARD_SIGMOID)[pick % 2]), E.PROD),
                "clamp": lambda: self.clamped(x),
                "sum": lambda: self.binary(x, y, E.SUM),
                "product": lambda: self.binary(x, self.activation(y, A.TANH), E.PROD),
                "norm": lambda: self.normalized(x, (3,), 1, 1, 1, 8),
                "channel norm": lambda: self.normalized(x, (1, 2, 3), 1, C, 1, 1),
                "swap": lambda: self.permuted(x, 0, 1, 3, 2),
                "pool": lambda: self.pooled(x),
                "join": lambda: self.joined(x, y),
                "roll": lambda: self.rolled(x),
                "squeeze": lambda: self.squeezed(x),
                "attention": lambda: self.attention(x),
            }[step]()
        )


STEPS = (
    "convolution",
    "linear",
    "activation",
    "gate",
    "clamp",
    "sum",
    "product",
    "norm",
    "channel norm",
    "swap",
    "pool",
    "join",
    "roll",
    "squeeze",
    "attention",
)
PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 53)), min_size=2, max_size=9)
PLACES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=5)
"""Runs: the batch, and how many elements behind aligned memory the input and the outputs lie."""


def _define(builder: trt.Builder, steps: Sequence[tuple[str, int]], seen: int, *, half: bool = False) -> Any:
    """A network of the steps, with two outputs."""
    net = Net(builder.create_network(), half)
    for step, pick in steps:
        net.grow(step, pick)
    outputs = list(dict.fromkeys([len(net.tensors) - 1, 1 + seen % (len(net.tensors) - 1)]))
    for index, at in enumerate(outputs):
        shown = net.tensors[at]
        shown.name = f"y{index}"
        net.network.mark_output(shown)
    return net.network


def _engine(builder: trt.Builder, load: Any, network: Any, level: int) -> Any:
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    return load(network, {"x": ((1, *SHAPE), (2, *SHAPE), (4, *SHAPE))}, config=config)


def _placed(x: torch.Tensor, before: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy in the middle of other memory, and all of that memory."""
    memory = torch.full((before + x.numel() + 5,), 7.0, dtype=x.dtype, device=x.device)
    view = memory[before : before + x.numel()].view(x.shape)
    return view.copy_(x), memory


def _run(context: Any, x: torch.Tensor, before: int, behind: int) -> list[torch.Tensor]:
    """Runs on an input and into outputs that are parts of other tensors, around which nothing changes."""
    given, _ = _placed(x, before)
    names = [name for name in context.engine if name != "x"]
    assert context.set_input_shape("x", tuple(x.shape)) and context.set_tensor_address("x", given.data_ptr())
    outputs = []
    for name in names:
        view, memory = _placed(torch.zeros_like(x), behind)
        assert context.set_tensor_address(name, view.data_ptr())
        outputs.append((view, memory))
    stream = torch.cuda.current_stream().cuda_stream if x.is_cuda else 0
    assert context.execute_async_v3(stream)
    for view, memory in outputs:
        around = torch.cat((memory[:behind], memory[behind + view.numel() :]))
        assert bool((around == 7).all())
    assert torch.equal(given, x)
    return [view for view, _ in outputs]


@pytest.fixture
def _packs(compiled_wins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights are tried however few, and win wherever they compute the same."""
    monkeypatch.setattr(engine_tactic, "_LEAST_PACKED_WEIGHTS", 0)


@FEW
@given(steps=PROGRAMS, seen=st.integers(0, 9), runs=PLACES)
def test_every_level_agrees_with_the_layers_one_by_one(
    builder: Any,
    load: Any,
    logger: Any,
    layer_by_layer: Any,
    _packs: None,
    steps: list[tuple[str, int]],
    seen: int,
    runs: list[tuple[int, int, int]],
) -> None:
    logger.messages.clear()
    reference = layer_by_layer(_define(builder, steps, seen))
    engines = [_engine(builder, load, _define(builder, steps, seen), level) for level in (0, 3)]
    contexts = [engine.create_execution_context() for engine in engines]
    assert not any("computes something else" in text for _, text in logger.messages)
    for batch, before, behind in runs:
        x = torch.randn(batch, *SHAPE)
        wanted = reference(x)
        for context in contexts:
            for have, want in zip(_run(context, x, before, behind), wanted, strict=True):
                torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@settings(FEW, max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # cuDNN compiles for each shape
@given(steps=PROGRAMS, seen=st.integers(0, 9), batches=st.lists(st.sampled_from([1, 3, 4]), min_size=4, max_size=8))
def test_replay_agrees_with_direct_runs_and_the_layers(
    builder: Any,
    load: Any,
    layer_by_layer: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[str, int]],
    seen: int,
    batches: list[int],
) -> None:
    """Shapes that alternate, inputs that move, and outputs that stay: in float16, at level 0."""
    with trt.device("cuda"):
        reference = layer_by_layer(_define(builder, steps, seen, half=True), "cuda")
        engine = _engine(builder, load, _define(builder, steps, seen, half=True), 0)
        monkeypatch.setenv(replay.SWITCH, "0")
        direct = engine.create_execution_context()
        monkeypatch.delenv(replay.SWITCH)
        replayed = engine.create_execution_context()
        assert direct._execution.replay is None and replayed._execution.replay is not None
        kept = []  # so that memory is not handed out again at once
        for batch in batches:
            x = torch.randn(batch, *SHAPE, device="cuda", dtype=torch.half)
            with torch.inference_mode():
                wanted = reference(x)
            for context in (direct, replayed, replayed):
                found = _run(context, x, 128, 256)  # addresses on a GPU are aligned to 256 bytes
                kept.append(found)
                for have, want in zip(found, wanted, strict=True):
                    distance = (have.double() - want.double()).norm()
                    assert distance <= 2e-2 * want.double().norm() + 1e-2
