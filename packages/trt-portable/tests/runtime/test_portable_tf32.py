"""Engines that were built without TF32 run without it, whatever PyTorch allows, and change nothing for others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from side_by_side import in_fork

import trt_portable as trt
from trt_portable.execution.launcher import tf32_switched_off


def _allowed() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def _allow(convolutions: bool, products: bool) -> None:
    # by a function, since PyTorch's own test tools, which other tests import, freeze the attribute for the process
    torch.backends.cudnn.set_flags(_allow_tf32=convolutions, _fp32_precision=None)
    torch.backends.cuda.matmul.allow_tf32 = products


@pytest.fixture(autouse=True)
def allow_tf32() -> Iterator[None]:
    """TF32 is allowed, as applications often have it."""
    before = _allowed()
    _allow(True, True)
    yield
    _allow(*before)


@pytest.mark.parametrize("disabled", [True, False])
def test_the_flag_of_the_builder_decides(
    disabled: bool, builder: trt.Builder, load: Any, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []
    compute = trt.IActivationLayer._compute

    def watched(layer: Any, inputs: Any) -> Any:
        if inputs[0].device.type == "cpu":  # shapes are inferred without values
            seen.append(_allowed())
        return compute(layer, inputs)

    network = builder.create_network()
    x = network.add_input("x", trt.float32, (3,))
    network.mark_output(network.add_activation(x, trt.ActivationType.TANH).get_output(0))
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    if disabled:
        config.clear_flag(trt.BuilderFlag.TF32)
    monkeypatch.setattr(trt.IActivationLayer, "_compute", watched)
    engine = load(network, config=config)
    seen.clear()
    execute(engine.create_execution_context(), {"x": torch.ones(3)})
    assert seen == [(not disabled, not disabled)]
    assert _allowed() == (True, True)


def test_it_is_put_back_by_the_last_of_several_runs() -> None:
    entered, leave = threading.Event(), threading.Event()

    def run() -> None:
        with tf32_switched_off():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait(10)
    with pytest.raises(KeyError), tf32_switched_off():
        raise KeyError
    assert _allowed() == (False, False)  # the other one runs on
    leave.set()
    thread.join()
    assert _allowed() == (True, True)


def test_what_was_set_by_the_newer_interface_is_put_back() -> None:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = products.fp32_precision, convolutions.fp32_precision
    try:
        products.fp32_precision, convolutions.fp32_precision = "tf32", "ieee"  # the older one refuses to answer now
        with tf32_switched_off():
            assert (products.fp32_precision, convolutions.fp32_precision) == ("ieee", "ieee")
        assert (products.fp32_precision, convolutions.fp32_precision) == ("tf32", "ieee")
    finally:
        products.fp32_precision, convolutions.fp32_precision = before


@pytest.mark.gpu
@pytest.mark.parametrize("disabled", [True, False])
def test_convolutions_keep_their_digits(disabled: bool, builder: trt.Builder, load: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(64, 64, 3, 3), torch.randn(1, 64, 32, 32, device="cuda")
    exact = torch.nn.functional.conv2d(x.double(), weight.double().cuda())
    with trt.device("cuda"):
        network = builder.create_network()
        source = network.add_input("x", trt.float32, tuple(x.shape))
        layer = network.add_convolution_nd(source, 64, (3, 3), trt.Weights(weight.numpy()), trt.Weights(trt.float32))
        network.mark_output(layer.get_output(0))
        config = builder.create_builder_config()
        config.builder_optimization_level = 0
        if disabled:
            config.clear_flag(trt.BuilderFlag.TF32)
        context = load(network, config=config).create_execution_context()
        name = context.engine.get_tensor_name(1)
        for _ in range(3):  # later runs are replayed
            y = torch.empty_like(exact, dtype=torch.float32)
            context.set_tensor_address("x", x.data_ptr())
            context.set_tensor_address(name, y.data_ptr())
            assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
            torch.cuda.synchronize()
            error = ((y - exact).abs().max() / exact.abs().max()).item()
            assert error < 2e-6 if disabled else error > 1e-5  # float32 keeps 24 bits, TF32 keeps 11


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_processes_that_another_thread_forks_meanwhile_have_it_as_it_was() -> None:
    """The run goes on here alone, so nobody puts it back there; runs there put back what they find."""

    def runs_again() -> bool:
        before = _allowed()
        with tf32_switched_off():
            assert _allowed() == (False, False)
        return before == _allowed() == (True, True)

    with tf32_switched_off():
        assert in_fork(runs_again)
        assert _allowed() == (False, False)
    assert _allowed() == (True, True)
