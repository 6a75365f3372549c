"""TensorRT 10's API, which a process asks for by its environment: the first test runs the others in such a process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fresh_process import run_python

import trt_portable as trt
from trt_portable.api_version import ENUMERATIONS_OF_10, IS_TENSORRT_10, VARIABLE

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "tensorrt"
in_mode = pytest.mark.skipif(not IS_TENSORRT_10, reason=f"runs with {VARIABLE}=10, by the first test")
api: Any = trt
"""The module as clients of 10 see it, whose names type checkers do not know."""


@pytest.mark.skipif(IS_TENSORRT_10, reason="is what runs the others")
def test_the_older_api_in_a_process_of_its_own() -> None:
    files = [__file__, *([str(Path(__file__).with_name("test_portable_conformance.py"))] if DATA.is_dir() else [])]
    script = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    options = ("-q", "-x", "-p", "no:cacheprovider", "--no-header")
    done = run_python(script, *options, *files, env={VARIABLE: "10"}, bare=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_an_unknown_version_is_refused_by_name() -> None:
    """By whoever imports the package, and by what chooses a provider, as a provider that cannot be used."""
    for code in ("import trt_portable.api_version", "import trt_core; trt_core.provider_module()"):
        done = run_python(code, env={VARIABLE: "9"}, bare=True)
        assert "TRT_PORTABLE_API='9' names no API of this package: write 10 or 11, or unset it" in done.stderr
    assert "ProviderError: the provider 'portable' cannot be used" in done.stderr


@pytest.mark.skipif(not DATA.is_dir(), reason="the API description is part of the repository only")
def test_the_table_of_enumerations_is_what_differs() -> None:
    newer, older = (json.loads((DATA / f"api_{version}.json").read_text())["enums"] for version in ("11.4", "10.16"))
    differing = {name: members for name, members in older.items() if not members.items() <= newer.get(name, {}).items()}
    assert differing == ENUMERATIONS_OF_10


class Messages(trt.ILogger):
    """Keeps what was said."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.said: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        """Keeps a message."""
        if int(severity) <= int(trt.ILogger.ERROR):
            self.said.append(msg)


class Definition:
    """A weakly typed network with an input of 1 x 3 x 8 x 8."""

    def __init__(self, *, strong: bool = False) -> None:
        self.logger = Messages()
        self.builder = trt.Builder(self.logger)
        flag = api.NetworkDefinitionCreationFlag
        self.network: Any = self.builder.create_network(
            1 << int(flag.STRONGLY_TYPED if strong else flag.EXPLICIT_BATCH)
        )
        self.config: Any = self.builder.create_builder_config()
        self.x: Any = self.network.add_input("x", trt.float32, (1, 3, 8, 8))

    def convolution(self, x: Any, dtype: Any = np.float32) -> Any:
        """A convolution to three channels."""
        values = np.random.default_rng(0).standard_normal((3, 3, 3, 3)).astype(dtype)
        layer = self.network.add_convolution_nd(x, 3, (3, 3), values)
        layer.padding_nd = (1, 1)
        return layer

    def engine(self, *outputs: Any) -> Any:
        """The engine with some outputs."""
        for tensor in outputs:
            self.network.mark_output(tensor)
        with trt.device("cpu"):
            engine = self.builder.build_engine_with_config(self.network, self.config)
        assert engine is not None, self.logger.said
        return engine


def run(engine: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of an engine."""
    types = {trt.float32: torch.float32, trt.float16: torch.float16, trt.int32: torch.int32}
    context = engine.create_execution_context()
    names = [name for name in engine if engine.get_tensor_mode(name) is trt.TensorIOMode.OUTPUT]
    found = [
        torch.empty(tuple(engine.get_tensor_shape(name)), dtype=types[engine.get_tensor_dtype(name)]) for name in names
    ]
    for name, tensor in zip(("x", *names), (x, *found), strict=True):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(0)
    return found


def layer_names(engine: Any) -> list[str]:
    """The layers that an engine runs."""
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.ONELINE)
    return str(text).split("\n\n")[0].splitlines()[1:]


@in_mode
def test_what_the_version_says() -> None:
    assert trt.__version__.startswith("10.16.")
    assert int(api.BuilderFlag.FP16) == 0
    assert api.BuilderFlag.WEIGHTLESS is api.BuilderFlag.STRIP_PLAN


@in_mode
def test_the_type_of_an_output_is_a_cast_of_what_a_layer_computes() -> None:
    given = Definition()
    layer = given.convolution(given.x)
    output = layer.get_output(0)
    output.dtype = trt.float16
    assert output.dtype is layer.get_output_type(0) is trt.float16
    assert layer.output_type_is_set(0)
    engine = given.engine(output)
    assert len(given.network) == 1
    assert output.name == "(Unnamed Layer* 0) [Convolution]_output"
    x = torch.randn(1, 3, 8, 8)
    (found,) = run(engine, x)
    weights = torch.from_numpy(layer.kernel).reshape(3, 3, 3, 3)
    torch.testing.assert_close(found, torch.conv2d(x, weights, padding=1).half())
    layer.reset_output_type(0)
    assert layer.get_output_type(0) is trt.float32


@in_mode
def test_an_identity_with_another_type_converts() -> None:
    given = Definition()
    layer = given.network.add_identity(given.x)
    layer.set_output_type(0, trt.int32)
    doubled = given.network.add_elementwise(*[layer.get_output(0)] * 2, trt.ElementWiseOperation.SUM)
    assert doubled.get_output(0).dtype is trt.int32
    x = torch.randn(1, 3, 8, 8) * 10
    (found,) = run(given.engine(doubled.get_output(0)), x)
    assert torch.equal(found, 2 * x.to(torch.int32))


