"""Models that other libraries have quantized compile, stay quantized in the engine, and compute what eager does."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_layers import MXFP8, NVFP4, InBlocks
from torch import nn
from torch.nn import functional

import trt_frontends
from trt_core import Reason
from trt_runtime import TRTModule

pytestmark = pytest.mark.sampled(4)


def compiled(module: Any, x: torch.Tensor, **settings: Any) -> Any:
    return trt_frontends.compile(module, arg_inputs=(x,), optimization_level=0, min_block_size=1, **settings)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("Int8WeightOnlyConfig", {}),
        ("Float8WeightOnlyConfig", {}),
        ("Int8DynamicActivationInt8WeightConfig", {}),
        ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4}),
        ("Int8DynamicActivationIntxWeightConfig", {"weight_dtype": torch.int4}),
    ],
)
def test_torchao_models(config: str, options: dict[str, Any]) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    if "Intx" in config:
        name = "granularity" if "Weight" in config and "Dynamic" not in config else "weight_granularity"
        options = {**options, name: torchao.PerGroup(32)}
    model, x = mlp(), torch.randn(5, 64)
    torchao.quantize_(model, getattr(torchao, config)(**options))
    expected = model(x)
    result = compiled(model, x)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), expected, rtol=1e-4, atol=1e-5)


FORMATS = {
    **dict.fromkeys(("int8_weight_only", "int4_weight_only", "float8_weight_only")),  # of our own
    "Int8WeightOnlyConfig": {},
    "IntxWeightOnlyConfig": {"weight_dtype": torch.int4},
    "Float8WeightOnlyConfig": {},
}


@pytest.mark.parametrize("name", FORMATS)
def test_weights_of_few_bits_give_the_same_by_every_way(name: str, tmp_path: Path) -> None:
    options = FORMATS[name]
    model, x = mlp(), torch.randn(5, 64)
    if options is None:
        config = trt_frontends.QuantizationConfig(dtype=name, group_size=32)
        source: Any = trt_frontends.quantize(model, [x], config)
        eager = source.module()
    else:
        torchao = pytest.importorskip("torchao.quantization")
        if name.startswith("Intx"):
            options = {**options, "granularity": torchao.PerGroup(32)}
        torchao.quantize_(model, getattr(torchao, name)(**options))
        source = eager = model
    expected = eager(x)
    result = compiled(source, x)
    assert result.meta["partition_report"].coverage == 1.0
    found = result(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    trt_frontends.save(result, tmp_path / "model.trtp")
    assert torch.equal(trt_frontends.load(tmp_path / "model.trtp")(x), found)
    optimized = torch.compile(eager, backend="torch_tensorrt", options={"optimization_level": 0, "min_block_size": 1})
    torch.testing.assert_close(optimized(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_torchao_weights_with_zero_points_stay_small(bits: int, tmp_path: Path) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model, x = nn.Linear(256, 512).eval(), torch.randn(3, 256)
    with torch.no_grad():
        model.weight.abs_()  # zero points far from 0
    dtype = torch.int4 if bits == 4 else torch.int8
    torchao.quantize_(
        model,
        torchao.IntxWeightOnlyConfig(
            weight_dtype=dtype, granularity=torchao.PerGroup(64), mapping_type=torchao.MappingType.ASYMMETRIC
        ),
    )
    expected = model(x)
    result = compiled(model, x)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), expected, rtol=1e-4, atol=1e-5)
    (engine,) = (child for child in result.modules() if isinstance(child, TRTModule))
    assert engine.plan.numel() < 256 * 512 * (bits + 2) / 8  # scales and shifts take a bit each
    trt_frontends.save(result, tmp_path / "model.trt")
    torch.testing.assert_close(trt_frontends.load(tmp_path / "model.trt")(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_torchao_embeddings_stay_small(bits: int) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model, ids = nn.Sequential(nn.Embedding(512, 64), nn.Linear(64, 8)).eval(), torch.tensor([[0, 5, 511]])
    config = torchao.Int8WeightOnlyConfig(version=2)
    if bits == 4:
        config = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32))
    torchao.quantize_(model, config, filter_fn=lambda module, _: isinstance(module, nn.Embedding))
    expected = model(ids)
    result = compiled(model, ids)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(ids), expected, rtol=1e-4, atol=1e-5)
    (engine,) = (child for child in result.modules() if isinstance(child, TRTModule))
    assert engine.plan.numel() < 512 * 64 * (bits + 4) / 8


@pytest.mark.parametrize("granularity", ["PerTensor", "PerRow"])
def test_torchao_models_of_float8_products(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    quant_api = importlib.import_module("torchao.quantization.quant_api")
    if not hasattr(quant_api, "_check_hardware_support") or not torch._C._dispatch_has_kernel_for_dispatch_key(
        "aten::_scaled_mm", "CPU"
    ):
        pytest.skip("this PyTorch multiplies float8 on GPUs alone")
    monkeypatch.setattr(quant_api, "_check_hardware_support", lambda granularity: None)  # it asks for a GPU
    monkeypatch.setattr(quant_api, "is_sm_at_least_89", lambda: True)
    check_float8_products(torchao, granularity, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("granularity", ["PerTensor", "PerRow"])
def test_torchao_models_of_float8_products_on_a_gpu(granularity: str) -> None:
    check_float8_products(pytest.importorskip("torchao.quantization"), granularity, "cuda")


def check_float8_products(torchao: Any, granularity: str, device: str) -> None:
    model, x = mlp().to(device, torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16, device=device)
    config = torchao.Float8DynamicActivationFloat8WeightConfig(granularity=getattr(torchao, granularity)())
    torchao.quantize_(model, config)
    try:
        expected = model(x)
    except RuntimeError:
        if device == "cuda":
            raise
        pytest.skip("this release of PyTorch has no such product on the CPU")
    result = compiled(model, x)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), expected, rtol=0, atol=0.1)
    rows = torch.randn(2, 16, 64, dtype=torch.bfloat16, device=device)
    torch.testing.assert_close(compiled(model, rows)(rows), model(rows), rtol=0, atol=0.1)


class ScaledProduct(nn.Module):
    """A product of float8 through PyTorch's own function, with scales of rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("weight", torch.randn(48, 32).to(torch.float8_e4m3fn).t())
        self.register_buffer("scales", torch.rand(1, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = functional.ScalingType.RowWise
        scale = x.abs().amax(1, keepdim=True) / 448
        values = (x / scale).to(torch.float8_e4m3fn)
        return functional.scaled_mm(values, self.weight, scale, rows, self.scales, rows, output_dtype=torch.bfloat16)


@pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="this PyTorch has no such function")
def test_products_of_float8_by_pytorch_s_function() -> None:
    model, x = ScaledProduct().eval(), torch.randn(16, 32)
    try:
        expected = model(x)
    except (RuntimeError, NotImplementedError, ValueError):
        pytest.skip("this PyTorch multiplies float8 on GPUs alone")
    result = compiled(model, x)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), expected, rtol=2e-2, atol=0.05)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8", "mxfp4"])
