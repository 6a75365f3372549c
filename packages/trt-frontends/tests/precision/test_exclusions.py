"""Parts of a model that stay in float32: in engines, in reports, along every path."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import Input, InputError, SettingsError, read_settings
from trt_core.precision import PrecisionRule
from trt_partition import PartitionReport
from trt_partition.report.partition_report import schema

BEYOND = {"mul", "add", "mul_1", "log"}
"""Nodes of the overflowing model whose operands or results are large."""
HALF = 1e-2  # scaled error of a few layers in float16


def _kept(report: PartitionReport) -> dict[str, PrecisionRule]:
    return {node.name: node.kept_in_float32.rule for node in report.kept_in_float32 if node.kept_in_float32}


@pytest.fixture(scope="module")
def by_magnitude(overflowing: nn.Module) -> Any:
    """The overflowing model in float16, but where values are large."""
    x = torch.linspace(-2, 2, 48).reshape(6, 8)
    return trt_frontends.compile(
        overflowing, arg_inputs=(x,), precision=torch.float16, autocast_max_output_threshold=512, debug=True
    )


def test_float16_alone_overflows(overflowing: nn.Module, inputs: Any) -> None:
    compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, precision=torch.float16)
    assert not compiled(*inputs).isfinite().all()


def test_large_values_stay_in_float32(by_magnitude: Any, overflowing: nn.Module, inputs: Any) -> None:
    found = by_magnitude(*inputs)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, overflowing(*inputs), rtol=HALF, atol=HALF)
    assert not torch.equal(found, overflowing(*inputs))
    assert _kept(by_magnitude.meta["partition_report"]) == dict.fromkeys(BEYOND, PrecisionRule.MAGNITUDE)


def test_engines_compute_them_in_float32(by_magnitude: Any, types_of_layers: Callable[..., Any]) -> None:
    types = types_of_layers(by_magnitude)
    for name, (dtype,) in types.items():
        if name.partition("/")[0] in BEYOND:
            assert dtype == "FLOAT", name
        elif name.endswith(("/matmul", "/relu", "/tanh", "/bias")):
            assert dtype == "HALF", name
    assert {"log/log", "linear/matmul"} <= types.keys()


def test_the_report_says_why(by_magnitude: Any) -> None:
    report = by_magnitude.meta["partition_report"]
    text = report.to_text()
    assert "The following nodes are kept in float32:" in text
    assert "  autocast_max_output_threshold: mul_1 reaches" in text
    data = json.loads(report.to_json())
    jsonschema.validate(data, schema())
    (log,) = (node for node in data["nodes"] if node["name"] == "log")
    assert log["kept_in_float32"]["rule"] == "autocast_max_output_threshold"
    assert PartitionReport.from_json(report.to_json()) == report
    assert "Nodes that are kept in float32" in report.to_html()


def test_a_dry_run_says_so_too(overflowing: nn.Module, inputs: Any) -> None:
    report = trt_frontends.explain(
        overflowing, arg_inputs=inputs, precision=torch.bfloat16, autocast_excluded_nodes=["^log$", "second"]
    )
    assert _kept(report) == dict.fromkeys(("log", "linear_1"), PrecisionRule.NODE)


def test_calibration_decides_what_is_large(overflowing: nn.Module, inputs: Any) -> None:
    def kept(data: Any) -> Any:
        return _kept(
            trt_frontends.explain(
                overflowing,
                arg_inputs=inputs,
                precision=torch.float16,
                autocast_max_output_threshold=1e5,
                autocast_calibration_dataloader=data,
            )
        )

    small, large = inputs[0] * 0.01, inputs[0] * 100
    assert kept([(small,), {"x": small}]) == {"mul_1": PrecisionRule.MAGNITUDE, "log": PrecisionRule.MAGNITUDE}
    assert set(kept(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(large), batch_size=6))) == BEYOND


def test_dynamic_sizes_are_measured_at_their_ends(overflowing: nn.Module) -> None:
    batch = Input(min_shape=(1, 8), opt_shape=(2, 8), max_shape=(5, 8), tensor_domain=(-2, 2))
    settings = {"precision": torch.float16, "autocast_max_output_threshold": 512}
    compiled = trt_frontends.compile(overflowing, arg_inputs=(batch,), **settings)
    assert set(_kept(compiled.meta["partition_report"])) == BEYOND
    for size in (1, 5):
        x = torch.rand(size, 8) * 4 - 2
        torch.testing.assert_close(compiled(x), overflowing(x), rtol=HALF, atol=HALF)


@torch.no_grad()
def test_torch_compile_measures_the_first_call(overflowing: nn.Module, inputs: Any) -> None:
    settings = {"precision": torch.float16, "autocast_max_output_threshold": 512}
    optimized = torch.compile(overflowing, backend="torch_tensorrt", dynamic=False, options=settings)
    torch.testing.assert_close(optimized(*inputs), overflowing(*inputs), rtol=HALF, atol=HALF)


def test_measuring_changes_no_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return torch.relu(self.norm(x)) * self.calls

    model, x = Counting().train(), torch.randn(4, 8)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    trt_frontends.explain(
        model, arg_inputs=(x,), precision=torch.float16, autocast_max_output_threshold=1, min_block_size=1
    )
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "has no inputs"),
        ("text", "cannot take a str"),
        (5, "cannot take an int"),
        ([(torch.full((6, 8), float("nan")),)], "contains NaN"),
        ([(torch.zeros(6, 9),)], "dimension"),
        ([object()], "is an object"),
        ({"x": torch.zeros(6, 8)}, "is a dict, not a collection of inputs"),
        (itertools.repeat(torch.zeros(6, 8)), "does not end"),
        ((torch.zeros(6, 8) / (1 // (1 - n)) for n in range(2)), r"cannot be read\n  where: input 1\n.*ZeroDivision"),
    ],
)
def test_calibration_data_that_cannot_be_used_is_refused(overflowing: nn.Module, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trt_frontends.explain(
            overflowing,
            arg_inputs=(torch.zeros(6, 8),),
            precision=torch.float16,
            autocast_max_output_threshold=1,
            autocast_calibration_dataloader=data,
        )


def test_settings_that_cannot_be_read_are_refused(overflowing: nn.Module, inputs: Any) -> None:
    for given, message in (
        ({"autocast_excluded_nodes": ["("]}, "no regular expression"),
        ({"autocast_excluded_nodes": "linear"}, "give a collection"),
        ({"autocast_excluded_ops": ["aten.linaer"]}, "unknown operator"),
        ({"autocast_max_output_threshold": -1}, "out of range"),
        ({"autocast_max_depth_of_reduction": 0}, "out of range"),
    ):
        with pytest.raises(SettingsError, match=message):
            trt_frontends.explain(overflowing, arg_inputs=inputs, **given)
    with pytest.raises(SettingsError, match="first call"):
        read_settings({"autocast_calibration_dataloader": [inputs]})  # as torch.compile reads its options


def test_an_exclusion_that_fits_nothing_is_told(overflowing: nn.Module, inputs: Any) -> None:
    with pytest.warns(UserWarning, match="'nowhere' excludes nothing"):
        trt_frontends.explain(
            overflowing, arg_inputs=inputs, precision=torch.float16, autocast_excluded_nodes={"nowhere", "first"}
        )


def test_a_model_without_weights_is_explained_without_measuring(caplog: pytest.LogCaptureFixture) -> None:
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    report = trt_frontends.explain(
        model, arg_inputs=(torch.zeros(2, 8),), precision=torch.float16, autocast_max_output_threshold=1
    )
    assert _kept(report) == {}
    assert "no weights to measure" in caplog.text
