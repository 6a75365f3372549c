"""Precision that is chosen by measuring."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_converters import DYNAMO_CONVERTERS, Converter
from trt_core import Input, InputError, SettingsError
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.precision.report import PrecisionReport

LARGE = {"mul_1", "log"}
"""Operators of the overflowing model that float16 cannot hold."""


def _error(compiled: nn.Module, model: nn.Module, *inputs: torch.Tensor) -> float:
    return measure_error(compiled(*inputs), model(*inputs)).scaled


@pytest.fixture(scope="module")
def chosen(overflowing: nn.Module) -> Any:
    """The overflowing model with precision chosen within one percent."""
    x = torch.linspace(-2, 2, 48).reshape(6, 8)
    return trt_frontends.compile(overflowing, arg_inputs=(x,), precision="auto", debug=True)


def test_what_overflows_stays_in_float32(chosen: Any, overflowing: nn.Module, inputs: Any) -> None:
    report: PrecisionReport = chosen.meta["precision_report"]
    assert report.dtype == "float16"
    assert {name for group in report.kept_in_float32 for name in group.nodes} == LARGE
    assert 0 < _error(chosen, overflowing, *inputs) <= 1e-2
    assert report.error is not None and report.error <= report.max_error == 1e-2
    assert report.reduced_share > 0.9
    assert chosen(*inputs).dtype is torch.float32


def test_engines_compute_as_the_report_says(chosen: Any, types_of_layers: Callable[..., Any]) -> None:
    types = types_of_layers(chosen)
    assert types["log/log"] == types["mul_1/prod"] == ["FLOAT"]
    assert types["linear/matmul"] == types["tanh/tanh"] == ["HALF"]


def test_reports_say_why(chosen: Any) -> None:
    report, partition = chosen.meta["precision_report"], chosen.meta["partition_report"]
    assert "log: float16 here alone makes the output infinite, or no number" in report.to_text()
    kept = {node.name: str(node.kept_in_float32) for node in partition.kept_in_float32}
    assert kept == dict.fromkeys(LARGE, "max_error: float16 here alone makes the output infinite, or no number")
    data = json.loads(report.to_json())
    assert data["errors_when_all_reduced"][0] == ["float16", "inf"]
    assert {group["dtype"] for group in data["groups"]} == {"float16", "float32"}
    assert data["measurements"] <= 2 * (2 + len(data["groups"]) + 4 + 8)


def test_the_choice_can_be_written_as_settings(chosen: Any, overflowing: nn.Module, inputs: Any) -> None:
    setting = chosen.meta["precision_report"].setting
    assert setting == "precision=torch.float16, autocast_excluded_nodes={'^log$', '^mul_1$'}"
    given = eval(f"dict({setting})", {"torch": torch})
    assert torch.equal(trt_frontends.compile(overflowing, arg_inputs=inputs, **given)(*inputs), chosen(*inputs))


class Broken(nn.Module):
    """The model around a graph break, in parts whose graphs number their nodes otherwise than the model does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.model.first(x)) * 1000 + 1
        torch._dynamo.graph_break()
        return self.model.last(torch.tanh(self.model.second(torch.log(y * y))))


@pytest.mark.parametrize("breaks", [False, True])
def test_the_choice_can_be_written_as_options_of_torch_compile(
    chosen: Any, overflowing: nn.Module, inputs: Any, breaks: bool
) -> None:
    setting = chosen.meta["precision_report"].setting_of_graphs
    assert setting == r"precision=torch.float16, autocast_excluded_nodes={'^log(_\\d+)?$', '^mul(_\\d+)?$'}"
    given = {**eval(f"dict({setting})", {"torch": torch}), "optimization_level": 0, "min_block_size": 1}
    model = Broken(overflowing).eval() if breaks else overflowing
    optimized = torch.compile(model, backend="torch_tensorrt", options=given)
    with torch.no_grad():
        assert 0 < _error(optimized, overflowing, *inputs) <= 1e-2


def test_the_choice_is_the_same_each_time(chosen: Any, overflowing: nn.Module, inputs: Any) -> None:
    report = trt_frontends.explain(overflowing, arg_inputs=inputs, precision="auto")
    assert report.kept_in_float32 == chosen.meta["partition_report"].kept_in_float32


def test_less_error_keeps_more_in_float32(overflowing: nn.Module, inputs: Any) -> None:
    compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, max_error=1e-3)
    report = compiled.meta["precision_report"]
    assert len(report.kept_in_float32) > len(LARGE)
    assert _error(compiled, overflowing, *inputs) <= 1e-3


def test_the_other_type_is_chosen_where_it_does_more(overflowing: nn.Module, inputs: Any) -> None:
    compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, max_error=0.1)
    report = compiled.meta["precision_report"]
    assert (report.dtype, report.kept_in_float32) == ("bfloat16", ())
    assert "everything computes in bfloat16" in report.to_text()
    named = trt_frontends.explain(overflowing, arg_inputs=inputs, precision=torch.float16, max_error=0.1)
    assert {node.name for node in named.kept_in_float32} == LARGE


def test_nothing_is_reduced_where_nothing_fits(overflowing: nn.Module, inputs: Any) -> None:
    compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, precision="auto", max_error=1e-12)
    report = compiled.meta["precision_report"]
    assert (report.dtype, report.setting, report.reduced_share) == ("float32", "precision=torch.float32", 0)
    assert "everything stays in float32, whose own error" in report.to_text()
    torch.testing.assert_close(compiled(*inputs), overflowing(*inputs))