def test_torchao_models_of_blocks_stay_small(kind: str) -> None:
    formats = pytest.importorskip("torchao.prototype.mx_formats")
    torchao = importlib.import_module("torchao.quantization")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)).eval().bfloat16()
    count = sum(layer.weight.numel() for layer in model if isinstance(layer, nn.Linear))
    x = torch.randn(32, 256, dtype=torch.bfloat16)
    if kind == "nvfp4":
        config: Any = formats.NVFP4WeightOnlyConfig()
    else:
        common = importlib.import_module("torchao.quantization.quantize_.common")
        codes = torch.float8_e4m3fn if kind == "mxfp8" else torch.float4_e2m1fn_x2
        config = formats.MXDynamicActivationMXWeightConfig(
            activation_dtype=codes, weight_dtype=codes, kernel_preference=common.KernelPreference.EMULATED
        )
    torchao.quantize_(model, config)
    expected = model(x)
    result = compiled(model, x)
    if kind == "nvfp4":  # activations of the others are computed by torchao in integers that engines lack, in PyTorch
        assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), expected, rtol=0, atol=0.05)
    sizes = [child.plan.numel() for child in result.modules() if isinstance(child, TRTModule)]
    if kind == "mxfp4":  # whose activations are computed in many blocks, with layers and no weights
        assert max(sizes) < model[0].weight.numel()
    else:
        assert sum(sizes) < count * (
            1.0 if kind == "nvfp4" else 1.9
        )  # bytes, of which layers take some; bfloat16 takes 2


