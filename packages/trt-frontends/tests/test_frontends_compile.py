"""Compiling: inputs and outputs of every structure, state, settings, and the report that comes with it."""

from __future__ import annotations

import collections
import copy
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import (
    CompilationSettings,
    Device,
    IncompleteCompilationError,
    Input,
    InputError,
    PartitionError,
    SettingsError,
)
from trt_partition import diff_reports
from trt_runtime import TRTModule

Make = Callable[[Callable[..., Any]], nn.Module]
Compare = Callable[..., Any]


@dataclasses.dataclass
class Result:
    """A result of a class of its own."""

    value: torch.Tensor
    shifted: torch.Tensor


torch.export.register_dataclass(Result, serialized_type_name=f"{__name__}.Result")

Pair = collections.namedtuple("Pair", ["value", "shifted"])


def _engines(compiled: nn.Module) -> dict[str, TRTModule]:
    return {name: child for name, child in compiled.named_children() if isinstance(child, TRTModule)}


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.linear(x),
        lambda m, x: (m.linear(x), x + 1),
        lambda m, x: [m.linear(x)],
        lambda m, x: {"value": m.linear(x), "more": [x + 1, (x - 1,)]},
        lambda m, x: Result(m.linear(x), x + 1),
        lambda m, x: Pair(m.linear(x), [x + 1]),
        lambda m, x: collections.OrderedDict(b=m.linear(x), a=(x + 1,)),
        lambda m, x: collections.defaultdict(list, b=[m.linear(x)]),
        lambda m, x: (m.linear(x), None),
        lambda m, x: (m.linear(x), x + 1, None, 3),
        lambda m, x: (m.linear(x), x),
        lambda m, x: [m.linear(x)] * 2,
        lambda m, x: (m.linear(x), torch.arange(3), m.bias, m.linear.weight),
        lambda m, x: (m.linear(x), 3, 2.5, True, "text"),
        lambda m, x: (torch.arange(3),),
        lambda m, x: x,
        lambda m, x: (m.linear(x).T, m.linear(x)[:1]),
    ],
    ids=[
        "tensor", "tuple", "list", "nested", "dataclass", "named tuple", "ordered dict", "default dict",
        "none", "none beside two", "input", "twice", "constants", "numbers", "only constants", "identity", "views",
    ],
)  # fmt: skip
def test_structures_of_results(function: Any, function_model: Make, compare: Compare) -> None:
    compare(function_model(function), torch.randn(2, 4))


def test_sizes_vary_inside_of_classes_of_the_users(tmp_path: Path) -> None:
    class Taken(nn.Module):
        def forward(self, pair: Result, y: torch.Tensor) -> torch.Tensor:
            return pair.value * 2 + pair.shifted["more"][0] - y

    def given(x: Any) -> tuple[Any, Any]:
        return Result(x, {"more": [x]}), x  # type: ignore[arg-type]

    ranged = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dimensions={0: "rows"})
    compiled = trt_frontends.compile(Taken(), arg_inputs=given(ranged), min_block_size=1, optimization_level=0)
    path, few, many = tmp_path / "x.pt2", torch.randn(2, 4), torch.randn(7, 4)
    trt_frontends.save(compiled, path, arg_inputs=given(few), format="exported_program")
    for model in (compiled, torch.export.load(path).module()):
        torch.testing.assert_close(model(*given(many)), 2 * many)


def test_an_input_that_is_returned_is_the_same_tensor(function_model: Make) -> None:
    x = torch.randn(2, 4)
    compiled = trt_frontends.compile(function_model(lambda m, x: (m.linear(x), x)), arg_inputs=(x,), min_block_size=1)
    assert compiled(x)[1] is x


@pytest.mark.parametrize("value", [3, 1.5, True, None, "sum"])
def test_plain_inputs_are_fixed_and_others_refused(value: Any) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factor: Any) -> torch.Tensor:
            return torch.relu(x) * (factor if isinstance(factor, (int, float)) else 2)

    x = torch.randn(2, 4)
    compiled = trt_frontends.compile(Scaled(), arg_inputs=(x, value), min_block_size=1)
    torch.testing.assert_close(compiled(x, value), Scaled()(x, value))
    with pytest.raises(InputError, match=f"input factor is 7, the model was compiled for {value!r}"):
        compiled(x, 7)


