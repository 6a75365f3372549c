"""Scripts as NVIDIA's documentation has them, run with nothing but the import changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import trt_portable as trt

TRT_LOGGER = trt.Logger(trt.Logger.WARNING)


def test_mlp(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((32, 16), (10, 32))]
    biases = [rng.standard_normal((1, count)).astype(np.float32) for count in (32, 10)]

    builder = trt.Builder(TRT_LOGGER)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    tensor = network.add_input(name="input", dtype=trt.float32, shape=(-1, 16))
    for weight, bias in zip(weights, biases, strict=True):
        matrix = network.add_constant(weight.shape, trt.Weights(weight))
        product = network.add_matrix_multiply(
            tensor, trt.MatrixOperation.NONE, matrix.get_output(0), trt.MatrixOperation.TRANSPOSE
        )
        constant = network.add_constant(bias.shape, trt.Weights(bias))
        total = network.add_elementwise(product.get_output(0), constant.get_output(0), trt.ElementWiseOperation.SUM)
        relu = network.add_activation(total.get_output(0), type=trt.ActivationType.RELU)
        tensor = relu.get_output(0)
    tensor.name = "output"
    network.mark_output(tensor=tensor)

    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 20)
    profile = builder.create_optimization_profile()
    profile.set_shape("input", (1, 16), (4, 16), (8, 16))
    config.add_optimization_profile(profile)
    serialized_engine = builder.build_serialized_network(network, config)
    path = tmp_path / "sample.engine"
    with open(path, "wb") as f:
        f.write(serialized_engine)

    runtime = trt.Runtime(TRT_LOGGER)
    with open(path, "rb") as f:
        engine = runtime.deserialize_cuda_engine(f.read())
    context = engine.create_execution_context()
    x = torch.randn(3, 16)
    context.set_input_shape("input", tuple(x.shape))
    y = torch.empty(tuple(context.get_tensor_shape("output")))
    context.set_tensor_address("input", x.data_ptr())
    context.set_tensor_address("output", y.data_ptr())
    assert context.execute_async_v3(stream_handle=0)
    expected = x
    for weight, bias in zip(weights, biases, strict=True):
        expected = torch.relu(expected @ torch.from_numpy(weight).T + torch.from_numpy(bias))
    torch.testing.assert_close(y, expected)


def test_cnn_with_dynamic_batch_and_refit() -> None:
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "conv.weight": rng.standard_normal((4, 1, 5, 5)).astype(np.float32),
        "conv.bias": rng.standard_normal(4).astype(np.float32),
        "fc.weight": rng.standard_normal((10, 4 * 6 * 6)).astype(np.float32),
        "fc.bias": rng.standard_normal((1, 10)).astype(np.float32),
    }

    builder = trt.Builder(TRT_LOGGER)
    network = builder.create_network(0)
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.REFIT)
    input_tensor = network.add_input(name="data", dtype=trt.float32, shape=(-1, 1, 28, 28))
    conv = network.add_convolution_nd(
        input=input_tensor,
        num_output_maps=4,
        kernel_shape=(5, 5),
        kernel=weights["conv.weight"],
        bias=weights["conv.bias"],
    )
    conv.name = "conv"
    conv.stride_nd = (2, 2)
    network.set_weights_name(trt.Weights(weights["conv.weight"]), "conv.weight")
    pool = network.add_pooling_nd(input=conv.get_output(0), type=trt.PoolingType.MAX, window_size=trt.Dims2(2, 2))
    pool.stride_nd = trt.Dims2(2, 2)
    flat = network.add_shuffle(pool.get_output(0))
    flat.reshape_dims = (-1, 4 * 6 * 6)
    matrix = network.add_constant(weights["fc.weight"].shape, weights["fc.weight"])
    product = network.add_matrix_multiply(
        flat.get_output(0),
        trt.MatrixOperation.NONE,
        matrix.get_output(0),
        trt.MatrixOperation.TRANSPOSE,
    )
    bias = network.add_constant(weights["fc.bias"].shape, weights["fc.bias"])
    logits = network.add_elementwise(product.get_output(0), bias.get_output(0), trt.ElementWiseOperation.SUM)
    softmax = network.add_softmax(logits.get_output(0))
    softmax.axes = 1 << 1
    softmax.get_output(0).name = "prob"
    network.mark_output(tensor=softmax.get_output(0))
    profile = builder.create_optimization_profile()
    profile.set_shape("data", (1, 1, 28, 28), (4, 1, 28, 28), (16, 1, 28, 28))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    engine = trt.Runtime(TRT_LOGGER).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()

    def infer(x: torch.Tensor) -> torch.Tensor:
        assert context.set_input_shape("data", tuple(x.shape))
        y = torch.empty(tuple(context.get_tensor_shape("prob")))
        assert context.execute_v2([x.data_ptr(), y.data_ptr()])
        return y

    def eager(x: torch.Tensor) -> torch.Tensor:
        tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
        x = torch.nn.functional.conv2d(x, tensors["conv.weight"], tensors["conv.bias"], stride=2)
        x = torch.nn.functional.max_pool2d(x, 2, 2).flatten(1)
        return (x @ tensors["fc.weight"].T + tensors["fc.bias"]).softmax(1)

    for batch in (1, 16, 5):
        x = torch.randn(batch, 1, 28, 28)
        torch.testing.assert_close(infer(x), eager(x))

    refitter = trt.Refitter(engine, TRT_LOGGER)
    weights["conv.weight"] = rng.standard_normal((4, 1, 5, 5)).astype(np.float32)
    weights["conv.bias"] = rng.standard_normal(4).astype(np.float32)
    assert refitter.set_named_weights("conv.weight", trt.Weights(weights["conv.weight"]))
    assert refitter.set_weights("conv", trt.WeightsRole.BIAS, weights["conv.bias"])
    missing_layers, weights_roles = refitter.get_missing()
    assert not missing_layers and not weights_roles
    assert refitter.refit_cuda_engine()
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(infer(x), eager(x))