class SmallNet(nn.Module):
    """Convolutions with batch norms, of which one is grouped, pooling and products."""

    def __init__(self, has_norms: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=4)
        self.first_norm, self.second_norm = (nn.BatchNorm2d(8) if has_norms else nn.Identity() for _ in range(2))
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first_norm(self.first(x)).relu()
        x = self.second_norm(self.second(x)).relu() + 1
        return self.linear(functional.max_pool2d(x, 2).mean((2, 3)))


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("x86", {}),
        ("x86", {"is_dynamic": True}),
        ("x86", {"is_qat": True}),
        ("xnnpack", {"is_per_channel": True}),
        ("xnnpack", {"is_per_channel": True, "is_dynamic": True}),
        *[("xnnpack", {"is_qat": True})] * ("TRT_STRESS" in os.environ),
    ],
)
def test_models_of_pt2e(backend: str, options: dict[str, bool]) -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e")
    flow = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    if backend == "x86":
        x86 = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(**options))
    else:
        xnnpack = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer")
        quantizer = xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config(**options))
    trains = options.get("is_qat", False)
    has_norms = not trains or "TRT_STRESS" in os.environ  # torchao takes a minute to find those that are trained
    model, x = SmallNet(has_norms).train(trains), torch.randn(4, 3, 8, 8)
    captured = torch.export.export(model, (x,), strict=trains).module()
    if trains:
        prepared = flow.prepare_qat_pt2e(captured, quantizer)
        pt2e.move_exported_model_to_train(prepared)
        optimizer = torch.optim.SGD(prepared.parameters(), 1e-2)
        prepared(x).square().mean().backward()
        optimizer.step()
        pt2e.move_exported_model_to_eval(prepared)
    else:
        prepared = flow.prepare_pt2e(captured, quantizer)
        prepared(x)
    converted = flow.convert_pt2e(prepared)
    if trains:
        pt2e.move_exported_model_to_eval(converted)
    program = torch.export.export(converted, (x,))
    result = compiled(program, x)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), program.module()(x), rtol=1e-4, atol=1e-4)