def test_a_state_that_the_model_computes_with_is_never_frozen(function_model: Make) -> None:
    def count(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.bias.add_(1)
        return module.linear(x) + module.bias

    model, x = function_model(count), torch.randn(2, 4)
    twin = copy.deepcopy(model)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    assert _engines(compiled)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(model.get_buffer("bias"), twin.get_buffer("bias"))


@pytest.mark.filterwarnings("ignore:the model is in training mode")
def test_running_statistics_of_training_are_written_to(tmp_path: Path) -> None:
    """`aten::batch_norm` and `aten::instance_norm` say nothing of that in their schemas."""

    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.batch = nn.BatchNorm2d(3)
            self.instance = nn.InstanceNorm2d(3, track_running_stats=True)

        def forward(self, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
            x = nn.functional.batch_norm(torch.relu(self.instance(self.batch(x))), mean, variance, training=True)
            return torch.relu(x)

    def given() -> tuple[torch.Tensor, ...]:
        return torch.arange(96.0).reshape(2, 3, 4, 4).sin(), torch.zeros(3), torch.ones(3)

    model, twin = Norms(), Norms()
    compiled = trt_frontends.compile(model, arg_inputs=given(), min_block_size=1, optimization_level=0)
    assert _engines(compiled)
    trt_frontends.save(compiled, tmp_path / "x.trtp")
    loaded = trt_frontends.load(tmp_path / "x.trtp")
    for _ in range(2):
        eager, ours, again = given(), given(), given()
        with torch.no_grad():
            result = twin(*eager)
            torch.testing.assert_close(compiled(*ours), result)
            torch.testing.assert_close(loaded(*again), result)
        torch.testing.assert_close(ours, eager)
        torch.testing.assert_close(again, eager)
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
        for name, value in loaded.state_dict().items():
            if "running" in name:
                torch.testing.assert_close(value, twin.state_dict()[name])


def test_inputs_that_the_model_writes_to_are_written_to(function_model: Make) -> None:
    def shift(module: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return module.linear(x)

    model, x = function_model(shift), torch.randn(2, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x.clone(),), min_block_size=1)
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(compiled(mine), model(theirs))
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(mine, x + 1)


def test_positional_inputs_keyword_inputs_and_programs_agree(mlp: nn.Module) -> None:
    x = torch.randn(2, 4)
    program = torch.export.export(mlp, (x,))
    variants = [
        trt_frontends.compile(mlp, [x]),
        trt_frontends.compile(mlp, arg_inputs=(x,)),
        trt_frontends.compile(mlp, arg_inputs=(Input((2, 4)),)),
        trt_frontends.compile(mlp, kwarg_inputs={"input": x}),
        trt_frontends.compile(program),
        trt_frontends.compile(program, [x]),
        trt_frontends.dynamo.compile(program, arg_inputs=[x]),
    ]
    for compiled in variants:
        report = compiled.meta["partition_report"]
        assert (report.coverage, len(report.engines), report.total_operators) == (1.0, 1, 3)
        torch.testing.assert_close(compiled(input=x), mlp(x))


def test_two_engines_with_pytorch_between_them_and_a_dynamic_batch(interrupted: nn.Module, batch: Input) -> None:
    compiled = trt_frontends.compile(interrupted, arg_inputs=(batch,), min_block_size=1)
    assert list(_engines(compiled)) == ["_run_on_acc_0", "_run_on_acc_2"]
    for rows in (1, 3, 8, 2):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), interrupted(x))


def test_sizes_are_computed_again_in_every_block(function_model: Make, batch: Input) -> None:
    def spread(module: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        y = torch.special.bessel_j0(module.linear(x).reshape(rows * 2, 2))
        return torch.relu(y.reshape(rows, 4)) + torch.arange(rows)[:, None]

    model = function_model(spread)
    compiled = trt_frontends.compile(model, arg_inputs=(batch,), min_block_size=1)
    assert len(_engines(compiled)) == 2
    for rows in (1, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))


def test_overlapping_blocks_of_pictures_of_any_size_are_added(function_model: Make) -> None:
    def folded(_: Any, x: torch.Tensor) -> torch.Tensor:
        blocks = nn.functional.unfold(x, 3, padding=1, stride=2) * 2
        return nn.functional.fold(blocks, x.shape[2:], 3, padding=1, stride=2)

    picture = Input(min_shape=(1, 2, 4, 4), opt_shape=(2, 2, 6, 6), max_shape=(2, 2, 9, 9))
    model = function_model(folded)
    compiled = trt_frontends.compile(model, arg_inputs=(picture,), min_block_size=1, require_full_compilation=True)
    for shape in ((2, 2, 6, 6), (1, 2, 4, 9), (2, 2, 9, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x))


def test_explain_says_what_compile_reports(interrupted: nn.Module, batch: Input) -> None:
    given: Any = {"arg_inputs": (batch,), "min_block_size": 1, "torch_executed_ops": {"aten.relu"}}
    explained = trt_frontends.explain(interrupted, **given)
    compiled = trt_frontends.compile(interrupted, **given)
    assert not diff_reports(explained, compiled.meta["partition_report"])
    assert explained.to_text() == compiled.meta["partition_report"].to_text()


