"""Engines as FX graphs: sizes as expressions, weights as buffers, and what compilers make of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_core import internals
from trt_portable.builder.inductor.tactic import TraceFailure

E = trt.ElementWiseOperation


@pytest.fixture
def engine(network: Any, load: Any, constant: Any) -> Any:
    """A convolution that halves x, put back into its own extents, and x reshaped to given numbers."""
    x = network.add_input("x", trt.float32, (-1, 3, -1, 16))
    numbers = network.add_input("numbers", trt.int32, (2,))
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 3, 3, 3)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    conv = network.add_convolution_nd(x, 4, (3, 3), *weights)
    conv.name, conv.stride_nd, conv.padding_nd = "conv", (2, 2), (1, 1)
    y = conv.get_output(0)
    flat = network.add_shuffle(y)
    flat.reshape_dims = (0, 4, -1)
    back = network.add_shuffle(flat.get_output(0))
    back.set_input(1, network.add_shape(y).get_output(0))
    pool = network.add_pooling_nd(back.get_output(0), trt.PoolingType.MAX, (3, 3))
    pool.stride_nd, pool.padding_nd, pool.padding_mode = (2, 2), (1, 1), trt.PaddingMode.EXPLICIT_ROUND_UP
    reshaped = network.add_shuffle(x)
    reshaped.set_input(1, numbers)
    network.mark_output(pool.get_output(0))
    network.mark_output(reshaped.get_output(0))
    shapes = {"x": ((1, 3, 4, 16), (2, 3, 8, 16), (8, 3, 64, 16))}
    return load(network, shapes, {"numbers": ((1, 1), (4, 192), (2000, 4000))}, [trt.BuilderFlag.REFIT])


def _run(engine: Any, execute: Any, x: torch.Tensor, numbers: tuple[int, int]) -> list[torch.Tensor]:
    given = {"x": x, "numbers": torch.tensor(numbers, dtype=torch.int32)}
    return list(execute(engine.create_execution_context(), given).values())


@pytest.mark.parametrize("shape", [(2, 3, 8, 16), (1, 3, 4, 16), (8, 3, 63, 16)])
def test_sizes_become_expressions(engine: Any, execute: Any, shape: tuple[int, ...]) -> None:
    traced = trt.trace_engine(engine)
    operators = {node.target for node in traced.graph.nodes if node.op == "call_function"}
    assert torch.ops.aten.sym_size.int in operators
    x = torch.randn(shape)
    numbers = (shape[0], 48 * shape[2])
    for found, wanted in zip(traced(x, *numbers), _run(engine, execute, x, numbers), strict=True):
        torch.testing.assert_close(found, wanted)
    assert all(isinstance(guard, str) for guard in traced.meta["guards"])


def test_optimized_models_run_while_an_engine_is_traced(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = internals.make_fx
    other = torch.compile(torch.nn.ReLU(), backend="eager")
    x = torch.randn(3)
    other(x)
    found: list[Any] = []

    def make_fx(traced: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(other, x).result())
            return traced(*inputs)

        return original(run, *args, **kwargs)

    monkeypatch.setattr(internals, "make_fx", make_fx)
    trt.trace_engine(engine)
    assert len(found) == 1
    assert torch.equal(found[0], x.relu())


def test_a_static_graph_holds_the_optimal_sizes_alone(engine: Any, execute: Any) -> None:
    traced = trt.trace_engine(engine, dynamic=False)
    assert traced.meta["guards"] == []
    assert torch.ops.aten.sym_size.int not in {node.target for node in traced.graph.nodes}
    x = torch.randn(2, 3, 8, 16)
    for found, wanted in zip(traced(x, 4, 192), _run(engine, execute, x, (4, 192)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_weights_are_buffers_with_the_values_of_now(engine: Any, execute: Any, logger: Any) -> None:
    refitter = trt.Refitter(engine, logger)
    fresh = np.ones((4, 3, 3, 3), np.float32)
    assert refitter.set_weights("conv", trt.WeightsRole.KERNEL, fresh)
    assert refitter.refit_cuda_engine()
    traced = trt.trace_engine(engine, dynamic=False)
    buffers = dict(traced.named_buffers())
    assert sorted(buffer.numel() for buffer in buffers.values()) == [4, 108]
    assert any(bool((buffer == 1).all()) for buffer in buffers.values())
    x = torch.randn(2, 3, 8, 16)
    torch.testing.assert_close(traced(x, 4, 192)[0], _run(engine, execute, x, (4, 192))[0])


def _normalized(network: Any, constant: Any) -> None:
    """Attention over a layer norm, as a transformer has it, and an elementwise end."""
    x = network.add_input("x", trt.float32, (-1, 2, -1, 8))
    scale, bias = (constant(network, np.full((1, 1, 1, 8), value)) for value in (1.5, 0.5))
    y = network.add_normalization_v2(x, scale, bias, 0b1000).get_output(0)
    kinds = (trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.UPPER_LEFT)
    z = network.add_attention_v2(y, y, y, *kinds).get_output(0)
    extent = network.add_slice(network.add_shape(z).get_output(0), (2,), (1,), (1,)).get_output(0)
    number = network.add_cast(extent, trt.float32).get_output(0)
    scalar = network.add_shuffle(number)
    scalar.reshape_dims = (1, 1, 1, 1)
    network.mark_output(network.add_elementwise(z, scalar.get_output(0), E.DIV).get_output(0))


@pytest.mark.parametrize("way", ["export", "eager", "aot_eager"])
def test_compilers_take_traced_engines(network: Any, constant: Any, load: Any, execute: Any, way: str) -> None:
    _normalized(network, constant)
    engine = load(network, {"x": ((1, 2, 2, 8), (2, 2, 4, 8), (4, 2, 32, 8))})
    traced = trt.trace_engine(engine)
    x = torch.randn(2, 2, 4, 8)
    compiled: Any
    if way == "export":
        sizes = {0: torch.export.Dim("batch", min=2, max=4), 2: torch.export.Dim("steps", min=2, max=32)}
        compiled = torch.export.export(traced, (x,), dynamic_shapes=(sizes,)).module()
    else:
        torch.compiler.reset()
        compiled = torch.compile(traced, backend=way, fullgraph=True, dynamic=True)
    for shape in ((2, 2, 4, 8), (3, 2, 17, 8)):
        x = torch.randn(shape)
        (wanted,) = execute(engine.create_execution_context(), {"x": x}).values()
        torch.testing.assert_close(compiled(x)[0], wanted)


def test_what_needs_data_cannot_be_traced(network: Any, load: Any, constant: Any) -> None:
    x = network.add_input("x", trt.float32, (2,))
    total = network.add_reduce(x, trt.ReduceOperation.SUM, 1, False).get_output(0)
    conditional = network.add_if_conditional()
    conditional.name = "choice"
    conditional.set_condition(network.add_elementwise(total, constant(network, 0.0), E.GREATER).get_output(0))
    inner = conditional.add_input(x).get_output(0)
    positive = network.add_activation(inner, trt.ActivationType.RELU).get_output(0)
    network.mark_output(conditional.add_output(positive, inner).get_output(0))
    with pytest.raises(TraceFailure, match="choice"):
        trt.trace_engine(load(network))


def test_a_stripped_engine_has_nothing_to_trace(network: Any, load: Any) -> None:
    x = network.add_input("x", trt.float32, (1, 1, 2, 2))
    conv = network.add_convolution_nd(x, 1, (1, 1), np.ones((1, 1, 1, 1), np.float32))
    network.mark_output(conv.get_output(0))
    with pytest.raises(TraceFailure, match="refit"):
        trt.trace_engine(load(network, flags=[trt.BuilderFlag.STRIP_PLAN]))