def test_products_alone_are_chosen_from_under_autocast(overflowing: nn.Module, inputs: Any) -> None:
    compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, enable_autocast=True, max_error=1e-3)
    report = compiled.meta["precision_report"]
    assert [group.name for group in report.kept_in_float32] == ["first/linear"]
    assert report.setting.startswith("enable_autocast=True, autocast_dtype=torch.float16, autocast_excluded_")


def test_dynamic_models_are_measured_at_all_their_sizes(overflowing: nn.Module) -> None:
    batch = Input(min_shape=(1, 8), opt_shape=(3, 8), max_shape=(5, 8), tensor_domain=(-2, 2))
    compiled = trt_frontends.compile(overflowing, arg_inputs=(batch,), precision=torch.float16, max_error=1e-2)
    report = compiled.meta["precision_report"]
    assert report.inputs == ("seed 0", "seed 1", "min sizes", "max sizes")
    assert {name for group in report.kept_in_float32 for name in group.nodes} == LARGE
    for size in (1, 5):
        assert _error(compiled, overflowing, torch.rand(size, 8) * 4 - 2) < 2e-2  # other inputs than it was chosen on


def test_the_user_s_exclusions_and_inputs_are_kept(overflowing: nn.Module, inputs: Any) -> None:
    report = trt_frontends.explain(
        overflowing,
        arg_inputs=inputs,
        precision="auto",
        autocast_excluded_ops={"aten.tanh"},
        autocast_calibration_dataloader=[(inputs[0] * 1e-3,)],
    )
    rules = {node.name: node.kept_in_float32.rule.value for node in report.kept_in_float32 if node.kept_in_float32}
    assert rules["tanh"] == "autocast_excluded_ops"


def test_engines_that_do_worse_than_pytorch_are_noticed(overflowing: nn.Module, inputs: Any) -> None:
    before = DYNAMO_CONVERTERS.copy()
    target = torch.ops.aten.tanh.default
    original = DYNAMO_CONVERTERS[target]

    def spoiled(ctx: Any, **arguments: Any) -> Any:
        result = original.function(ctx, **arguments)
        if ctx.node.meta["val"].dtype is not torch.float16:
            return result
        return DYNAMO_CONVERTERS[torch.ops.aten.mul.Tensor].function(ctx, result, torch.tensor(1.5))

    DYNAMO_CONVERTERS.register(Converter(target, spoiled, original.checks, priority=original.priority + 1))
    try:
        compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, precision="float16", max_error=1e-2)
    finally:
        DYNAMO_CONVERTERS.restore(before)
    report = compiled.meta["precision_report"]
    assert report.engines_tried > 1
    assert report.error <= 1e-2
    assert "tanh" in {name for group in report.kept_in_float32 for name in group.nodes}
    assert _error(compiled, overflowing, *inputs) <= 1e-2


def test_choosing_changes_no_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.mean(0))
            return torch.relu(self.linear(x)) + self.total

    model, x = Counting().eval(), torch.randn(3, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), precision="auto", min_block_size=1)
    assert torch.equal(model.total, torch.zeros(4))
    compiled(x)
    torch.testing.assert_close(model.total, x.mean(0), rtol=1e-2, atol=1e-3)  # the mean may be reduced


def test_dry_runs_choose_without_engines(overflowing: nn.Module, inputs: Any, capsys: Any) -> None:
    compiled = trt_frontends.compile(overflowing, arg_inputs=inputs, precision="auto", dryrun=True)
    report = compiled.meta["precision_report"]
    assert (report.error, report.engines_tried, report.dtype) == (None, 0, "float16")
    assert "max_error: float16 here alone" in capsys.readouterr().out


def test_half_models_have_nothing_to_choose() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).half().eval(), torch.ones(2, 4, dtype=torch.float16)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), precision="auto", max_error=0.1, min_block_size=1)
    assert "computes nothing in float32" in compiled.meta["precision_report"].conclusion
    given = {"enable_autocast": True, "max_error": 0.1, "min_block_size": 1}
    compiled = trt_frontends.compile(nn.Tanh(), arg_inputs=(torch.ones(3),), **given)
    assert "has no products in float32" in compiled.meta["precision_report"].conclusion


def test_what_has_no_run_in_float64_is_measured_from_float32() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), torch.randn(3, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), precision="auto", min_block_size=1)
    report = compiled.meta["precision_report"]
    assert report.reference == "float32 (it draws random numbers)"
    assert report.dtype == "float16"


def test_a_type_that_pytorch_has_no_kernel_for_is_no_choice() -> None:
    class Distances(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x, x)

    x = torch.randn(4, 8)
    compiled = trt_frontends.compile(Distances(), arg_inputs=(x,), precision="auto", min_block_size=1)
    torch.testing.assert_close(compiled(x), torch.cdist(x, x), rtol=0, atol=0.05)


def test_what_cannot_be_measured_is_refused(overflowing: nn.Module, inputs: Any) -> None:
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    with pytest.raises(InputError, match="no weights to measure errors with"):
        trt_frontends.explain(model, arg_inputs=(torch.zeros(2, 8),), precision="auto")
    with pytest.raises(SettingsError, match=r"max_error=-1\.0 is out of range"):
        trt_frontends.explain(overflowing, arg_inputs=inputs, max_error=-1)
    optimized = torch.compile(overflowing, backend="torch_tensorrt", options={"precision": "auto"})
    with pytest.raises(Exception, match=r"precision cannot be chosen under torch\.compile"), torch.no_grad():
        optimized(*inputs)


def test_verify_allows_the_error_that_was_asked_for(overflowing: nn.Module, inputs: Any) -> None:
    report = trt_frontends.verify(overflowing, arg_inputs=inputs, inputs=[inputs], precision="auto", max_error=0.02)
    assert report.passed and report.tolerance == 0.02