def test_explain_lists_obstacles_where_compile_fails(interrupted: nn.Module) -> None:
    given: Any = {"arg_inputs": (torch.ones(2, 4),), "require_full_compilation": True, "min_block_size": 1}
    assert trt_frontends.explain(interrupted, **given).unsupported == {"torch.ops.aten.special_bessel_j0.default": 1}
    with pytest.raises(IncompleteCompilationError, match="1 operator would run in PyTorch") as caught:
        trt_frontends.compile(interrupted, **given)
    assert "special_bessel_j0" in caught.value.why
    assert "TRT-F001" in caught.value.why


def test_require_full_compilation_of_what_is_covered(mlp: nn.Module, compare: Compare) -> None:
    compare(mlp, torch.randn(2, 4), require_full_compilation=True)


def test_a_dry_run_builds_nothing_and_runs_in_pytorch(
    mlp: nn.Module, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    x = torch.randn(2, 4)
    compiled = trt_frontends.compile(mlp, arg_inputs=(x,), dryrun=True)
    assert "100.00% coverage" in capsys.readouterr().out
    assert not _engines(compiled)
    assert compiled.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(compiled(x), mlp(x))
    for name in ("report.txt", "report.json", "report.html"):
        trt_frontends.compile(mlp, arg_inputs=(x,), dryrun=str(tmp_path / name))
    assert (tmp_path / "report.txt").read_text() == capsys.readouterr().out[: (tmp_path / "report.txt").stat().st_size]
    report = trt_frontends.PartitionReport.from_json((tmp_path / "report.json").read_text())
    assert report.total_operators == 3
    assert "<html" in (tmp_path / "report.html").read_text()


def test_a_saved_report_is_never_overwritten(mlp: nn.Module, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "report.txt"
    path.write_text("kept")
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), dryrun=str(path))
    assert path.read_text() == "kept"
    assert "exists already and is kept" in caplog.text


@pytest.mark.parametrize("path", ["", "missing/report.txt"])
def test_a_report_that_cannot_be_saved_is_found_before_any_work(mlp: nn.Module, tmp_path: Any, path: str) -> None:
    def progress(what: str, done: int, total: int) -> None:
        raise AssertionError(what)

    with pytest.raises(PartitionError, match="cannot be saved"):
        trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), dryrun=str(tmp_path / path), progress=progress)


def test_the_report_goes_to_the_debug_log(mlp: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),))
    assert "Dry-Run Results" not in caplog.text
    with caplog.at_level(logging.DEBUG, logger="torch_tensorrt"):
        trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),))
    assert "Dry-Run Results" in caplog.text


def test_debug_shows_the_log_and_then_leaves_the_logger_alone(mlp: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch_tensorrt")
    before = logger.level, list(logger.handlers)
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), debug=True, min_block_size=float("inf"))
    assert "Dry-Run Results" in caplog.text
    assert (logger.level, list(logger.handlers)) == before


def test_nothing_supported_still_reports(function_model: Make, compare: Compare) -> None:
    compiled = compare(function_model(lambda m, x: torch.special.bessel_j0(x)), torch.randn(2, 4))
    report = compiled.meta["partition_report"]
    assert report.coverage == 0.0
    assert "Aggregate stats not available" in report.to_text()


def test_infinite_min_block_size_builds_nothing(mlp: nn.Module, compare: Compare) -> None:
    compiled = compare(mlp, torch.randn(2, 4), min_block_size=float("inf"))
    assert not _engines(compiled)
    assert compiled.meta["partition_report"].coverage == 1.0


@pytest.mark.parametrize(
    "operator",
    [torch.ops.aten.relu.default, torch.ops.aten.relu, "torch.ops.aten.relu.default", "aten.relu", "aten::relu"],
    ids=["overload", "packet", "full name", "short name", "schema name"],
)
def test_operators_kept_in_pytorch(operator: Any, mlp: nn.Module, compare: Compare) -> None:
    compiled = compare(mlp, torch.randn(2, 4), torch_executed_ops={operator})
    report = compiled.meta["partition_report"]
    assert [node.verdict.code for node in report.torch_nodes] == ["TRT-F002"]
    assert len(_engines(compiled)) == 2


def test_operators_that_lowering_would_remove_are_kept_in_pytorch(function_model: Make, compare: Compare) -> None:
    compiled = compare(
        function_model(lambda m, x: m.linear(x + 0)), torch.randn(2, 4), torch_executed_ops={"aten.add.Tensor"}
    )
    assert [node.op for node in compiled.meta["partition_report"].torch_nodes] == ["torch.ops.aten.add.Tensor"]


