"""`quantize` puts Q/DQ where it says, keeps what it must, and refuses what makes no sense."""

from __future__ import annotations

import io
import itertools
import re
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import ExportError, Input, InputError, Reason, SettingsError
from trt_core.quantization import dequantize, quantize
from trt_frontends.quantization import QuantizationConfig, quantization_report


class Mixed(nn.Module):
    """A convolution with batch normalization, a normalized linear layer, and one more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.norm, self.wide, self.head = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 4)
        self.stem[1].running_mean.uniform_(-1, 1)
        self.stem[1].running_var.uniform_(0.5, 2)
        self.norm.weight.data.uniform_(0.5, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.wide(self.norm(self.stem(x).mean((2, 3)))).relu())


def data(count: int = 4, batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(batch, 3, 8, 8, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Mixed().eval()


def targets(program: torch.export.ExportedProgram) -> list[Any]:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3"])
def test_every_product_reads_quantized_values(model: nn.Module, dtype: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = trt_frontends.quantize(model, data(), dtype)
    assert targets(program).count(quantize) == 3 and targets(program).count(dequantize) == 6
    assert torch.ops.aten.batch_norm.default not in targets(program)
    stored = [value.dtype for name, value in program.state_dict.items() if name.endswith("weight_quantized")]
    assert stored == [QuantizationConfig(dtype=dtype).scheme.dtype] * 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    x = data()[0]
    assert 0 < relative(program.module()(x), model(x)) < (0.03 if dtype == "int8" else 0.1)
    report = quantization_report(program)
    assert len(report.quantized) == len(report.layers) == 3
    assert report.quantized_bytes < report.float_bytes
    assert "3 of 3 products quantized" in report.to_text() and '"format": 1' in report.to_json()


@pytest.mark.parametrize("dtype", ["int8_weight_only", "float8_weight_only", "int4_weight_only"])
def test_weights_alone_need_no_data(model: nn.Module, dtype: str) -> None:
    x = data()[0]
    program = trt_frontends.quantize(model, None, {"dtype": dtype, "group_size": 8}, arg_inputs=(x,))
    assert quantize not in targets(program)
    count = 2 if dtype.startswith("int4") else 3
    assert targets(program).count(dequantize) == count
    assert relative(program.module()(x), model(x)) < 0.3
    compiled = trt_frontends.compile(program, optimization_level=0, min_block_size=1)
    torch.testing.assert_close(compiled(x), program.module()(x), rtol=1e-4, atol=1e-4)


def test_results_are_the_same_every_time(model: nn.Module) -> None:
    config = {"observer": "entropy", "smoothing": 0.5, "bias_correction": True}
    first, second = (trt_frontends.quantize(model, data(), config) for _ in range(2))
    assert first.state_dict.keys() == second.state_dict.keys()
    assert all(torch.equal(value.float(), second.state_dict[name].float()) for name, value in first.state_dict.items())


def test_dynamic_dimensions_stay_dynamic(model: nn.Module) -> None:
    shape = Input(min_shape=(1, 3, 8, 8), opt_shape=(2, 3, 8, 8), max_shape=(16, 3, 8, 8))
    program = trt_frontends.quantize(model, [*data(1, batch=2), *data(1, batch=5)], "int8", arg_inputs=(shape,))
    compiled = trt_frontends.compile(program, optimization_level=0, min_block_size=1)
    assert compiled.meta["partition_report"].coverage == 1.0
    for batch in (1, 7):
        x = torch.randn(batch, 3, 8, 8)
        torch.testing.assert_close(compiled(x), program.module()(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("head", {"head"}),
        (r"(wide|head)", {"wide", "head"}),
        ("aten.conv2d", {"stem.0"}),
        (torch.ops.aten.linear.default, {"wide", "head"}),
        ("stem", {"stem.0"}),
        (re.compile("HEAD", re.IGNORECASE), {"head"}),
    ],
)
def test_what_is_excluded_stays_in_float(model: nn.Module, exclude: Any, left: set[str]) -> None:
    patterns = exclude if isinstance(exclude, str) else (exclude,)
    program = trt_frontends.quantize(model, data(), QuantizationConfig(exclude=patterns))
    kept = [layer for layer in quantization_report(program).layers if not layer.quantized]
    assert {layer.location.partition("/")[0] for layer in kept} == left
    assert all(layer.code == Reason.LEFT_IN_FLOAT.code for layer in kept)


def test_what_excludes_nothing_is_told(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="'hed' excludes nothing from quantization"):
        trt_frontends.quantize(model, data(), {"exclude": ["head", "hed"]})


def test_folding_and_smoothing_keep_what_the_model_computes(model: nn.Module) -> None:
    from trt_frontends.quantization.calibration import read_samples
    from trt_frontends.quantization.quantize import prepare

    x = data()[0]
    program = torch.export.export(model, (x,))
    changed = prepare(program, read_samples(data()), QuantizationConfig(smoothing=0.5))
    assert torch.ops.aten.batch_norm.default not in targets(changed)
    torch.testing.assert_close(changed.module()(x), model(x), rtol=1e-4, atol=1e-5)
    assert torch.ops.aten.mul.Tensor in targets(changed)  # the head, which no normalization is in front of
    smoothed = changed.state_dict["norm.weight_smoothed"]
    assert not torch.equal(smoothed, model.norm.weight)


def test_smoothing_helps_where_single_channels_are_large() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32)).eval()
    model[0].weight.data[::8] = 60.0
    batches = [torch.randn(64, 32) for _ in range(4)]
    errors = []
    for smoothing in (None, 0.5):
        program = trt_frontends.quantize(model, batches, {"smoothing": smoothing})
        errors.append((program.module()(batches[0]) - model(batches[0])).square().mean())
    assert errors[1] < 0.5 * errors[0]


def test_corrected_biases_take_the_mean_error_away() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    batches = [torch.rand(8, 4, 6, 6) for _ in range(4)]
    wide = torch.cat(batches)
    means = []
    for corrected in (False, True):
        config = {"bias_correction": corrected, "per_channel": False, "dtype": "int8"}
        program = trt_frontends.quantize(model, batches, config, arg_inputs=(_batch(wide),))
        convolution = program.module()
        means.append((convolution(wide) - model(wide)).mean((0, 2, 3)).abs().max())
    assert means[1] < 0.5 * means[0]


def _batch(x: torch.Tensor) -> Input:
    return Input(min_shape=(1, *x.shape[1:]), opt_shape=(8, *x.shape[1:]), max_shape=tuple(x.shape))


def test_programs_that_are_decomposed_already_are_quantized_too(model: nn.Module) -> None:
    x = data()[0]
    program = torch.export.export(model, (x,)).run_decompositions()
    quantized = trt_frontends.quantize(program, data())
    assert len(quantization_report(quantized).quantized) == 3
    assert relative(quantized.module()(x), model(x)) < 0.05


def test_attention_and_products_of_activations_are_quantized_on_request() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed = nn.functional.scaled_dot_product_attention(x, x.flip(-1), x)
            return mixed @ x.transpose(-1, -2)

    batches = [torch.randn(2, 2, 6, 8)]
    plain = trt_frontends.quantize(Attention().eval(), batches)
    assert quantize not in targets(plain)
    program = trt_frontends.quantize(Attention().eval(), batches, {"operators": {"attention", "matmul"}})
    assert targets(program).count(quantize) == 4  # x, its flip, what is mixed, and x transposed
    expected = Attention()(batches[0])
    assert relative(program.module()(batches[0]), expected) < 0.05
    compiled = trt_frontends.compile(program, optimization_level=0, min_block_size=1)
    assert compiled.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(compiled(batches[0]), program.module()(batches[0]), rtol=2e-2, atol=2e-2)


def test_shared_weights_are_stored_once_and_stay_float_for_others() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(12, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = self.embedding(ids)
            return nn.functional.linear(hidden.tanh(), self.embedding.weight) + nn.functional.linear(
                hidden, self.embedding.weight
            )

    ids = torch.randint(0, 12, (2, 3))
    program = trt_frontends.quantize(Tied().eval(), [ids])
    names = list(program.state_dict)
    assert "embedding.weight" in names and names.count("embedding.weight_quantized") == 1
    assert len([name for name in names if name.endswith("weight_quantized")]) == 1
    parted = {"torch_executed_ops": {"aten.tanh.default"}, "optimization_level": 0, "min_block_size": 1}
    compiled = trt_frontends.compile(program, **parted)
    engines = compiled.meta["partition_report"].engines
    assert len(engines) == 2
    assert not any(tuple(tensor.shape) == (12, 8) for engine in engines for tensor in (*engine.inputs, *engine.outputs))
    torch.testing.assert_close(compiled(ids), program.module()(ids), rtol=1e-3, atol=1e-3)


def test_state_of_the_model_is_left_alone() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return self.linear(x) + self.calls

    model = Counting().eval()
    program = trt_frontends.quantize(model, [torch.randn(2, 4)] * 3)
    assert model.calls == 0 and program.state_dict["calls"] == 0
    runnable = program.module()
    runnable(torch.randn(2, 4))
    assert runnable.calls == 1


def test_a_channel_of_zeros_stays_zero() -> None:
    model = nn.Linear(4, 3, bias=False).eval()
    model.weight.data[1] = 0
    program = trt_frontends.quantize(model, [torch.zeros(2, 4), torch.zeros(2, 4)])
    assert program.state_dict["weight_scale"][1] == 1 and bool(program.state_dict["weight_scale"].gt(0).all())
    assert not program.module()(torch.zeros(2, 4)).any()


def test_programs_survive_a_file(model: nn.Module) -> None:
    program = trt_frontends.quantize(model, data())
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer)
    x = data()[0]
    torch.testing.assert_close(loaded.module()(x), program.module()(x))
    with pytest.raises(InputError, match="no report"):
        quantization_report(loaded)


def test_models_in_training_mode_are_warned_about() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.warns(UserWarning, match="training mode") as caught:
        trt_frontends.quantize(model, [torch.randn(2, 4)])
    assert caught[0].filename == __file__


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3", "int4_weight_only"])
def test_models_on_a_gpu_are_calibrated_and_run_there(dtype: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).eval().cuda().bfloat16()
    batches = [torch.randn(64, 256).bfloat16() for _ in range(4)]
    program = trt_frontends.quantize(model, batches, dtype)
    assert all(value.is_cuda for value in program.state_dict.values())
    x = batches[0].cuda()
    compiled = trt_frontends.compile(program, min_block_size=1)
    assert compiled.meta["partition_report"].coverage == 1.0
    expected = program.module()(x).float()
    assert relative(compiled(x).float(), expected) < 0.05
    assert relative(expected, model(x).float()) < 0.2


class TestRefusals:
    """What cannot be quantized is said at the door."""

    @pytest.mark.parametrize(
        ("calibration", "message"),
        [
            (None, "no calibration data"),
            ([], "is empty"),
            (iter(()), "is empty"),
            (torch.randn(2, 3, 8, 8), "cannot take a Tensor as calibration"),
            (3, "cannot take an int as calibration"),
            ("images", "cannot take a str as calibration"),
            ([3], "calibration input 0 is an int"),
            ([(torch.randn(2, 3, 8, 8), torch.zeros(2))], "holds 2 inputs, the program takes 1"),
            ([torch.randn(2, 3, 9, 9)], "has shape"),
            ([torch.randn(2, 3, 8, 8).double()], "is float64"),
            ([{"y": torch.randn(2, 3, 8, 8)}], "keyword inputs do not fit"),
            ([torch.full((2, 3, 8, 8), float("nan"))], "NaN or infinities"),
            ([torch.full((2, 3, 8, 8), float("inf"))], "NaN or infinities"),
        ],
    )
    def test_calibration_data(self, model: nn.Module, calibration: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            trt_frontends.quantize(model, calibration, arg_inputs=(data()[0],))

    @pytest.mark.parametrize(
        ("dtype", "message"),
        [
            (torch.int64, "the model fails on calibration data"),
            (torch.float64, "input input is float64, and the model's weights are float32"),
            (torch.float16, "input input is float16, and the model's weights are float32"),
        ],
    )
    def test_data_that_the_model_itself_does_not_take(self, dtype: torch.dtype, message: str) -> None:
        with pytest.raises(InputError, match=message):
            trt_frontends.quantize(nn.Linear(8, 4).eval(), [torch.ones(2, 8, dtype=dtype)])

    def test_data_that_cannot_be_read(self) -> None:
        with pytest.raises(InputError, match=r"cannot be read.*\n.*input 1\n.*ZeroDivisionError"):
            trt_frontends.quantize(nn.Linear(8, 4).eval(), (torch.ones(2, 8) / (1 // (1 - n)) for n in range(2)))

    def test_data_that_does_not_end(self) -> None:
        with pytest.raises(InputError, match="does not end"):
            trt_frontends.quantize(nn.Linear(8, 4).eval(), itertools.repeat(torch.ones(2, 8)))

    def test_data_without_elements(self) -> None:
        with pytest.raises(InputError, match="empty activations alone"):
            trt_frontends.quantize(nn.Linear(8, 4).eval(), [torch.ones(0, 8)])

    def test_activations_that_overflow(self) -> None:
        class Overflowing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.linear(x / x.abs().clamp(max=0))

        with pytest.raises(InputError, match="computes NaN or infinities") as raised:
            trt_frontends.quantize(Overflowing().eval(), [torch.randn(2, 4)])
        assert "test_quantize.py" in raised.value.where

    def test_weights_without_numbers(self) -> None:
        model = nn.Linear(4, 4).eval()
        model.weight.data[0, 0] = float("nan")
        with pytest.raises(InputError, match="weight holds NaN"):
            trt_frontends.quantize(model, [torch.randn(2, 4)])

    def test_models_that_are_quantized(self, model: nn.Module) -> None:
        program = trt_frontends.quantize(model, data())
        with pytest.raises(InputError, match="quantized already"):
            trt_frontends.quantize(program, data())

    def test_models_of_torchao(self) -> None:
        torchao = pytest.importorskip("torchao.quantization")
        quantized = nn.Sequential(nn.Linear(32, 32)).eval()
        torchao.quantize_(quantized, torchao.Int8WeightOnlyConfig())
        with pytest.raises(InputError, match="quantized already"):
            trt_frontends.quantize(quantized, [torch.randn(2, 32)])

    @pytest.mark.filterwarnings("ignore")
    def test_models_with_packed_weights_do_not_export(self) -> None:
        packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)).eval(), {nn.Linear})
        with pytest.raises(ExportError, match="packed") as raised:
            trt_frontends.compile(packed, arg_inputs=(torch.randn(2, 8),))
        assert "trt_frontends.quantize" in raised.value.hint

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ("int7", "no scheme"),
            ({"observer": "maximum"}, "no observer"),
            ({"dtyp": "int8"}, "no setting 'dtyp'"),
            ({"percentile": 3}, "percentile"),
            ({"smoothing": 2}, "smoothing"),
            ({"group_size": 7}, "group_size"),
            ({"operators": {"embedding"}}, "no kind"),
            ({"exclude": "("}, "no regular expression"),
            ({"exclude": "aten.linera"}, "unknown operator"),
            ({"exclude": [3]}, "3 is no operator"),
        ],
    )
    def test_configurations(self, model: nn.Module, config: Any, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            trt_frontends.quantize(model, data(), config)

    def test_what_is_no_configuration(self, model: nn.Module) -> None:
        with pytest.raises(InputError, match="cannot take an int as config"):
            trt_frontends.quantize(model, data(), 3)  # type: ignore[arg-type]
