"""Products with what follows them in one kernel on CUDA: what is fused, what is not, and that both agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.execution.program import Program
from trt_portable.fusion import cuda_products
from trt_portable.fusion.cuda_products import _Fused, fuse_cuda_products

C = 8
gpu = pytest.mark.gpu


def _weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) / 4).astype(np.float16)


def _convolution(network: Any, x: Any, extent: int, *, groups: int = 1, bias: bool = True) -> Any:
    added = [_weights(C)] if bias else []
    layer = network.add_convolution_nd(x, C, (extent, extent), _weights(C, C // groups, extent, extent), *added)
    layer.num_groups, layer.padding_nd = groups, (extent // 2, extent // 2)
    return layer.get_output(0)


def _linear(network: Any, x: Any) -> Any:
    none = trt.MatrixOperation.NONE
    matrix = network.add_constant((1, 1, C, C), _weights(1, 1, C, C)).get_output(0)
    bias = network.add_constant((1, 1, 1, C), _weights(1, 1, 1, C)).get_output(0)
    return _sum(network, network.add_matrix_multiply(x, none, matrix, none).get_output(0), bias)


def _activation(network: Any, x: Any, kind: str = "RELU") -> Any:
    return network.add_activation(x, getattr(trt.ActivationType, kind)).get_output(0)


def _sum(network: Any, first: Any, second: Any) -> Any:
    return network.add_elementwise(first, second, trt.ElementWiseOperation.SUM).get_output(0)


def _patches(network: Any, x: Any, channels: int = 3, *, rows: int = 4) -> Any:
    """Convolves windows of `rows` by 2 that touch, of the first channels."""
    first = network.add_slice(x, (0, 0, 0, 0), (2, channels, C, C), (1, 1, 1, 1)).get_output(0)
    layer = network.add_convolution_nd(first, C, (rows, 2), _weights(C, channels, rows, 2), _weights(C))
    layer.stride_nd = (rows, 2)
    return layer.get_output(0)


def _deconvolution(network: Any, x: Any, *, stride: int = 2, padding: int = 0, bias: bool = True) -> Any:
    added = [_weights(C // 2)] if bias else []
    layer = network.add_deconvolution_nd(x, C // 2, (3, 2), _weights(C, C // 2, 3, 2), *added)
    layer.stride_nd, layer.padding_nd = (3, stride), (padding, 0)
    return layer.get_output(0)


def _long_windows(network: Any, x: Any, *, window: tuple[int, int] = (1, 32), bias: bool = True) -> Any:
    """Convolves two groups of channels by windows along a line, as positions of Wav2Vec2 are."""
    added = [_weights(C)] if bias else []
    layer = network.add_convolution_nd(x, C, window, _weights(C, C // 2, *window), *added)
    layer.num_groups, layer.padding_nd = 2, (window[0] // 2, window[1] // 2)
    return layer.get_output(0)


CASES = {
    "long windows of groups": (lambda n, x: _activation(n, _long_windows(n, x)), 1),
    "long columns of groups": (lambda n, x: _long_windows(n, x, window=(40, 1), bias=False), 1),
    "wide windows of groups": (lambda n, x: _long_windows(n, x, window=(2, 32)), 0),
    "windows that touch": (lambda n, x: _deconvolution(n, x), 1),
    "windows without bias": (lambda n, x: _activation(n, _deconvolution(n, x, bias=False)), 1),
    "windows that overlap": (lambda n, x: _deconvolution(n, x, stride=1), 0),
    "windows that are cut": (lambda n, x: _deconvolution(n, x, padding=1), 0),
    "patches": (lambda n, x: _patches(n, x), 1),
    "patches that leave a rest": (lambda n, x: _patches(n, x, rows=3), 1),
    "patches of many channels": (lambda n, x: _patches(n, x, C), 0),
    "convolution and relu": (lambda n, x: _activation(n, _convolution(n, x, 3)), 1),
    "convolution without bias": (lambda n, x: _activation(n, _convolution(n, x, 3, bias=False)), 1),
    "residual": (lambda n, x: _activation(n, _sum(n, x, _convolution(n, x, 3))), 1),
    "residual without relu": (lambda n, x: _sum(n, x, _convolution(n, x, 3)), 0),
    "pointwise": (lambda n, x: _convolution(n, x, 1), 1),
    "pointwise and sigmoid": (lambda n, x: _activation(n, _convolution(n, x, 1), "SIGMOID"), 1),
    "pointwise without bias": (lambda n, x: _convolution(n, x, 1, bias=False), 0),
    "groups": (lambda n, x: _activation(n, _convolution(n, x, 3, groups=2)), 0),
    "depthwise": (lambda n, x: _activation(n, _convolution(n, x, 3, groups=C)), 1),
    "depthwise without bias": (lambda n, x: _convolution(n, x, 3, groups=C, bias=False), 1),
    "linear and relu": (lambda n, x: _activation(n, _linear(n, x)), 1),
    "linear and gelu": (lambda n, x: _activation(n, _linear(n, x), "GELU_TANH"), 1),
    "linear and erf": (lambda n, x: _activation(n, _linear(n, x), "GELU_ERF"), 0),
}


def _network(network: Any, name: str) -> None:
    x = network.add_input("x", trt.float16, (2, C, C, C))
    define, _ = CASES[name]
    y = define(network, x)
    y.name = "y"
    network.mark_output(y)


def _fused(engine: Any) -> Program:
    image = engine._state.loaded
    calls = fuse_cuda_products(image.calls, image.visible)
    program = Program(calls, image.inputs, image.outputs)
    program.load_constants()
    return program


@pytest.mark.parametrize("name", CASES)
def test_what_is_one_kernel(network: Any, load: Any, name: str) -> None:
    _network(network, name)
    engine = load(network)
    program = _fused(engine)
    assert sum(isinstance(step[0], _Fused) for step in program.steps) == CASES[name][1]
    x = torch.randn(2, C, C, C, dtype=torch.float16)
    with torch.inference_mode():  # off CUDA, layer by layer
        torch.testing.assert_close(program.run([x]), engine._state.program.run([x]))


@pytest.mark.parametrize(
    "name",
    [
        *("pointwise", "patches", "linear and gelu", "windows that touch", "windows without bias"),
        *("long windows of groups", "long columns of groups"),
    ],
)
@pytest.mark.parametrize("at_once", [0, 1 << 28])
def test_kernels_that_the_cpu_has_too(
    network: Any, load: Any, name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_products, "_MOST_WINDOWED", at_once)
    _network(network, name)
    engine = load(network)
    program = _fused(engine)
    (fused,) = [step[0] for step in program.steps if isinstance(step[0], _Fused)]
    fused.__class__ = _Alone
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, C, C, C, dtype=torch.float16).contiguous(memory_format=layout)
        with torch.inference_mode():
            if name == "pointwise" and layout is torch.contiguous_format:
                continue
            torch.testing.assert_close(program.run([x]), engine._state.program.run([x]), rtol=4e-3, atol=4e-3)


class _Alone(_Fused):
    """The kernel itself, wherever its operands are."""

    def __call__(self, inputs: Any) -> Any:
        found = self._kernel(inputs[0], inputs)
        assert found is not None
        return (found,)


def test_windows_that_leave_a_rest_are_convolved_layer_by_layer(network: Any, load: Any) -> None:
    _network(network, "patches that leave a rest")
    program = _fused(load(network))
    (fused,) = [step[0] for step in program.steps if isinstance(step[0], _Fused)]
    assert fused._kernel(torch.zeros(2, 3, C, C, dtype=torch.float16), ()) is None


@gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [2])
def test_agrees_on_a_gpu(network: Any, load: Any, name: str, rows: int) -> None:
    with trt.device("cuda"):
        _network(network, name)
        engine = load(network)
        fused = [step[0] for step in engine._state.program.steps if isinstance(step[0], _Fused)]
        assert len(fused) == CASES[name][1]
        x = torch.randn(rows, C, C, C, dtype=torch.float16, device="cuda")
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            (found,) = engine._state.program.run([x])
            plain = Program(engine._state.loaded.calls, engine._state.loaded.inputs, engine._state.loaded.outputs)
            plain.load_constants()
            torch.testing.assert_close(found, plain.run([x])[0], rtol=1e-2, atol=1e-2)
        assert not any(kernel._is_refused for kernel in fused)