@pytest.mark.parametrize("name", ["1", "ReLU", "torch.nn.modules.activation.ReLU"])
def test_modules_kept_in_pytorch(name: str, mlp: nn.Module, compare: Compare) -> None:
    compiled = compare(mlp, torch.randn(2, 4), torch_executed_modules={name})
    assert [node.verdict.code for node in compiled.meta["partition_report"].torch_nodes] == ["TRT-F003"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"torch_executed_ops": {"aten.reluu"}}, r"unknown operator 'aten.reluu'[\s\S]*did you mean 'aten.relu'"),
        ({"torch_executed_modules": {"ReLUs"}}, r"unknown module 'ReLUs'[\s\S]*did you mean 'ReLU'"),
        ({"min_blok_size": 2}, r"unknown setting 'min_blok_size'[\s\S]*did you mean 'min_block_size'"),
        ({"min_block_size": 0}, "min_block_size=0 is out of range"),
        ({"precision": "float99"}, "precision"),
        ({"optimization_level": 9}, "optimization_level=9 is out of range"),
    ],
)
def test_settings_that_make_no_sense(settings: Any, message: str, mlp: nn.Module) -> None:
    for call in (trt_frontends.compile, trt_frontends.explain):
        with pytest.raises(SettingsError, match=message):
            call(mlp, arg_inputs=(torch.ones(2, 4),), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimization_level": 0},
        {"optimization_level": 5},
        {"workspace_size": 1 << 28, "max_aux_streams": 0, "num_avg_timing_iters": 2},
        {"disable_tf32": True, "sparse_weights": True, "version_compatible": True, "hardware_compatible": True},
        {"refit": True},
        {"use_fast_partitioner": False},
        {"enable_experimental_decompositions": True},
        {"settings": CompilationSettings(min_block_size=2, device=Device("cpu"))},
    ],
    ids=lambda settings: next(iter(settings)) + str(next(iter(settings.values())))[:5],
)
def test_settings_that_change_how_but_not_what(settings: Any, mlp: nn.Module, compare: Compare) -> None:
    compiled = compare(mlp, torch.randn(2, 4), **settings)
    assert compiled.meta["partition_report"].coverage == 1.0


def test_progress_is_told(mlp: nn.Module) -> None:
    told: list[tuple[str, int, int]] = []
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), progress=lambda *step: told.append(step))
    assert [what for what, _, _ in told] == ["capturing", "lowering", "building engines", "building engines"]
    assert told[-1] == ("building engines", 1, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4)),), "1 to 8, but the program was exported with 2"),
        ((torch.ones(3, 4),), "is 3, but the program was exported with 2"),
        ((torch.ones(2, 4, dtype=torch.float64),), "has type torch.float64, the program was exported with"),
        ((torch.ones(4),), "has rank 1, the program was exported with rank 2"),
        ((torch.ones(2, 4), torch.ones(1)), "takes 1 inputs, 2 were given"),
        ((), "takes 1 inputs, 0 were given"),
    ],
)
def test_inputs_that_contradict_the_exported_program(given: Any, message: str, mlp: nn.Module) -> None:
    program = torch.export.export(mlp, (torch.ones(2, 4),))
    with pytest.raises(InputError, match=message) as caught:
        trt_frontends.compile(program, arg_inputs=given)
    assert caught.value.hint


def test_a_range_wider_than_the_program_has(mlp: nn.Module, batch: Input) -> None:
    program = trt_frontends.trace(mlp, arg_inputs=(batch,))
    wider = Input(min_shape=(1, 4), opt_shape=(4, 4), max_shape=(9, 4))
    with pytest.raises(InputError, match="1 to 9, but the program was exported for 1 to 8"):
        trt_frontends.compile(program, arg_inputs=(wider,))


def test_a_narrower_range_than_the_program_has(mlp: nn.Module, batch: Input) -> None:
    program = trt_frontends.trace(mlp, arg_inputs=(batch,))
    narrower = Input(min_shape=(2, 4), opt_shape=(4, 4), max_shape=(4, 4))
    compiled = trt_frontends.compile(program, arg_inputs=(narrower,))
    compiled(torch.ones(4, 4))
    with pytest.raises(InputError, match="is 5, the model was compiled for 2 to 4"):
        compiled(torch.ones(5, 4))


def test_debug_shows_lowering_and_building(mlp: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), debug=True)
    assert "lowering pass" in caplog.text
    assert "built _run_on_acc_0" in caplog.text
    caplog.clear()
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),))
    assert "lowering pass" not in caplog.text


def test_each_phase_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    with caplog.at_level(logging.INFO, logger="torch_tensorrt"):
        trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [line.partition(",")[0] for line in lines] == [
        "captured: 2 operators",
        "lowered: 2 operators",
        "decided: 1 engine to build",
        "built: 1 engine with 100% of the operators",
    ]
    with caplog.at_level(logging.INFO, logger="torch_tensorrt"):
        excluded = {"torch.ops.aten.relu.default"}
        trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4),), min_block_size=2, torch_executed_ops=excluded)
    assert "built: 0 engines with 0% of the operators" in caplog.text  # of which an engine could run half