@in_mode
def test_inputs_take_another_type() -> None:
    given = Definition()
    layer = given.network.add_identity(given.x)
    given.x.dtype = trt.float16
    assert layer.get_output(0).dtype is trt.float16


@in_mode
@pytest.mark.parametrize("flag", ["FP16", "BF16"])
def test_a_flag_computes_in_fewer_bits_and_returns_float32(flag: str) -> None:
    given = Definition()
    first = given.convolution(given.x)
    relu = given.network.add_activation(first.get_output(0), trt.ActivationType.RELU)
    second = given.convolution(relu.get_output(0))
    given.config.set_flag(api.BuilderFlag[flag])
    engine = given.engine(second.get_output(0))
    assert len(layer_names(engine)) == 5  # one cast in, one out
    x = torch.randn(1, 3, 8, 8)
    (found,) = run(engine, x)
    kind = torch.float16 if flag == "FP16" else torch.bfloat16
    weights = torch.from_numpy(first.kernel).reshape(3, 3, 3, 3).to(kind)
    wanted = torch.conv2d(torch.conv2d(x.to(kind), weights, padding=1).relu(), weights, padding=1).float()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-1)
    exact = torch.conv2d(torch.conv2d(x, weights.float(), padding=1).relu(), weights.float(), padding=1)
    assert not torch.equal(found, exact)
    assert first.kernel.dtype == np.float32


@in_mode
def test_a_layer_says_what_it_computes_in() -> None:
    given = Definition()
    first, second = given.convolution(given.x), given.convolution(given.x)
    unary = given.network.add_unary(given.x, trt.UnaryOperation.EXP)
    first.precision = trt.float32
    unary.precision = trt.float16
    assert first.precision_is_set
    assert not second.precision_is_set
    given.config.set_flag(api.BuilderFlag.FP16)
    x = torch.rand(1, 3, 8, 8)
    found = run(given.engine(first.get_output(0), second.get_output(0), unary.get_output(0)), x)
    weights = torch.from_numpy(first.kernel).reshape(3, 3, 3, 3)
    exact = torch.conv2d(x, weights, padding=1)
    torch.testing.assert_close(found[0], exact, rtol=1e-6, atol=1e-5)
    assert (found[1] - exact).abs().max() > 1e-4
    assert torch.equal(found[2], x.half().exp().float())


@in_mode
def test_weights_for_a_refit_stay() -> None:
    given = Definition()
    layer = given.convolution(given.x)
    for flag in (api.BuilderFlag.FP16, api.BuilderFlag.REFIT):
        given.config.set_flag(flag)
    engine: Any = given.engine(layer.get_output(0))
    assert len(layer_names(engine)) == 1
    refitter: Any = trt.Refitter(engine, given.logger)
    assert refitter.set_weights(layer.name, trt.WeightsRole.KERNEL, trt.Weights(np.zeros(81, np.float32)))


@in_mode
def test_floats_that_meet_are_widened_and_weights_follow_the_data() -> None:
    given = Definition()
    half = given.network.add_identity(given.x)
    half.set_output_type(0, trt.float16)
    total = given.network.add_elementwise(half.get_output(0), given.x, trt.ElementWiseOperation.SUM)
    assert total.get_output(0).dtype is trt.float32
    layer = given.convolution(total.get_output(0), np.float16)
    assert tuple(layer.get_output(0).shape) == (1, 3, 8, 8)
    x = torch.randn(1, 3, 8, 8)
    (found,) = run(given.engine(total.get_output(0)), x)
    assert torch.equal(found, x.half().float() + x)


@in_mode
def test_strongly_typed_networks_refuse_what_chooses_types() -> None:
    given = Definition(strong=True)
    layer = given.convolution(given.x)
    layer.precision = trt.float16
    layer.get_output(0).dtype = trt.float16
    assert layer.get_output(0).dtype is trt.float32
    assert not layer.precision_is_set
    assert len(given.logger.said) == 2
    assert "strongly typed" in given.logger.said[0]
    given.config.set_flag(api.BuilderFlag.FP16)
    assert len(layer_names(given.engine(layer.get_output(0)))) == 1


@in_mode
def test_ranges_and_calibrators_are_kept_and_make_nothing_int8() -> None:
    given = Definition()
    layer = given.convolution(given.x)
    assert given.x.set_dynamic_range(-2, 2)
    assert given.x.dynamic_range == (-2.0, 2.0)
    assert not given.x.set_dynamic_range(-1, 2)
    layer.set_output_type(0, trt.int8)
    assert "dynamic ranges quantize nothing here" in given.logger.said[-1]
    calibrator = api.IInt8EntropyCalibrator2()
    given.config.int8_calibrator = calibrator
    assert given.config.int8_calibrator is calibrator
    assert calibrator.get_algorithm() is api.CalibrationAlgoType.ENTROPY_CALIBRATION_2
    given.config.set_flag(api.BuilderFlag.INT8)
    given.engine(layer.get_output(0))


@in_mode
def test_streams_of_the_first_version_are_read() -> None:
    given = Definition()
    plan = bytes(given.engine(given.convolution(given.x).get_output(0)).serialize())

    class Reader(api.IStreamReader):  # type: ignore[misc]
        def __init__(self) -> None:
            api.IStreamReader.__init__(self)
            self.file = io.BytesIO(plan)

        def read(self, size: int) -> bytes:
            return self.file.read(size)

    runtime: Any = trt.Runtime(given.logger)
    with trt.device("cpu"):
        assert runtime.deserialize_cuda_engine(Reader()).num_layers == 1
        engine = runtime.deserialize_cuda_engine(stream_reader=Reader())
    assert not engine.has_implicit_batch_dimension
    assert engine.device_memory_size == engine.device_memory_size_v2
    assert engine.create_execution_context().all_shape_inputs_specified