class WithModelopt(nn.Module):
    """A convolution and a product between fake quantization as ModelOpt's export leaves it."""

    def __init__(self, exponent_bits: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.options = (8, exponent_bits, False, False)
        self.register_buffer("largest", torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.ops.tensorrt.quantize_op
        kernel, weight = self.convolution.weight, self.linear.weight
        kept_kernel = keep(kernel, kernel.detach().abs().amax((1, 2, 3), keepdim=True), *self.options)
        y = functional.conv2d(keep(x, self.largest, *self.options), kept_kernel, self.convolution.bias)
        y = y.relu().mean((2, 3))
        kept_weight = keep(weight, weight.detach().abs().amax(1, keepdim=True), *self.options)
        return functional.linear(keep(y, self.largest, *self.options), kept_weight, self.linear.bias)


@pytest.mark.parametrize("exponent_bits", [0, 4])
def test_modelopt_models(exponent_bits: int) -> None:
    model, x = WithModelopt(exponent_bits).eval(), torch.randn(2, 3, 8, 8)
    result = compiled(model, x)
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("quantizes_input", [False, True])
@pytest.mark.parametrize(("block", "bits"), [NVFP4, MXFP8])
def test_modelopt_blocks_stay_small(
    block: int, bits: tuple[int, int, int, int], quantizes_input: bool, tmp_path: Path
) -> None:
    model, x = InBlocks(block, bits, quantizes_input).eval(), torch.randn(3, 256)
    result = compiled(model, x, engine_cache_dir=str(tmp_path / "cache"))
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(x), model(x), rtol=1e-4, atol=1e-5)
    size = sum(child.plan.numel() for child in result.modules() if isinstance(child, TRTModule))
    weights = model.first.weight.numel() + model.second.weight.numel()
    assert size < weights * (0.75 if block == 16 else 1.25)  # bytes: those of values and scales, and layers beside them
    trt_frontends.save(result, tmp_path / "model.trt")
    torch.testing.assert_close(trt_frontends.load(tmp_path / "model.trt")(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("block", "bits"), [NVFP4, MXFP8])
def test_large_weights_in_blocks_are_quantized_once(block: int, bits: tuple[int, int, int, int]) -> None:
    model, x = InBlocks(block, bits), torch.randn(2, 1024, dtype=torch.bfloat16)
    model.first, model.second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)  # beyond what is folded at any size
    report = trt_frontends.explain(model.eval().bfloat16(), arg_inputs=(x,), min_block_size=1)
    assert report.coverage == 1.0
    assert not any("abs" in operator or "amax" in operator for operator in report.engines[0].operators_by_kind)


@pytest.mark.parametrize(("block", "bits"), [NVFP4, MXFP8])
def test_modelopt_blocks_in_reduced_precision_and_pytorch(
    block: int, bits: tuple[int, int, int, int], tmp_path: Path
) -> None:
    model, x = InBlocks(block, bits).eval(), torch.randn(3, 256)
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    reduced = trt_frontends.compile(program, optimization_level=0, min_block_size=1, precision=torch.bfloat16)
    other = torch.randn(7, 256)
    torch.testing.assert_close(reduced(other), model(other), rtol=0, atol=0.15)
    parts = compiled(model, x, torch_executed_ops={"aten.linear.default"})
    trt_frontends.save(parts, tmp_path / "model.trt")
    torch.testing.assert_close(trt_frontends.load(tmp_path / "model.trt")(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("block", "bits"), [NVFP4, MXFP8])
def test_modelopt_blocks_whose_range_is_measured_at_each_call(
    block: int, bits: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    model, x = InBlocks(block, bits).eval().to(dtype), torch.randn(3, 256).to(dtype)
    model.largest = None
    result = compiled(model, x)
    assert result.meta["partition_report"].coverage == 1.0
    for other in (x, 100 * x, 0 * x):
        expected = model(other)
        bound = (0.02 if dtype is torch.bfloat16 else 1e-4) * float(expected.abs().max())
        torch.testing.assert_close(result(other), expected, rtol=0, atol=bound)


def test_blocks_of_other_formats_run_in_pytorch_and_say_why() -> None:
    report = trt_frontends.explain(InBlocks(32, (8, 5, 9, 8)).eval(), arg_inputs=(torch.randn(3, 256),))
    refused = [node.verdict for node in report.torch_nodes if "dynamic_block" in node.op]
    assert refused and all(verdict.reason is Reason.NO_LOW_PRECISION for verdict in refused)


def test_products_of_packed_weights_run_in_pytorch_and_say_why() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.randint(0, 16, (32, 64), dtype=torch.int32)
            self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight, 2))
            self.register_buffer("scales", torch.rand(2, 32, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, 32, self.scales).relu()

    report = trt_frontends.explain(Packed().eval(), arg_inputs=(torch.randn(4, 64),))
    (refused,) = [node.verdict for node in report.torch_nodes if "int4pack" in node.op]
    assert refused.reason is Reason.NO_LOW_PRECISION


def test_weights_of_fragmented_graphs_stay_with_their_products(tmp_path: Path) -> None:
    model, x = WithModelopt(0).eval(), torch.randn(2, 3, 8, 8)
    result = compiled(model, x, torch_executed_ops={"aten.relu.default", "aten.linear.default"})
    report = result.meta["partition_report"]
    assert len(report.engines) == 2
    weights = {tuple(model.convolution.weight.shape), tuple(model.linear.weight.shape)}
    assert not any(tuple(tensor.shape) in weights for engine in report.engines for tensor in engine.outputs)
    trt_frontends.save(result, tmp_path / "model.trt")
    torch.testing.assert_close(trt_frontends.load(tmp_path / "model.trt")(x), model(x), rtol=1e-4, atol=1e-5)
