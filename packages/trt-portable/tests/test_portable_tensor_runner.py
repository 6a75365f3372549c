"""Runs of engines on tensors themselves: what comes back is nobody else's memory, and what a context computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from side_by_side import in_threads

import trt_portable as trt

WEIGHTS = torch.arange(12.0).view(4, 3)


def _network(builder: Any, constant: Any) -> trt.INetworkDefinition:
    """Outputs that layers make anew, and ones that are views of inputs, weights, larger results, and each other."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 4, 3))
    doubled = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    kept = constant(network, WEIGHTS.numpy())
    turned = network.add_shuffle(doubled)
    turned.first_transpose = trt.Permutation([0, 2, 1])
    flat = network.add_shuffle(kept)
    flat.reshape_dims = (12,)
    part = network.add_slice(doubled, (0, 0, 0), (1, 2, 3), (1, 1, 1))
    outputs = {
        "doubled": doubled,
        "same": network.add_identity(x).get_output(0),
        "kept": network.add_identity(kept).get_output(0),
        "flat": flat.get_output(0),
        "turned": turned.get_output(0),
        "again": network.add_identity(doubled).get_output(0),
        "part": part.get_output(0),
        "relu": network.add_activation(x, trt.ActivationType.RELU).get_output(0),
    }
    for name, value in outputs.items():
        value.name = name
        network.mark_output(value)
    return network


def _expected(x: torch.Tensor) -> list[torch.Tensor]:
    doubled = x + x
    made = [doubled, x, WEIGHTS, WEIGHTS.view(12), doubled.transpose(1, 2), doubled, doubled[:1, :2], x.relu()]
    return [each.contiguous() for each in made]


Run = Callable[[torch.Tensor], list[torch.Tensor]]


@pytest.fixture
def engine(builder: Any, load: Any, constant: Any) -> trt.ICudaEngine:
    loaded: trt.ICudaEngine = load(_network(builder, constant), {"x": ((1, 4, 3), (2, 4, 3), (8, 4, 3))})
    return loaded


@pytest.fixture
def run(engine: Any) -> Run:
    runner = engine.create_tensor_runner()

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        made = runner.run([x], [(tuple(each.shape), each.stride()) for each in _expected(x)])
        assert made is not None
        return list(made)

    return call


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from(["usual", "no_grad", "inference", "autocast"]), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_results_are_right_and_their_memory_is_their_own(run: Run, calls: list[tuple[int, str, bool]]) -> None:
    modes: dict[str, Any] = {
        "usual": lambda: torch.enable_grad(),
        "no_grad": lambda: torch.no_grad(),
        "inference": lambda: torch.inference_mode(),
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    earlier: list[tuple[torch.Tensor, torch.Tensor]] = []
    for rows, mode, overwrites in calls:
        x = torch.randn(rows, 4, 3)
        wanted = [each.clone() for each in _expected(x)]
        with modes[mode]():
            made = run(x)
            for result, right in zip(made, wanted, strict=True):
                assert torch.equal(result, right)
                assert (result.shape, result.stride()) == (right.shape, right.stride())
                assert result.is_inference() == (mode == "inference")
                assert not result.requires_grad
        spans = sorted((each.data_ptr(), each.untyped_storage().nbytes()) for each in (x, *made))
        assert all(begin + size <= then for (begin, size), (then, _) in itertools.pairwise(spans))
        assert all(each.untyped_storage().nbytes() == each.nbytes for each in made)
        earlier += zip(made, wanted, strict=True)
        if overwrites and mode != "inference":
            for result in made:  # of no later call
                result.fill_(-1)
            earlier = earlier[: -len(made)]
        assert all(torch.equal(result, right) for result, right in earlier)  # nor is an earlier one written to


def test_results_can_be_differentiated_through(run: Run) -> None:
    scale = torch.ones((), requires_grad=True)
    made = run(torch.ones(2, 4, 3))
    (made[0] * scale).sum().backward()
    assert scale.grad == 48


def test_threads_run_at_once(run: Run) -> None:
    wrong: list[int] = []

    def work(rows: int) -> None:
        for _ in range(50):
            x = torch.randn(rows, 4, 3)
            if not all(map(torch.equal, run(x), _expected(x))):
                wrong.append(rows)

    in_threads(work, (1, 2, 3, 4))
    assert not wrong


_BEHIND = {
    trt.ActivationType.RELU: torch.relu,
    trt.ActivationType.LEAKY_RELU: lambda y: torch.nn.functional.leaky_relu(y, 0.5),
    trt.ActivationType.TANH: torch.tanh,
}


@pytest.mark.parametrize("is_read", [False, True], ids=["only activated", "read besides"])
@pytest.mark.parametrize("kind", list(_BEHIND), ids=lambda kind: kind.name)
def test_an_activation_overwrites_no_product_that_is_read(
    builder: Any, load: Any, constant: Any, kind: Any, is_read: bool
) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 4))
    plain = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, plain, constant(network, WEIGHTS.numpy()), plain).get_output(0)
    activation = network.add_activation(product, kind)
    activation.alpha = 0.5
    outputs = [activation.get_output(0), *([product] if is_read else [])]
    for index, value in enumerate(outputs):
        value.name = f"y{index}"
        network.mark_output(value)
    engine = load(network, {"x": ((1, 4), (2, 4), (8, 4))})
    data = torch.tensor([[-1.0, 2.0, float("nan"), 0.5], [3.0, -4.0, 1.0, -0.5]])
    kept = data.clone()
    made = engine.create_tensor_runner().run([data], [((2, 3), (3, 1))] * len(outputs))
    wanted = data @ WEIGHTS
    torch.testing.assert_close(made[0], _BEHIND[kind](wanted), equal_nan=True)
    if is_read:
        torch.testing.assert_close(made[1], wanted, equal_nan=True)
    assert torch.equal(data.nan_to_num(), kept.nan_to_num())


def test_replaced_weights_are_read(builder: Any, logger: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    weights = network.add_constant((2,), trt.Weights(torch.tensor([1.0, 2.0]).numpy()))
    weights.name = "w"
    total = network.add_elementwise(x, weights.get_output(0), trt.ElementWiseOperation.SUM).get_output(0)
    for name, value in (("y", total), ("w_out", network.add_identity(weights.get_output(0)).get_output(0))):
        value.name = name
        network.mark_output(value)
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.REFIT)
    engine = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))
    runner, x = engine.create_tensor_runner(), torch.zeros(2)
    strided = [((2,), (1,))] * 2
    before = runner.run([x], strided)
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights("w", trt.WeightsRole.CONSTANT, trt.Weights(torch.tensor([5.0, 7.0]).numpy()))
    assert refitter.refit_cuda_engine()
    assert [each.tolist() for each in runner.run([x], strided)] == [[5.0, 7.0]] * 2
    assert [each.tolist() for each in before] == [[1.0, 2.0]] * 2


def test_a_layer_that_fails_is_reported(engine: Any, logger: Any) -> None:
    assert engine.create_tensor_runner().run([torch.ones(2, 5)], [((2, 5), (5, 1))] * 8) is None
    assert any("layer" in message for message in logger.errors)
