"""Layers of quantized checkpoints, as their libraries load them: values are eager's, and engines hold codes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_layers import COLUMNS, DEPTH, HQQLinear, QLinear, QuantLinear, pack_words, rounded_to_mxfp4
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.jetmoe.modeling_jetmoe import JetMoeParallelExperts

import trt_frontends
from trt_core import Reason
from trt_core.bitsandbytes_operators import FORMS, TABLES
from trt_frontends.stored_layers import StoredLinear, _Rows, open_stored_layers, unpack_words
from trt_frontends.torch_compile.model_report import model_report
from trt_partition import PartitionReport
from trt_runtime import TRTModule

STRESSED = "TRT_STRESS" in os.environ

SETTINGS: dict[str, Any] = {"optimization_level": 0, "min_block_size": 1}


def linear(dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(DEPTH, COLUMNS).eval().requires_grad_(False).to(dtype)


def compiled_size(model: nn.Module, x: torch.Tensor, expected: torch.Tensor | None, tolerance: float) -> float:
    """Compiles a model, compares it with eager, and returns how many bits of its plan there are for each element.

    Each engine has some kilobytes of layers, which are taken off.
    """
    before = dict(model.named_modules())
    result: Any = trt_frontends.compile(model, arg_inputs=(x,), **SETTINGS)
    assert all(module is before[name] for name, module in model.named_modules())
    assert result.meta["partition_report"].coverage == 1.0
    with torch.no_grad():
        expected = model(x) if expected is None else expected
    torch.testing.assert_close(result(x), expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    plans = [child.plan.numel() for child in result.modules() if isinstance(child, TRTModule)]
    return 8 * (sum(plans) - (12 << 10) * len(plans)) / (DEPTH * COLUMNS)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 4), st.sampled_from([0, 1]))
def test_words_are_unpacked_as_they_were_packed(bits: int, words: int, rows: int, axis: int) -> None:
    torch.manual_seed(bits)
    codes = torch.randint(0, 2**bits, (32 * words, rows) if axis == 0 else (rows, 32 * words))
    torch.testing.assert_close(unpack_words(pack_words(codes, bits, axis), bits, axis), codes.to(torch.uint8))


_LAYOUTS: list[dict[str, Any]] = [
    {"bits": 4, "size": 128},
    {"bits": 4, "size": 64, "ordered": False},
    {"bits": 8, "size": 256, "symmetric": True},
    {"bits": 4, "size": 128, "awq": True},
]
_MORE_LAYOUTS: list[dict[str, Any]] = [
    {"bits": bits, "size": size, "ordered": ordered, "symmetric": symmetric}
    for bits in (2, 3, 4, 8)
    for size in (32, 128, DEPTH)
    for ordered in (True, False)
    for symmetric in (True, False)
]


@pytest.mark.parametrize("layout", [*_LAYOUTS, *(_MORE_LAYOUTS if STRESSED else [])])
def test_layers_of_gptq_and_awq(layout: dict[str, Any]) -> None:
    model, x = nn.Sequential(QuantLinear(**layout)).eval(), torch.randn(3, DEPTH)
    stored = 8 if layout["bits"] == 8 else 4
    each = 64 if layout.get("symmetric") is None else 32  # a scale and a shift for each group
    assert compiled_size(model, x, None, 1e-3) < stored + each / layout["size"] + 0.3


@pytest.mark.parametrize("layout", [layout for layout in _LAYOUTS if layout["bits"] == 4])
def test_layers_that_their_first_call_has_packed_for_cpus(layout: dict[str, Any]) -> None:
    """They ran in PyTorch, outside of engines, and no program with them was saved."""
    layer, x = QuantLinear(**layout), torch.randn(3, DEPTH)
    layer.pack_for_cpus()
    with open_stored_layers(layer) as opened:
        torch.testing.assert_close(opened.weight().t().float(), layer.weight, rtol=2**-7, atol=0)
    assert compiled_size(nn.Sequential(layer).eval(), x, None, 1e-2) < 4 + 64 / layout["size"] + 0.3


def test_offsets_of_few_levels_are_rounded_where_they_are_least() -> None:
    """The product of int4 takes offsets from the middle of sixteen levels, in bfloat16: sums were 7 % off."""
    layer, x = QLinear(2, 128, torch.bfloat16), (1 + torch.randn(3, DEPTH) / 8).to(torch.bfloat16)
    layer.bias.zero_()
    assert compiled_size(nn.Sequential(layer).eval(), x, None, 1e-2) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("bits", "size", "code"),
    [(8, DEPTH, torch.int8), (8, DEPTH, torch.float8_e4m3fn), (4, 128, torch.uint8), (2, 32, torch.uint8)],
)
def test_layers_of_quanto(bits: int, size: int, code: torch.dtype, dtype: torch.dtype) -> None:
    """Those of 8 bits ran in PyTorch by operators of the library, and those of fewer became floats without a word."""
    model, x = nn.Sequential(QLinear(bits, size, dtype, code=code)).eval(), torch.randn(3, DEPTH, dtype=dtype)
    stored = 8 if bits == 8 else 4 + 64 / size
    assert compiled_size(model, x, None, 1e-3 if dtype is torch.float32 else 1e-2) < stored + 0.6


@pytest.mark.parametrize("change", ["e5m2", "activations"])
def test_layers_of_quanto_that_cannot_be_read_stay_and_are_named(change: str, caplog: pytest.LogCaptureFixture) -> None:
    is_float = change == "e5m2"
    layer = QLinear(8, DEPTH, torch.float32, code=torch.float8_e5m2 if is_float else torch.int8)
    layer.activation_qtype = None if is_float else "qint8"
    with open_stored_layers(layer) as opened:
        assert opened is layer
    assert (
        "its codes are torch.float8_e5m2" if is_float else "its activations are tensors of the library"
    ) in caplog.text


@pytest.mark.parametrize("kind", ["qint8", "qint4", "qint2", "qfloat8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_quanto_has_frozen(kind: str, dtype: torch.dtype) -> None:
    quanto = pytest.importorskip("optimum.quanto")
    model, x = nn.Sequential(linear(dtype)), torch.randn(3, DEPTH, dtype=dtype)
    quanto.quantize(model, weights=getattr(quanto, kind))
    quanto.freeze(model)
    found = compiled_size(model, x, None, 1e-5 if dtype is torch.float32 else 2e-2)
    assert found < (9 if kind.endswith("8") else 5)


@pytest.mark.parametrize(
    ("bits", "size", "axis", "dtype"),
    [
        (4, 64, 1, torch.bfloat16),
        (3, 64, 0, torch.float32),
        *([(8, DEPTH, 1, torch.float16), (2, 16, 1, torch.float16), (1, 32, 1, torch.float32)] if STRESSED else []),
    ],
)
def test_layers_of_hqq(bits: int, size: int, axis: int, dtype: torch.dtype) -> None:
    """In half precision they became floats: the library rounds what is left of codes without their zero points."""
    model, x = nn.Sequential(HQQLinear(bits, size, dtype, axis=axis)).eval(), torch.randn(3, DEPTH, dtype=dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    assert compiled_size(model, x, None, tolerance) < (8 if bits == 8 else 4) + 64 / size + 0.6


def test_engines_of_codes_are_saved_and_loaded(tmp_path: Path) -> None:
    model, x = nn.Sequential(QuantLinear(4, 64, ordered=False)).eval(), torch.randn(3, DEPTH)
    result = trt_frontends.compile(model, arg_inputs=(x,), **SETTINGS)
    trt_frontends.save(result, tmp_path / "model.trt")
    size = (tmp_path / "model.trt").stat().st_size
    assert size < DEPTH * COLUMNS  # floats would be four times that
    torch.testing.assert_close(importlib.import_module("trt_runtime").load(tmp_path / "model.trt")(x), result(x))


def test_a_layer_alone_is_a_model() -> None:
    assert compiled_size(QuantLinear(4, 64).eval(), torch.randn(3, DEPTH), None, 1e-3) < 5


def test_a_layer_alone_is_opened_and_put_back() -> None:
    layer = QuantLinear(4, 64)
    holder = nn.Sequential(layer)
    with open_stored_layers(holder) as opened:
        assert opened is holder and isinstance(holder[0], StoredLinear)
        torch.testing.assert_close(holder[0].weight().t().float(), layer.weight)
    assert holder[0] is layer
    with open_stored_layers(layer) as opened:
        assert isinstance(opened, StoredLinear)
    with pytest.raises(ZeroDivisionError), open_stored_layers(holder):
        raise ZeroDivisionError
    assert holder[0] is layer


def test_a_layer_whose_codes_cannot_be_read_stays() -> None:
    holder = nn.Sequential(QuantLinear(4, 64))
    holder[0].qweight = holder[0].qweight[:5]
    with open_stored_layers(holder):
        assert isinstance(holder[0], QuantLinear)


@pytest.mark.parametrize(("kind", "nested", "dtype"), [("nf4", True, torch.float32), ("fp4", False, torch.bfloat16)])
def test_layers_of_bitsandbytes_in_four_bits(kind: str, nested: bool, dtype: torch.dtype) -> None:
    library = pytest.importorskip("bitsandbytes")
    source = linear(dtype)
    options: dict[str, Any] = {"compress_statistics": nested, "quant_type": kind}
    layer = library.nn.Linear4bit(DEPTH, COLUMNS, compute_dtype=dtype, **options)
    layer.weight = library.nn.Params4bit(source.weight.data, requires_grad=False, module=layer, **options)
    layer.bias = source.bias
    model, x = nn.Sequential(layer.to("cpu")).eval(), torch.randn(3, DEPTH, dtype=dtype)
    state = layer.weight.quant_state
    weight = library.functional.dequantize_4bit(layer.weight.data, state).to(dtype)
    expected = nn.functional.linear(x, weight, source.bias)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    assert compiled_size(model, x, expected, tolerance) < 4 + 32 / 64 + 0.3
    with torch.no_grad():
        expected = model(x)  # by now it may have packed its weight for the CPU, and computes in bfloat16
    assert compiled_size(model, x, expected, 2e-2) < 4 + 32 / 64 + 0.3


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_layers_of_bitsandbytes_in_eight_bits(threshold: float) -> None:
    library = pytest.importorskip("bitsandbytes")
    layer = library.nn.Linear8bitLt(DEPTH, COLUMNS, has_fp16_weights=False, threshold=threshold)
    layer.load_state_dict(linear().state_dict())
    model, x = nn.Sequential(layer.to("cpu")).eval().requires_grad_(False), torch.randn(3, DEPTH)
    assert compiled_size(model, x, None, 1e-3) < 8 + 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_rounded_to_the_codes_of_bitsandbytes(dtype: torch.dtype) -> None:
    """Which multiplies by what a code is worth; elements of 16 bits often lie in the middle of two codes."""
    torch.manual_seed(0)
    x = torch.randn(64, 128).to(dtype)
    half = x.half().float()
    largest = half.abs().amax(-1, keepdim=True)
    codes = (half * (127.0 / largest)).round()
    assert torch.equal((_Rows(0.0)(x) / (largest / 127.0)).round(), codes)


def has_library(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.fixture(scope="module")
def operators() -> Any:
    """The operators of bitsandbytes, declared here where it is not installed."""
    if has_library("bitsandbytes"):
        importlib.import_module("bitsandbytes")
        yield torch.ops.bitsandbytes
        return
    library = torch.library.Library("bitsandbytes", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(f"{name}{schema}")
        library.impl(name, FORMS[f"bitsandbytes::{name}"], "CompositeExplicitAutograd")
    yield torch.ops.bitsandbytes
    library._destroy()


SCHEMAS = {
    "gemv_4bit": "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize) -> Tensor",
    "gemm_4bit": "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
    "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor",
}


class Tiled(nn.Module):
    """A product as bitsandbytes' own layers call it once they packed their weight for a CPU, or for a GPU."""

    def __init__(self, kind: str, tiled: bool, storage: torch.dtype = torch.uint8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.tiled = kind, tiled
        codes, scale = torch.randint(0, 16, (COLUMNS, DEPTH)), torch.rand(COLUMNS, DEPTH // 64) + 0.1
        table = torch.tensor(TABLES[kind])
        self.weight = table[codes] * scale.bfloat16().float().repeat_interleave(64, 1)
        packed = torch.zeros(COLUMNS * DEPTH // 2, dtype=torch.uint8)
        rows, columns = torch.meshgrid(torch.arange(COLUMNS), torch.arange(DEPTH), indexing="ij")
        if tiled:  # tiles of 32 rows, pairs of columns next to each other; the first 16 rows in the low half
            places = (rows // 32) * (16 * DEPTH) + (columns // 2) * 32 + (rows % 16) * 2 + columns % 2
            high = rows % 32 >= 16
        else:
            places, high = (rows * DEPTH + columns) // 2, columns % 2 == 0
        packed[places[high]] |= (codes[high] << 4).to(torch.uint8)
        packed[places[~high]] |= codes[~high].to(torch.uint8)
        self.register_buffer("packed", packed.view(storage))
        self.register_buffer(
            "scale", scale.bfloat16().t().contiguous() if tiled else scale.bfloat16().float().flatten()
        )
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, library = (COLUMNS, DEPTH), torch.ops.bitsandbytes
        if self.tiled:
            return library.gemv_4bit(x, self.packed, shape, self.scale, self.table, 64)
        return library.gemm_4bit(x, self.packed, shape, self.scale, 64, self.kind)


@pytest.mark.parametrize(("kind", "tiled"), [("nf4", True), ("fp4", False)])
def test_operators_of_bitsandbytes_in_captured_graphs(operators: Any, kind: str, tiled: bool) -> None:
    storage = torch.uint8 if tiled else torch.bfloat16
    model, x = Tiled(kind, tiled, storage).eval(), torch.randn(3, DEPTH)
    expected = x @ model.weight.t()
    assert compiled_size(model, x, expected, 1e-5) < 4 + 32 / 64 + 0.3
    torch._dynamo.reset()
    optimized = torch.compile(model, backend="torch_tensorrt", options=SETTINGS)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    (graph,) = model_report(optimized).graphs
    report = graph.builds[-1].partition
    assert report is not None and report.coverage == 1.0 and not report.weights_in_floats


def test_layers_of_bitsandbytes_under_torch_compile() -> None:
    library = pytest.importorskip("bitsandbytes")
    source = linear()
    layer = library.nn.Linear4bit(DEPTH, COLUMNS, compute_dtype=torch.float32, quant_type="nf4")
    layer.weight = library.nn.Params4bit(source.weight.data, requires_grad=False, module=layer, quant_type="nf4")
    layer.bias = source.bias
    model, x = nn.Sequential(layer.to("cpu")).eval(), torch.randn(3, DEPTH)
    torch._dynamo.reset()
    optimized = torch.compile(model, backend="torch_tensorrt", options=SETTINGS)
    with torch.no_grad():
        found = [optimized(x) for _ in range(3)]  # the first call packs
        expected = model(x)
    for value in found:
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-2 * float(expected.abs().max()))
    last = model_report(optimized).graphs[-1]
    assert last.builds[-1].partition is not None and last.builds[-1].partition.coverage == 1.0


@pytest.mark.parametrize("ordered", [True, False])
def test_weights_that_become_floats_are_named(ordered: bool) -> None:
    model, x = nn.Sequential(QuantLinear(4, 64, ordered=ordered)).eval(), torch.randn(3, DEPTH)
    assert not trt_frontends.explain(model, arg_inputs=(x,), **SETTINGS).weights_in_floats
    report = trt_frontends.explain(model, arg_inputs=(x,), refit=True, **SETTINGS)
    (node,) = report.weights_in_floats
    assert "linear" in node.op and "refit" in node.weight_in_floats
    assert f"{Reason.WEIGHT_IN_FLOATS.code}: {node.weight_in_floats}" in report.to_text()
    assert PartitionReport.from_json(report.to_json()) == report
    assert node.weight_in_floats in report.to_html()
    if not ordered:  # groups of several sizes
        model[0].g_idx[:3] = model[0].g_idx[7]
        (node,) = trt_frontends.explain(model, arg_inputs=(x,), **SETTINGS).weights_in_floats
        assert "blocks of one size" in node.weight_in_floats


def test_weights_in_float8_may_be_replaced() -> None:
    codes = torch.randn(COLUMNS, DEPTH).to(torch.float8_e4m3fn)
    model = nn.Sequential(StoredLinear(codes, torch.rand(COLUMNS, 1) + 0.1, None, dtype=torch.float32)).eval()
    x = torch.randn(3, DEPTH)
    result = trt_frontends.compile(model, arg_inputs=(x,), refit=True, **SETTINGS)
    torch.testing.assert_close(result(x), model(x), rtol=1e-4, atol=1e-3)


_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_NVFP4 = {"type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn}
_FORMATS: list[tuple[dict[str, Any], dict[str, Any] | None, float]] = [
    ({"num_bits": 4, "group_size": 64}, None, 4 + 0.5),
    ({"num_bits": 4, "group_size": 128, "symmetric": False}, None, 4 + 0.5),
    ({"num_bits": 4, "strategy": "channel"}, None, 4),
    ({"num_bits": 8, "strategy": "channel"}, _TOKENS, 8),
    ({"num_bits": 8, "type": "float", "strategy": "channel"}, None, 8),
    ({"num_bits": 4, **_NVFP4, "zp_dtype": torch.float8_e4m3fn}, None, 4 + 0.5),
    ({"num_bits": 4, "type": "float", "group_size": 32, "scale_dtype": torch.uint8}, None, 4 + 0.5),
    ({"num_bits": 8, "type": "float", "group_size": 32, "scale_dtype": torch.uint8}, None, 8 + 0.25),
]


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(("weights", "inputs", "bits"), _FORMATS)
def test_layers_of_compressed_tensors(
    weights: dict[str, Any], inputs: dict[str, Any] | None, bits: float, called: bool
) -> None:
    if called and not STRESSED and "group_size" not in weights:
        pytest.skip("one layout of those that a first call opens is enough here")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    library = importlib.import_module("compressed_tensors.quantization")
    find = importlib.import_module("compressed_tensors.quantization.utils")
    strategy = weights.get("strategy", "group")
    config = library.QuantizationConfig(
        config_groups={
            "all": {"targets": ["Linear"], "weights": {**weights, "strategy": strategy}, "input_activations": inputs}
        },
        quantization_status="frozen",
    )
    dtype = torch.bfloat16 if weights.get("type") == "float" else torch.float32
    model = nn.Sequential(linear(dtype), nn.LayerNorm(COLUMNS, dtype=dtype))  # the library wraps that, too
    library.apply_quantization_config(model, config)
    layer: Any = model[0]
    size = weights.get("group_size", DEPTH)
    groups, more = layer.weight.float().unflatten(1, (-1, size)), {}
    if hasattr(layer, "weight_global_scale"):
        more["global_scale"] = find.generate_gparam(layer.weight.min(), layer.weight.max())
        layer.weight_global_scale.data.copy_(more["global_scale"])
    ends = groups.amin(-1), groups.amax(-1)
    scale, zeros = find.calculate_qparams(*ends, config.config_groups["all"].weights, **more)
    layer.weight_scale.data.copy_(scale)
    if hasattr(layer, "weight_zero_point"):
        layer.weight_zero_point.data.copy_(zeros)
    compressors.ModelCompressor(quantization_config=config).compress_model(model)
    model.eval().requires_grad_(False)
    x = torch.randn(3, DEPTH, dtype=dtype)
    if called:
        model(x)  # which decompresses it
    else:
        assert layer.quantization_status.value == "compressed"
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    assert compiled_size(model, x, None, tolerance) < bits + (1.5 if inputs else 0.4)


@pytest.mark.parametrize("block", [None, (128, 128)])
def test_layers_of_transformers_in_float8(block: tuple[int, int] | None) -> None:
    library = pytest.importorskip("transformers.integrations.finegrained_fp8")
    layer = library.FP8Linear(DEPTH, COLUMNS, block_size=block, has_bias=True)
    torch.manual_seed(0)
    high, wide = (1, 1) if block is None else (COLUMNS // block[0], DEPTH // block[1])
    scale = torch.rand(high, wide) * 0.01 + 0.01
    codes = torch.randn(COLUMNS, DEPTH).to(torch.float8_e4m3fn)
    layer.weight.data, layer.bias.data = codes, torch.randn(COLUMNS)
    layer.weight_scale_inv.data = scale if block else scale.reshape(())
    model, x = nn.Sequential(layer).eval().requires_grad_(False), torch.randn(3, DEPTH)
    parts = x.unflatten(-1, (wide, -1))
    steps = parts.abs().amax(-1, keepdim=True) / 448
    kept = ((parts / steps).to(torch.float8_e4m3fn).float() * steps).flatten(-2)
    weight = codes.float() * scale.repeat_interleave(COLUMNS // high, 0).repeat_interleave(DEPTH // wide, 1)
    assert compiled_size(model, x, kept @ weight.t() + layer.bias, 1e-5) < 8 + 0.5


def checkpoint_in_float8(folder: Path) -> Path:
    """Writes a checkpoint in float8, in blocks of 128, as Qwen3 and DeepSeek have them."""
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=32, num_key_value_heads=2, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("proj.weight")]:
        weights[name] = weights[name].mul(100).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = torch.full((1, 1), 0.01)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    said["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="some GPUs have kernels for these codes")
def test_models_that_transformers_dequantizes_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model of eight bits became one of sixteen, and nothing said so but transformers, when it loaded it."""
    pytest.importorskip("accelerate")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint_in_float8(tmp_path))
    if "is_quantized" not in vars(model):
        pytest.skip("this release of transformers leaves no mark, or takes no float8 without a GPU")
    model.experts = JetMoeParallelExperts(2, 4, 4)  # which something stands for that holds no codes
    for captured in (nn.Sequential(model), model):
        with open_stored_layers(captured):
            pass
    assert caplog.text.count("has dequantized the checkpoint of LlamaForCausalLM") == 1


def test_models_that_transformers_quantizes_or_not_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=32))
    with open_stored_layers(model):
        pass
    model.is_quantized = True
    model.model.layers[0].mlp.up_proj.register_buffer("codes", torch.zeros(2, dtype=torch.int8))
    with open_stored_layers(model):
        pass
    assert "dequantized" not in caplog.text


@pytest.mark.parametrize(
    ("block", "has_gate"), [((64, 64), True), *([(None, True), ((64, 64), False)] if STRESSED else [])]
)
def test_experts_of_transformers_in_float8(block: tuple[int, int] | None, has_gate: bool) -> None:
    """They run on some GPUs alone, by kernels that transformers fetches, and so did captures."""
    library = pytest.importorskip("transformers.integrations.finegrained_fp8")
    if not hasattr(library, "FP8Experts"):
        pytest.skip("this release of transformers has none")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(hidden_size=256, moe_intermediate_size=128, num_experts=8)
    experts = library.FP8Experts(config, block_size=block, has_gate=has_gate).requires_grad_(False)
    weights = {}
    for name in ("gate_up_proj" if has_gate else "up_proj", "down_proj"):
        codes, scale = getattr(experts, name), getattr(experts, f"{name}_scale_inv")
        if scale.shape[1:].numel() != codes.shape[1:].numel() // (64 * 64 if block else codes.shape[1:].numel()):
            scale = torch.ones(len(scale), 1, 1)  # one for all of a matrix
            setattr(experts, f"{name}_scale_inv", nn.Parameter(scale, requires_grad=False))
        codes.copy_(torch.randn(codes.shape).to(codes.dtype))
        scale.copy_(torch.rand(scale.shape) * 0.05 + 0.01)
        blocks = (size // count for size, count in zip(codes.shape[1:], scale.shape[1:], strict=True))
        wide = scale.repeat_interleave(next(blocks), 1).repeat_interleave(next(blocks), 2)
        weights[name] = codes.float() * wide

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        parts = rows.unflatten(-1, (-1, 64 if block else rows.shape[-1]))
        steps = parts.abs().amax(-1, keepdim=True) / 448
        return ((parts / steps).to(torch.float8_e4m3fn).float() * steps).flatten(-2)

    x = torch.randn(5, 256)
    chosen = torch.rand(5, 8).topk(3).indices
    shares = torch.rand(5, 3)
    first, last = weights.values()
    expected = torch.zeros(5, 256)
    for token in range(5):
        for place in range(3):
            made = first[chosen[token, place]] @ rounded(x[token])
            made = experts._apply_gate(made) if has_gate else experts.act_fn(made)
            expected[token] += shares[token, place] * (last[chosen[token, place]] @ rounded(made))
    result: Any = trt_frontends.compile(experts.eval(), arg_inputs=(x, chosen, shares), **SETTINGS)
    report = result.meta["partition_report"]
    assert report.coverage == 1.0 and not report.weights_in_floats
    torch.testing.assert_close(result(x, chosen, shares), expected, rtol=1e-4, atol=1e-3 * float(expected.abs().max()))
    plans = sum(child.plan.numel() for child in result.modules() if isinstance(child, TRTModule))
    assert 8 * (plans - (24 << 10)) / sum(value.numel() for value in weights.values()) < 9


class CachedInInt8(nn.Module):
    """A static cache of codes in int8, with a scale for each row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(32, 32)
        self.register_buffer("codes", torch.zeros(1, 2, 8, 16, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(1, 2, 8, 1))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        rows = self.linear(x).view(1, -1, 2, 16).transpose(1, 2)
        scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127.0
        self.codes.index_copy_(2, place, (rows / scale).round().to(torch.int8))
        self.scales.index_copy_(2, place, scale)
        return self.codes.to(x.dtype) * self.scales


class Routed(nn.Module):
    """Experts of gpt-oss, chosen by a product."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        config = transformers.GptOssConfig(hidden_size=width, intermediate_size=width, num_local_experts=count)
        config._experts_implementation = "grouped_mm"
        self.experts = GptOssExperts(config)
        self.router = nn.Linear(width, count)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.router(x).topk(2)
        made: torch.Tensor = self.experts(x, chosen, best.softmax(-1))
        return made


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_experts_that_transformers_made_floats_of_stay_codes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Routed(8, 128).eval().requires_grad_(False), torch.randn(5, 128)
    with open_stored_layers(model) as opened:
        assert opened.experts is model._modules["experts"]  # no numbers of MXFP4
    experts: Any = model.experts
    for matrices in (experts.gate_up_proj, experts.down_proj):
        matrices.copy_(rounded_to_mxfp4(matrices))
    experts.down_proj[3] = 0.0
    model.to(dtype)
    kept = {name: getattr(experts, name).clone() for name in ("gate_up_proj", "down_proj")}
    with open_stored_layers(model):
        opened = model.experts
        assert opened is not experts
        assert all(torch.equal(getattr(opened, name), value) for name, value in kept.items())
        assert opened.num_experts == 8 and torch.equal(opened.down_proj_bias, experts.down_proj_bias)
    assert model.experts is experts
    result: Any = trt_frontends.compile(model, arg_inputs=(x.to(dtype),), **SETTINGS)
    report = result.meta["partition_report"]
    assert report.coverage == 1.0 and report.weights_in_floats == ()
    expected = model(x.to(dtype)).float()
    tolerance = (1e-5 if dtype is torch.float32 else 3e-2) * float(expected.abs().max())
    torch.testing.assert_close(result(x.to(dtype)).float(), expected, rtol=0, atol=tolerance)
    plans = sum(child.plan.numel() for child in result.modules() if isinstance(child, TRTModule))
    elements = sum(value.numel() for value in kept.values())
    assert 8 * (plans - (48 << 10)) / elements < 6  # of 32 or 16: codes, scales, biases and the router


def test_caches_of_codes_are_written_in_place() -> None:
    eager, model = CachedInInt8().eval().requires_grad_(False), CachedInInt8().eval().requires_grad_(False)
    x, place = torch.randn(1, 1, 32), torch.tensor([0])
    result: Any = trt_frontends.compile(model, arg_inputs=(x, place), **SETTINGS)
    report = result.meta["partition_report"]
    assert report.coverage == 1.0 and not report.unsupported
    with torch.no_grad():
        for index in (0, 1, 5):
            x, place = torch.randn(1, 1, 32), torch.tensor([index])
            torch.testing.assert_close(result(x, place), eager(x, place))
    held = dict(result.named_buffers())
    (codes,) = (value for value in held.values() if value.dtype is torch.int8 and value.shape == eager.codes.shape)
    torch.testing.assert_close(codes, eager.codes)
